#pragma once
#include "normgen/accumulators.cuh"
#include "normgen/math.cuh"
#include "normgen/partials.cuh"
#include "normgen/vector.cuh"

// ---- Second-stage reduction: the partials of all blocks, combined in a fixed order --------------

// SHARES warps combine a tile of TILE columns. Rows of partials are dealt out to their threads, as
// many side by side as a warp has lanes for; then the threads' values are combined in order. So the
// result depends on nothing but the number of partials. Lane i of the first warp has column i at
// the end.

// what a thread loads before it combines any: one of the cache's latencies for all
[[maybe_unused]] constexpr int FINAL_BATCH = 8;

// Partials are read past L1 (ld.cg): each is read once.
__device__ __forceinline__ void load_partial(const float* from, float (&to)[1]) { to[0] = __ldcg(from); }

__device__ __forceinline__ void load_partial(const float* from, float (&to)[4]) {
    const float4 four = __ldcg(reinterpret_cast<const float4*>(from));
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
}

// How many columns side by side a thread of a warp has in the end.
template <int TILE> __host__ __device__ constexpr int columns_of_thread() {
    return TILE > 32 ? TILE / 32 : 1;
}

// `count` partials of a thread's columns, combined: of `column`, which is lane % (TILE / EACH) * EACH
// of the tile, and those after it. `row_of(k)` is the row of the k-th. A block barrier is needed
// between two calls with the same scratch.
template <class Op, int TILE, int SHARES, int WIDTH, class Index, class RowOf, int EACH>
__device__ __forceinline__ void combine_partials(
    float (*scratch)[TILE], const float* partial, int column, Index count, RowOf row_of,
    float (&totals)[EACH]) {
    static_assert(EACH == columns_of_thread<TILE>(), "a thread's columns");
    constexpr int PITCH = partial_pitch(WIDTH);
    constexpr int VEC = PITCH % 4 == 0 ? 4 : 1, LANES = TILE / VEC, STEP = SHARES * (32 / LANES);
    static_assert(STEP > 0, "a warp has lanes for a tile");
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int own = VEC == EACH ? column : column - lane % TILE + lane % LANES * VEC;
    float values[VEC];
    set_all(values, Op::START);
    if (own < WIDTH) {
        for (Index first = warp % SHARES * (32 / LANES) + lane / LANES; first < count;
             first += FINAL_BATCH * STEP) {
            float found[FINAL_BATCH][VEC];
#pragma unroll
            for (int k = 0; k < FINAL_BATCH; ++k) {
                set_all(found[k], Op::START);
                if (first + k * STEP < count) {
                    load_partial(partial + row_of(first + k * STEP) * PITCH + own, found[k]);
                }
            }
#pragma unroll
            for (int k = 0; k < FINAL_BATCH; ++k) {
#pragma unroll
                for (int i = 0; i < VEC; ++i) values[i] = Op::apply(values[i], found[k][i]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < VEC; ++i) {
#pragma unroll
        for (int distance = LANES; distance < 32; distance *= 2) {
            values[i] = Op::apply(values[i], __shfl_xor_sync(0xffffffffu, values[i], distance));
        }
        if (lane < LANES) scratch[warp][lane * VEC + i] = values[i];
    }
    if constexpr (SHARES > 1) __syncthreads();
    else __syncwarp();
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        totals[i] = Op::START;
#pragma unroll
        for (int other = 0; warp % SHARES == 0 && other < SHARES; ++other) {
            totals[i] = Op::apply(totals[i], scratch[warp + other][lane * EACH % TILE + i]);
        }
    }
}

// Moments of one column: the mean in float32, and the sums of (v - mean) and (v - mean)^2, which
// hold its rounding error.
struct FinalMoments {
    float mean;
    float centred;
    float squares;
    float count;

    __device__ __forceinline__ float total() const { return mean * count + centred; }
};

template <int TILE, int SHARES, int WIDTH, class Index, class RowOf>
__device__ __forceinline__ FinalMoments merge_partials(
    PartMoments (*scratch)[TILE], const float* partial, int column, Index count, RowOf row_of) {
    constexpr int STEP = SHARES * (32 / TILE);
    static_assert(STEP > 0, "a warp has lanes for a tile");
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    PartMoments all;
    if (column < WIDTH) {
        for (Index first = warp % SHARES * (32 / TILE) + lane / TILE; first < count;
             first += FINAL_BATCH * STEP) {
            PartMoments found[FINAL_BATCH + 1];
#pragma unroll
            for (int k = 0; k < FINAL_BATCH; ++k) {
                if (first + k * STEP >= count) continue;
                const float* row = partial + row_of(first + k * STEP) * MomentsRow<WIDTH>::SIZE;
                found[k] = {
                    __ldcg(row + column), __ldcg(row + WIDTH + column), __ldcg(row + 2 * WIDTH + column),
                    __ldcg(row + 3 * WIDTH)};
            }
            found[FINAL_BATCH] = all;
            all = merged<FINAL_BATCH + 1>(FINAL_BATCH + 1, [&](int k) { return found[k]; });
        }
    }
#pragma unroll
    for (int distance = TILE; distance < 32; distance *= 2) all = merged(all, shuffle_down(all, distance));
    if (lane < TILE) scratch[warp][lane] = all;
    if constexpr (SHARES > 1) {
        __syncthreads();
        if (warp % SHARES == 0) {
            all = merged(SHARES, [&](int other) { return scratch[warp + other][lane % TILE]; });
        }
    }
    const float mean = all.pivot + all.residual;
    const float missed = if_finite((all.pivot - mean) + all.residual);
    return {mean, missed * all.count, all.squares + square(missed) * all.count, all.count};
}

// A state before its update: a plain load, since its memory is written by the same kernel.
template <class T> __device__ __forceinline__ float load_state(const T* address) {
    return to_float(*address);
}
