#pragma once
#include "normgen/vector.cuh"

// ---- Rows of several contiguous segments that are summed over the segments ----------------------

// A segment of a row (a piece) has SPAN elements. The vectors of a block's threads, side by side,
// are whole segments, so that each thread has the same places of a segment in all its vectors, and
// adds those up. Then the block adds up its threads' sums, always in the same order.
template <class Layout, int TEAM, int THREADS, int VEC, int SPAN> struct PiecePlaces {
    static_assert(
        TEAM % THREADS == 0 && THREADS * VEC % SPAN == 0, "a block has part of one row, in whole pieces");
    static constexpr int FOUND = THREADS * VEC;
    // elements that the threads add up to, first
    static constexpr int TOGETHER = SPAN < THREADS ? THREADS / SPAN * SPAN : SPAN;
    static constexpr int SHARES = TOGETHER / SPAN;

    // A thread's sums of its places, in words of its own: those of `store_vector` go to global
    // memory.
    static __device__ __forceinline__ void put(float* found, const float (&values)[VEC]) {
        using Values = Vector<float, VEC>;
        const Values own = pack<float>(values);
        auto* const words = reinterpret_cast<typename Values::word_t*>(found) + threadIdx.x * Values::WORDS;
#pragma unroll
        for (int i = 0; i < Values::WORDS; ++i) words[i] = own.word[i];
    }

    // Every thread adds up elements of one place, and so one part of the segments.
    static __device__ __forceinline__ void add(float* found) {
        for (int own = threadIdx.x; own < TOGETHER; own += THREADS) {
            float sum = 0.f;
#pragma unroll
            for (int k = 0; k < (FOUND + TOGETHER - 1) / TOGETHER; ++k) {
                if ((k + 1) * TOGETHER <= FOUND || k * TOGETHER + own < FOUND) {
                    sum += found[k * TOGETHER + own];
                }
            }
            found[own] = sum;
        }
    }

    // The block's sum of a place, once the threads' are there.
    static __device__ __forceinline__ float total(const float* found, int place) {
        float sum = 0.f;
#pragma unroll
        for (int share = 0; share < SHARES; ++share) sum += found[share * SPAN + place];
        return sum;
    }

    // Leaves `value(place)` of each place, as [block of a row][row][segment]. A block's first
    // vector may lie within a segment.
    template <class Index, class Value>
    static __device__ __forceinline__ void leave(
        float* partial, Index rows, Index row, int lane, Value value) {
        const int rank = lane / THREADS;
        const int first = Layout::column(0, rank * THREADS) % SPAN;
        for (int place = threadIdx.x; place < SPAN; place += THREADS) {
            partial[(rank * rows + row) * SPAN + (first + place) % SPAN] = value(place);
        }
    }
};
