constexpr int THREADS = 512;  // threads of a block
constexpr int LENGTH = 1;  // elements of a row
constexpr int TILE = 8;  // columns of a tile of the kernel that combines partials
constexpr int SHARES = 16;  // warps that share such a tile
using index_t = int;  // types of row numbers and strides, and of where rows begin
using dw_t = __nv_bfloat16;  // type of this operand's elements

// gradient dw[D]: like w = sum[...](rstd * dy * x)
//
// Adds the partials that the blocks of the row kernel left, TILE columns in SHARES warps. blockIdx.y is the
// result.
extern "C" __global__ void __launch_bounds__(THREADS) rmsnorm_backward_second_stage(
    dw_t* __restrict__ dw_ptr,
    float* dw_sum_partial,
    int blocks_per_segment) {
    __shared__ float scratch[THREADS / 32][TILE];
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    constexpr int EACH = columns_of_thread<TILE>();  // columns of a thread
    const index_t tile = index_t(blockIdx.x) * (THREADS / 32 / SHARES) + warp / SHARES;

    // dw
    if (blockIdx.y == 0) {
        constexpr int WIDTH = LENGTH;
        constexpr int TILES = (WIDTH + TILE - 1) / TILE;
        const index_t outer = tile / TILES;
        // nothing beyond the last
        const int first = (outer < 1 ? int(tile % TILES) * TILE : WIDTH) + lane * EACH % TILE;
        const auto row_of = [&](index_t k) -> index_t {
            return k;
        };
        float dw_sum_columns[EACH];
        combine_partials<Sum, TILE, SHARES, WIDTH>(scratch, dw_sum_partial, first,
            index_t(blocks_per_segment), row_of, dw_sum_columns);
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int column = first + i;
            if (warp % SHARES != 0 || lane >= TILE || column >= WIDTH) continue;
            const float dw_sum = dw_sum_columns[i];
            store_scalar<false>(dw_ptr + column, dw_sum);
        }
    }
}
