#include "normgen/columns/columns.cuh"
#include "normgen/programmatic.cuh"

// A launch sets:
//   THREADS, MIN_BLOCKS, TEAM, LANES, VEC, LENGTH, PROGRAMMATIC, index_t, size_C, HAS_DY, HAS_W, dy_t, x_t,
//   w_t, mu_t, rstd_t, dx_t, WANT_DX, WANT_DW, WANT_DB

[[maybe_unused]] constexpr bool READ_X = WANT_DX || WANT_DW;
[[maybe_unused]] constexpr bool READ_W = HAS_W && WANT_DX;
[[maybe_unused]] constexpr bool READ_MU = WANT_DX || WANT_DW;
[[maybe_unused]] constexpr bool READ_RSTD = WANT_DX || WANT_DW;
// gradient dx[B, C, ...]: like x = rstd * (w * dy - rstd^2 * sum[C](w * dy * (x - mu)) * (x - mu) / size[C] -
//     sum[C](w * dy) / size[C])
// gradient dw[C]: like w = sum[B, ...](rstd * dy * (x - mu))
// gradient db[C]: like b = sum[B, ...](dy)
//
// Multi-pass streaming: a thread owns VEC adjacent columns and passes over its elements of them once per
// dependency level. Persistent blocks walk the tiles of columns; sums over columns grow in the block's row of
// partials.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) layernorm2d_backward_multipass(
    const dy_t* dy_ptr,
    const x_t* x_ptr,
    const w_t* w_ptr,
    const mu_t* mu_ptr,
    const rstd_t* rstd_ptr,
    dx_t* __restrict__ dx_ptr,
    float* dw_sum_partial,
    float* db_sum_partial,
    index_t dy_stride_B,
    index_t dy_stride_C,
    index_t x_stride_B,
    index_t x_stride_C,
    index_t w_stride_C,
    index_t mu_stride_B,
    index_t rstd_stride_B,
    index_t dx_stride_B,
    index_t dx_stride_C,
    index_t chunks_per_group,
    index_t chunks,
    int blocks_per_segment) {
    static_assert(LANES == 32 || !(WANT_DW || WANT_DB),
        "a sum over the lanes takes a whole warp of one member");
    __shared__ ColumnExchange<LANES, TEAM, VEC, 3> exchange;
    const int lane = threadIdx.x % LANES;
    const int member = threadIdx.x / LANES;
    const index_t block = blockIdx.x;
    const index_t tiles = (chunks + (LANES - 1)) / LANES;
    programmatic_wait<PROGRAMMATIC>();
    programmatic_launch<PROGRAMMATIC>();
    float* const dw_sum = dw_sum_partial + index_t(blockIdx.x) * LENGTH;
    float* const db_sum = db_sum_partial + index_t(blockIdx.x) * LENGTH;

    for (index_t tile = block; tile < tiles; tile += blocks_per_segment) {
        const index_t candidate = tile * LANES + lane;
        const bool live = candidate < chunks;
        // threads beyond the last chunk read what columns share from the first, but none of its elements,
        // which an in-place result may be overwriting, and store nothing
        const index_t chunk = live ? candidate : 0;
        const index_t group = chunk / chunks_per_group;
        const index_t column = chunk % chunks_per_group * VEC;
        const dy_t* const dy_column = dy_ptr + group * dy_stride_B + column;
        const x_t* const x_column = x_ptr + group * x_stride_B + column;
        const mu_t* const mu_column = mu_ptr + group * mu_stride_B + column;
        const rstd_t* const rstd_column = rstd_ptr + group * rstd_stride_B + column;
        dx_t* const dx_column = dx_ptr + group * dx_stride_B + column;
        float mu[VEC];
        load_columns<READ_MU>(mu_column, 0.f, mu);
        float rstd[VEC];
        load_columns<READ_RSTD>(rstd_column, 0.f, rstd);

        // exchange 1: sum[C](w * dy), sum[C](w * dy * minus(x, mu)), sum[C](minus(x, mu))
        float sum_w_dy[VEC] = {};
        float sum_w_dy_x_minus_mu[VEC] = {};
        float sum_x_minus_mu[VEC] = {};
        if constexpr (WANT_DX || WANT_DW) {
#pragma unroll 4
            for (int element = member; element < LENGTH; element += TEAM) {
                if (live) {
                    float dy[VEC];
                    if constexpr (HAS_DY) {
                        unpack(load_vector<VEC>(dy_column + element * dy_stride_C), dy);
                    } else set_all(dy, 0.f);
                    float x[VEC];
                    if constexpr (READ_X) {
                        unpack(load_vector<VEC>(x_column + element * x_stride_C), x);
                    } else set_all(x, 0.f);
                    const float w = READ_W ? load_scalar(w_ptr + element * w_stride_C) : 1.f;
#pragma unroll
                    for (int i = 0; i < VEC; ++i) {
                        const float w_dy = w * dy[i];
                        const float x_minus_mu = x[i] - mu[i];
                        sum_w_dy[i] += w_dy;
                        sum_w_dy_x_minus_mu[i] += w_dy * x_minus_mu;
                        sum_x_minus_mu[i] += x_minus_mu;
                    }
                }
            }
            Columns<Sum, Sum, Sum>::reduce(exchange, sum_w_dy, sum_w_dy_x_minus_mu, sum_x_minus_mu);
        }
        float neg_mean_w_dy_rstd[VEC], row_1[VEC], neg_mean_x_minus_mu[VEC];
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            neg_mean_w_dy_rstd[i] = -sum_w_dy[i] * (1.f / float(size_C)) * rstd[i];
            row_1[i] = (sum_w_dy[i] * if_finite(sum_x_minus_mu[i]) * (1.f / float(size_C))
                - sum_w_dy_x_minus_mu[i]) * (1.f / float(size_C)) * rstd[i] * rstd[i] * rstd[i];
            neg_mean_x_minus_mu[i] = -if_finite(sum_x_minus_mu[i]) * (1.f / float(size_C));
        }

        // results
#pragma unroll 4
        for (int element = member; element < LENGTH; element += TEAM) {
            float dw_sum_part = 0.f;
            float db_sum_part = 0.f;
            if (live) {
                float dy[VEC];
                if constexpr (HAS_DY) {
                    unpack(load_vector<VEC>(dy_column + element * dy_stride_C), dy);
                } else set_all(dy, 0.f);
                float x[VEC];
                if constexpr (READ_X) {
                    unpack(load_vector<VEC>(x_column + element * x_stride_C), x);
                } else set_all(x, 0.f);
                const float w = READ_W ? load_scalar(w_ptr + element * w_stride_C) : 1.f;
                float dx_out[VEC];
#pragma unroll
                for (int i = 0; i < VEC; ++i) {
                    const float rstd_dy = rstd[i] * dy[i];
                    const float value_1 = neg_mean_x_minus_mu[i] + (x[i] - mu[i]);
                    dx_out[i] = neg_mean_w_dy_rstd[i] + w * rstd_dy + row_1[i] * value_1;
                    if (WANT_DW) dw_sum_part += rstd_dy * value_1;
                    if (WANT_DB) db_sum_part += dy[i];
                }
                if (WANT_DX && live) {
                    store_vector(dx_column + element * dx_stride_C, pack<dx_t>(dx_out));
                }
            }
            if constexpr (WANT_DW) {
                const float sum = lanes_total<LANES>(dw_sum_part);
                if (lane == 0) dw_sum[element] = tile == block ? sum : dw_sum[element] + sum;
            }
            if constexpr (WANT_DB) {
                const float sum = lanes_total<LANES>(db_sum_part);
                if (lane == 0) db_sum[element] = tile == block ? sum : db_sum[element] + sum;
            }
        }
    }
}
