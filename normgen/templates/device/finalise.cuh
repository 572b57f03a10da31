// ---- Finalising: the partials of all blocks, added in fixed order --------------------------------------------------------------

// The sum over `count` partial rows of one column; `row_of(k)` is the k-th of them. Warps deal the rows out in turn, then their
// sums are added from warp 0 up, so that the result depends on nothing but the number of partials. Valid in warp 0. Between two
// calls with the same scratch the block has to meet at a barrier.
template <int THREADS, class Index, class RowOf>
__device__ __forceinline__ float add_partials(
    float (*scratch)[32], const float* partial, int width, int column, Index count, RowOf row_of) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float sum = 0.f;
    if (column < width) {
#pragma unroll 8
        for (Index k = warp; k < count; k += THREADS / 32) sum += __ldcg(partial + row_of(k) * width + column);
    }
    scratch[warp][lane] = sum;
    __syncthreads();
    float total = 0.f;
    if (warp == 0) {
#pragma unroll
        for (int other = 0; other < THREADS / 32; ++other) total += scratch[other][lane];
    }
    return total;
}
