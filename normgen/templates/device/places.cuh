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

// Vectors of N elements are dealt out to the threads of a group in turn, at most ITEMS to each. In
// a cluster each block has a contiguous slice of the row.
// REALIGNED: each warp has a slice, so that neighbours in the row are neighbours in the warp.
// EVEN: the slices of blocks have one length, in whole warps of vectors, where otherwise the last
// is shorter; slices of warps likewise, so that only a thread's last vector may lie beyond the row.
// This takes fewer predicates, but not always less time: a schedule chooses it.
template <int TEAM, int THREADS, int N, int ITEMS, int LENGTH, bool REALIGNED, bool EVEN = false>
struct RowPlaces {
    static constexpr bool CLUSTER = TEAM > THREADS;
    static constexpr int LANES = TEAM < 32 ? TEAM : 32;
    static constexpr int BLOCKS = CLUSTER ? TEAM / THREADS : 1;
    static constexpr int VECTORS = (LENGTH + N - 1) / N;
    static constexpr int LAST = VECTORS - 1;
    static constexpr int SHARE = (VECTORS + BLOCKS * 32 - 1) / (BLOCKS * 32) * 32;
    // vectors of a block
    static constexpr int SLICE = EVEN && CLUSTER && SHARE < ITEMS * THREADS ? SHARE : ITEMS * THREADS;
    static constexpr int WARPS = TEAM / LANES;
    // of a warp, where those have slices
    static constexpr int OWN = EVEN ? (VECTORS + WARPS - 1) / WARPS : ITEMS * LANES;
    static constexpr int ELEMENTS = LENGTH, VECTOR = N;

    // The column at which a thread's `item`-th vector begins.
    static __device__ __forceinline__ int column(int item, int lane) {
        if constexpr (REALIGNED && EVEN) return (lane / LANES * OWN + item * LANES + lane % LANES) * N;
        if constexpr (REALIGNED) return ((lane / LANES * ITEMS + item) * LANES + lane % LANES) * N;
        if constexpr (CLUSTER) return (lane / THREADS * SLICE + item * THREADS + lane % THREADS) * N;
        return (item * TEAM + lane) * N;
    }
    // Whether that vector lies in the row. Mostly known at compile time.
    static __device__ __forceinline__ bool has(int item, int lane, int column) {
        if constexpr (ITEMS * TEAM == VECTORS) return true;
        if constexpr (REALIGNED) {
            constexpr int FEWEST = VECTORS - (WARPS - 1) * OWN;  // of a slice: the last
            return (item + 1) * LANES <= FEWEST || (item * LANES + lane % LANES < OWN && column < LENGTH);
        }
        constexpr int WIDTH = CLUSTER ? THREADS : TEAM, OF_BLOCK = CLUSTER ? SLICE : VECTORS;
        return ((item + 1) * WIDTH <= OF_BLOCK || item * WIDTH + lane % WIDTH < OF_BLOCK)
            && (BLOCKS * OF_BLOCK == VECTORS || column < LENGTH);
    }
    // The number of a vector among its thread's, in rows that are REALIGNED.
    static __device__ __forceinline__ constexpr int item_of(int vector) { return vector % OWN / LANES; }
    // Elements of the row that a warp of the group has.
    static __device__ __forceinline__ int elements_of_warp(int warp) {
        constexpr int RUN = 32 * N;
        if constexpr (REALIGNED) {
            return clamped(LENGTH - warp * OWN * N, OWN * N);
        } else if constexpr (CLUSTER) {
            const int slice = clamped(LENGTH - warp / (THREADS / 32) * SLICE * N, SLICE * N);
            return slice / (THREADS * N) * RUN
                + clamped(slice % (THREADS * N) - warp % (THREADS / 32) * RUN, RUN);
        } else {
            constexpr int ROUNDS = LENGTH / (TEAM * N);
            return ROUNDS * RUN + clamped(LENGTH - (ROUNDS * TEAM + warp * 32) * N, RUN);
        }
    }
    static __device__ __forceinline__ int clamped(int value, int most) {
        return value < 0 ? 0 : value < most ? value : most;
    }
};
