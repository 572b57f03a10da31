// ---- Finalising: the partials of all blocks, combined in fixed order -------------------------------------------------------------

// `count` partial rows of one column, combined; `row_of(k)` is the k-th of them. Warps deal the rows out in turn, then what they
// found is combined from warp 0 up, so that the result depends on nothing but the number of partials. Valid in warp 0. Between two
// calls with the same scratch the block has to meet at a barrier.
template <class Op, int THREADS, class Index, class RowOf>
__device__ __forceinline__ float combine_partials(
    float (*scratch)[32], const float* partial, int width, int column, Index count, RowOf row_of) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float value = Op::START;
    if (column < width) {
#pragma unroll 8
        for (Index k = warp; k < count; k += THREADS / 32) {
            value = Op::apply(value, __ldcg(partial + row_of(k) * width + column));
        }
    }
    scratch[warp][lane] = value;
    __syncthreads();
    float total = Op::START;
    if (warp == 0) {
#pragma unroll
        for (int other = 0; other < THREADS / 32; ++other) total = Op::apply(total, scratch[other][lane]);
    }
    return total;
}

template <int THREADS, class Index, class RowOf>
__device__ __forceinline__ float add_partials(
    float (*scratch)[32], const float* partial, int width, int column, Index count, RowOf row_of) {
    return combine_partials<Sum, THREADS>(scratch, partial, width, column, count, row_of);
}

// The moments of one column: its mean in f32, and what the mean misses, in the sums of (v - mean) and (v - mean)^2.
struct FinalMoments {
    float mean;
    float centred;
    float squares;
    float count;

    __device__ __forceinline__ float total() const { return mean * count + centred; }
};

template <int THREADS, int WIDTH, class Index, class RowOf>
__device__ __forceinline__ FinalMoments merge_partials(
    PartMoments (*scratch)[32], const float* partial, int column, Index count, RowOf row_of) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const Index own = warp < count ? (count - warp + THREADS / 32 - 1) / (THREADS / 32) : 0;
    scratch[warp][lane] = merged(column < WIDTH ? own : 0, [&](Index k) -> PartMoments {
        const float* row = partial + row_of(warp + k * (THREADS / 32)) * MomentsRow<WIDTH>::SIZE;
        return {__ldcg(row + column), __ldcg(row + WIDTH + column), __ldcg(row + 2 * WIDTH + column), __ldcg(row + 3 * WIDTH)};
    });
    __syncthreads();
    PartMoments all;
    if (warp == 0) all = merged(THREADS / 32, [&](int other) { return scratch[other][lane]; });
    const float mean = all.pivot + all.residual;
    const float missed = (all.pivot - mean) + all.residual;
    return {mean, missed * all.count, all.squares + square(missed) * all.count, all.count};
}

// What a state holds before it is updated: not a load that assumes memory that nobody writes.
template <class T> __device__ __forceinline__ float load_state(const T* address) { return to_float(*address); }
