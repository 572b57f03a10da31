#pragma once

// How many of a thread's vectors find place in registers together, with `late` bytes of each element
// of theirs, beside what the elements of one vector take and vectors of `held` bytes of each element.
template <int THREADS, int MIN_BLOCKS, int VEC, int ITEMS>
__device__ __forceinline__ constexpr int vectors_together(int held, int late) {
    constexpr int ALL = 65536 / (THREADS * MIN_BLOCKS);
    const int spare = (ALL < 255 ? ALL : 255) - 16 - 3 * VEC - VEC * held / 4;
    const int together = spare * 4 / (late * VEC > 0 ? late * VEC : 1);
    return together < 1 ? 1 : together < ITEMS ? together : ITEMS;
}

// ---- Layout of a row over a thread group: which vectors a thread has ----------------------------

__device__ __forceinline__ int clamped(int value, int most) {
    return value < 0 ? 0 : value < most ? value : most;
}

// Vectors of N elements are dealt out to the threads of a group in turn, at most ITEMS to each.
template <int TEAM, int N, int ITEMS_OF_THREAD, int LENGTH> struct RowPlaces {
    static constexpr int ITEMS = ITEMS_OF_THREAD, ELEMENTS = LENGTH, VECTOR = N;
    static constexpr int LANES = TEAM < 32 ? TEAM : 32;
    static constexpr int VECTORS = (LENGTH + N - 1) / N;

    // The column at which a thread's `item`-th vector begins.
    static __device__ __forceinline__ int column(int item, int lane) { return (item * TEAM + lane) * N; }
    // Whether that vector lies in the row. Mostly known at compile time.
    static __device__ __forceinline__ bool has(int item, int lane, int) {
        return (item + 1) * TEAM <= VECTORS || item * TEAM + lane % TEAM < VECTORS;
    }
    // Elements of the row that a warp of the group has.
    static __device__ __forceinline__ int elements_of_warp(int warp) {
        constexpr int RUN = 32 * N, ROUNDS = LENGTH / (TEAM * N);
        return ROUNDS * RUN + clamped(LENGTH - (ROUNDS * TEAM + warp * 32) * N, RUN);
    }
};

// A group of several blocks: each has a contiguous slice of the row, whose vectors its threads have
// in turn. EVEN: slices have one length, in whole warps of vectors, where otherwise the last is
// shorter. This takes fewer predicates, but not always less time: a schedule chooses it.
template <int TEAM, int THREADS, int N, int ITEMS_OF_THREAD, int LENGTH, bool EVEN = false>
struct SlicedPlaces {
    static constexpr int ITEMS = ITEMS_OF_THREAD, ELEMENTS = LENGTH, VECTOR = N;
    static constexpr int LANES = 32;
    static constexpr int BLOCKS = TEAM / THREADS;
    static constexpr int VECTORS = (LENGTH + N - 1) / N;
    static constexpr int SHARE = (VECTORS + BLOCKS * 32 - 1) / (BLOCKS * 32) * 32;
    static constexpr int SLICE = EVEN && SHARE < ITEMS * THREADS ? SHARE : ITEMS * THREADS;  // vectors

    static __device__ __forceinline__ int column(int item, int lane) {
        return (lane / THREADS * SLICE + item * THREADS + lane % THREADS) * N;
    }
    static __device__ __forceinline__ bool has(int item, int lane, int column) {
        return ITEMS * TEAM == VECTORS
            || (((item + 1) * THREADS <= SLICE || item * THREADS + lane % THREADS < SLICE)
                && (BLOCKS * SLICE == VECTORS || column < LENGTH));
    }
    static __device__ __forceinline__ int elements_of_warp(int warp) {
        constexpr int RUN = 32 * N;
        const int slice = clamped(LENGTH - warp / (THREADS / 32) * SLICE * N, SLICE * N);
        return slice / (THREADS * N) * RUN
            + clamped(slice % (THREADS * N) - warp % (THREADS / 32) * RUN, RUN);
    }
};

// Rows that begin anywhere in a word of memory: each warp has a slice, so that neighbours in the row
// are neighbours in the warp. EVEN: slices of warps have one length, so that only a thread's last
// vector may lie beyond the row.
template <int TEAM, int N, int ITEMS_OF_THREAD, int LENGTH, bool EVEN = false> struct RealignedPlaces {
    static constexpr int ITEMS = ITEMS_OF_THREAD, ELEMENTS = LENGTH, VECTOR = N;
    static constexpr int LANES = TEAM < 32 ? TEAM : 32;
    static constexpr int WARPS = TEAM / LANES;
    static constexpr int VECTORS = (LENGTH + N - 1) / N, LAST = VECTORS - 1;
    static constexpr int OWN = EVEN ? (VECTORS + WARPS - 1) / WARPS : ITEMS * LANES;  // of a slice

    static __device__ __forceinline__ int column(int item, int lane) {
        if constexpr (EVEN) return (lane / LANES * OWN + item * LANES + lane % LANES) * N;
        return ((lane / LANES * ITEMS + item) * LANES + lane % LANES) * N;
    }
    static __device__ __forceinline__ bool has(int item, int lane, int column) {
        constexpr int FEWEST = VECTORS - (WARPS - 1) * OWN;  // of a slice: the last
        return ITEMS * TEAM == VECTORS || (item + 1) * LANES <= FEWEST
            || (item * LANES + lane % LANES < OWN && column < LENGTH);
    }
    // The number of a vector among its thread's.
    static __device__ __forceinline__ constexpr int item_of(int vector) { return vector % OWN / LANES; }
    static __device__ __forceinline__ int elements_of_warp(int warp) {
        return clamped(LENGTH - warp * OWN * N, OWN * N);
    }
};
