#include "normgen/programmatic.cuh"
#include "normgen/second_stage.cuh"

// A launch sets:
//   THREADS: threads of a block
//   TILE: columns of a tile of the kernel that combines partials
//   SHARES: warps that share such a tile
//   PROGRAMMATIC: whether the kernel starts before the one ahead of it ends, and waits by itself
//   index_t: types of row numbers and strides, and of where rows begin
//   size_rest: length of rest
//   HAS_RUNNING_MEAN, HAS_RUNNING_VAR: whether the call has this operand
//   WANT_RUNNING_MEAN, WANT_RUNNING_VAR, WANT_MU, WANT_SPREAD: whether the call wants this result
//   running_mean_t, running_var_t, mu_t, spread_t: type of this operand's elements

constexpr bool WANT_X_MOMENTS = WANT_MU || WANT_SPREAD || WANT_RUNNING_MEAN || WANT_RUNNING_VAR;
constexpr bool READ_RUNNING_MEAN = HAS_RUNNING_MEAN && WANT_RUNNING_MEAN;
constexpr bool READ_RUNNING_VAR = HAS_RUNNING_VAR && WANT_RUNNING_VAR;
// norm running attr momentum = 0.1 input x[B, C, ...] state running_mean[C]: f32 state running_var[C]: f32
// let s0 = sum[B, ...]((x - sum[B, ...](x) / (size[...] * size[B]))^2)
// let unbiased = s0 / max(size[...] * size[B] - 1, 1)
// save mu[C]: f32 = sum[B, ...](x) / (size[...] * size[B])
// output spread[C]: f32 = rsqrt(size[...]) * rsqrt(size[B]) * sqrt(s0)
// update running_mean = running_mean + momentum * (mu - running_mean)
// update running_var = running_var + momentum * (unbiased - running_var)
//
// Combines the partials that the blocks of the row kernel left, TILE columns in SHARES warps. blockIdx.y is
// the group of results.
extern "C" __global__ void __launch_bounds__(THREADS) running_second_stage(
    running_mean_t* running_mean_ptr,
    running_var_t* running_var_ptr,
    mu_t* __restrict__ mu_ptr,
    spread_t* __restrict__ spread_ptr,
    float* __restrict__ x_moments_partial,
    index_t running_mean_stride_C,
    index_t running_var_stride_C,
    index_t mu_stride_C,
    index_t spread_stride_C,
    index_t size_B,
    index_t size_C,
    float momentum,
    int blocks_per_segment) {
    __shared__ PartMoments statistics[THREADS / 32][TILE];
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const index_t tile = index_t(blockIdx.x) * (THREADS / 32 / SHARES) + warp / SHARES;
    programmatic_wait<PROGRAMMATIC>();

    // mu, spread, running_mean, running_var
    if (blockIdx.y == 0) {
        if constexpr (WANT_X_MOMENTS) {
            constexpr int WIDTH = 1;
            const index_t outer = tile * TILE + lane % TILE;
            const int column = outer < size_C ? 0 : WIDTH;  // nothing beyond the last
            const index_t at_C = outer;
            const auto row_of = [&](index_t k) -> index_t {
                return outer * blocks_per_segment + k;
            };
            const FinalMoments x_moments = merge_partials<TILE, SHARES, WIDTH>(statistics, x_moments_partial,
                column, index_t(blocks_per_segment), row_of);
            if (warp % SHARES == 0 && lane < TILE && column < WIDTH) {
                const float running_mean =
                    READ_RUNNING_MEAN ? load_state(running_mean_ptr + at_C * running_mean_stride_C) : 0.f;
                const float running_var =
                    READ_RUNNING_VAR ? load_state(running_var_ptr + at_C * running_var_stride_C) : 1.f;
                const float mu = x_moments.mean;  // spec.norm:6
                const float value_1 = maximum(x_moments.squares
                    - square(x_moments.centred) * (1.f / float(size_rest)) * (1.f / float(size_B)), 0.f);
                // spec.norm:9
                const float spread = rsqrtf(float(size_rest)) * rsqrtf(float(size_B)) * sqrtf(value_1);
                // spec.norm:8
                const float unbiased = value_1 / maximum(float(size_rest) * float(size_B) - 1.f, 1.f);
                if constexpr (WANT_MU) store_scalar<false>(mu_ptr + at_C * mu_stride_C, mu);
                if constexpr (WANT_SPREAD) store_scalar<false>(spread_ptr + at_C * spread_stride_C, spread);
                if constexpr (WANT_RUNNING_MEAN)
                    store_scalar<false>(running_mean_ptr + at_C * running_mean_stride_C,
                        running_mean + (mu - running_mean) * momentum);
                if constexpr (WANT_RUNNING_VAR)
                    store_scalar<false>(running_var_ptr + at_C * running_var_stride_C,
                        running_var + (unbiased - running_var) * momentum);
            }
        }
    }
    programmatic_launch<PROGRAMMATIC>();
}
