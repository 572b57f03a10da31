#pragma once
#include "normgen/async.cuh"
#include "normgen/places.cuh"
#include "normgen/realigned.cuh"
#include "normgen/vector.cuh"

// ---- Multistage pipeline of rows in shared memory -----------------------------------------------

// One operand's part of the pipeline: STAGES rows, of which each thread reads its ITEMS vectors.
// With PLACES > 0 it holds so many vectors per thread, of whichever rows, and `stage` is the place
// of a row's first vector (refill by vector).
template <class T, class Places, int THREADS, bool BULK, int PLACES = 0> struct RowPipeline {
    static constexpr int N = Places::VECTOR, ITEMS = Places::ITEMS;
    using Slots = Pipeline<T, N, THREADS, BULK>;
    using V = Vector<T, N>;

    static __device__ __forceinline__ int slot(int stage, int item) {
        if constexpr (PLACES == 0) return stage * ITEMS + item;
        return wrapped<PLACES>(stage + item);
    }
    static __device__ __forceinline__ void fill(
        unsigned char* base, int stage, const T* row, int lane, bool) {
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) {
            const int column = Places::column(item, lane);
            if (Places::has(item, lane, column)) Slots::fill(base, slot(stage, item), row + column);
        }
    }
    static __device__ __forceinline__ void clear(unsigned char* base, int stage) {
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) Slots::write(base, stage * ITEMS + item, {});
    }
    static __device__ __forceinline__ V read(unsigned char* base, int stage, int item, int) {
        return Slots::read(base, slot(stage, item));
    }
};

// Misaligned rows arrive by aligned words, one slice per warp, from which its lanes cut their
// vectors. The word after a slice is also the first of the next slice; there is room for it: SPARE
// bytes in all stages together.
template <class T, class Places, int THREADS, bool EVEN = false> struct RealignedPipeline {
    static constexpr int N = Places::VECTOR, ITEMS = Places::ITEMS, LENGTH = Places::ELEMENTS;
    using V = Vector<T, N>;
    static constexpr int EACH = ELEMENTS_OF_WORD<T>;
    static constexpr int LANES = Places::LANES;
    // words that there is place for, without the one after
    static constexpr int SLICE = ITEMS * LANES * V::WORDS;
    static constexpr int OWN = Places::OWN * V::WORDS;      // that are the slice's

    static __device__ __forceinline__ unsigned char* at(unsigned char* base, int stage, int word) {
        return base + ((stage * (THREADS / LANES) + int(threadIdx.x) / LANES) * (SLICE + 1) + word) * 16;
    }
    // The columns that a slice's lanes use: of its vectors, or of its words (EVEN), and in the word
    // after it the end of its last vector.
    struct Used {
        int from, to;
        __device__ __forceinline__ explicit Used(int begin, int shift)
            : from(begin + (EVEN ? 0 : shift)), to(begin + OWN * EACH + shift) {
            if (from < 0) from = 0;
            if (to > LENGTH) to = LENGTH;
        }
        __device__ __forceinline__ Used() : from(0), to(LENGTH) {}  // all of the row
    };
    // `last`: whether memory may end where the row does. Then the row's last word is read by
    // elements. (A shorter asynchronous copy is no alternative: ptxas may widen it to 16 bytes.)
    static __device__ __forceinline__ void fill(
        unsigned char* base, int stage, const T* row, int lane, bool last) {
        const int place = lane % LANES;
        const int shift = shift_of(row), begin = Places::column(0, lane - place) - shift;
        const Used used(begin, shift);
#pragma unroll
        for (int k = 0; k < ITEMS * V::WORDS; ++k) {
            const int column = begin + (k * LANES + place) * EACH;
            const bool needed = (k + 1) * LANES <= OWN || k * LANES + place <= OWN;
            if (needed && is_copied(column, last, may_end(k), used)) {
                async_copy<16>(at(base, stage, k * LANES + place), row + column);
            }
        }
        const int after = begin + SLICE * EACH;
        if (OWN == SLICE && place == 0 && is_copied(after, last, true, used)) {
            async_copy<16>(at(base, stage, SLICE), row + after);
        }
#if defined(NORMGEN_HOST)
        last = true;
#endif
        if (!last) return;
#pragma unroll 1
        for (int word = place; word <= OWN; word += LANES) {
            const int column = begin + word * EACH;
            if (is_copied(column, last, true, used)) continue;
#pragma unroll 1
            for (int i = 0; i < EACH; ++i) {
                const bool inside = column + i >= used.from && column + i < used.to;
                reinterpret_cast<T*>(at(base, stage, word))[i] = inside ? row[column + i] : T(0.f);
            }
        }
    }
    // Whether the word that begins at a column may be read whole. On the host no element is read
    // that is not used: it may be stored in place already.
    static __device__ __forceinline__ bool is_copied(
        int column, bool last, bool may_end, const Used& used = {}) {
#if defined(NORMGEN_HOST)
        return column >= used.from && column + EACH <= used.to;
#else
        return !may_end || column + (last ? EACH - 1 : 0) < LENGTH;
#endif
    }
    // Whether the row may end in the k-th word of a thread, or before: its last word is one of two.
    static __device__ __forceinline__ constexpr bool may_end(int k) {
        constexpr int END = LENGTH / EACH;
        constexpr bool covers = OWN * Places::WARPS - END <= LANES;
        return !covers || k >= OWN / LANES || k == ITEMS * V::WORDS - 1 || k == END % OWN / LANES
            || k == (END + 1) % OWN / LANES;
    }
    static __device__ __forceinline__ void clear(unsigned char* base, int stage) {
#pragma unroll
        for (int k = 0; k < ITEMS * V::WORDS; ++k) {
            *reinterpret_cast<uint4*>(at(base, stage, k * LANES + int(threadIdx.x) % LANES)) = uint4{};
        }
        if (threadIdx.x % LANES == 0) *reinterpret_cast<uint4*>(at(base, stage, SLICE)) = uint4{};
    }
    static __device__ __forceinline__ Vector<T, N, true> read(
        unsigned char* base, int stage, int item, int lane) {
        Vector<T, N, true> words;
#pragma unroll
        for (int w = 0; w <= V::WORDS; ++w) {
            words.word[w] = *reinterpret_cast<const uint4*>(
                at(base, stage, (item * LANES + lane % LANES) * V::WORDS + w));
        }
        return words;
    }
};
