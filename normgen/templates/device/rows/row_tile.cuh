#pragma once
#include "normgen/async.cuh"
#include "normgen/realigned.cuh"
#include "normgen/vector.cuh"

// ---- Short misaligned rows, staged through shared memory ----------------------------------------
// A row of 151 16-bit elements begins at any element of a word, and is too short for realigned
// loads (realigned.cuh): most vectors would be at one of its ends. Reading elements from memory would
// keep too few bytes in flight. But ROWS of them together are whole words. A block moves these
// between memory and shared memory, and thread groups read their rows there, element by element;
// results overwrite operands in place, since the lane that writes an element is the one that read
// it.
//
// The groups of a warp have rows that are as many rows apart as the block has warps. If those are
// as many as a group has lanes, lanes are on different banks, whatever odd number of 2-byte
// elements a row has; neighbouring rows of 129 elements would begin on one bank.
template <int TEAM, int THREADS, int ROWS, int LENGTH> struct RowTile {
    static_assert(TEAM <= 32 && ROWS * TEAM == THREADS, "each team of lanes has a row");

    // The row, of those staged together, that a thread's group has.
    static __device__ __forceinline__ int row_of_team() {
        constexpr int WARPS = THREADS / 32;
        return int(threadIdx.x) % 32 / TEAM * WARPS + int(threadIdx.x) / 32;
    }
    // The `which`-th set of rows of a block.
    template <class T> static __device__ __forceinline__ T* at(unsigned char* base, int which) {
        static_assert(ROWS * LENGTH * sizeof(T) % 16 == 0, "a row_tile is whole words");
        return reinterpret_cast<T*>(base) + which * (ROWS * LENGTH);
    }
    // `each(word)` for a thread's part of the words of so many elements, `rest(element)` for those
    // after the last whole word.
    template <class T, class Each, class Rest>
    static __device__ __forceinline__ void visit(int elements, Each each, Rest rest) {
        constexpr int EACH = ELEMENTS_OF_WORD<T>, WORDS = ROWS * LENGTH / EACH;
        const int words = elements / EACH;
#pragma unroll
        for (int k = 0; k * THREADS < WORDS; ++k) {
            const int word = k * THREADS + int(threadIdx.x);
            if (word < words) each(word);
        }
        if (int(threadIdx.x) < elements % EACH) rest(words * EACH + int(threadIdx.x));
    }
    // Copies rows from memory to shared memory, and back: so many elements, fewer at the end of the
    // array.
    template <class T> static __device__ __forceinline__ void fill(T* row_tile, const T* rows, int elements) {
        constexpr int EACH = ELEMENTS_OF_WORD<T>;
        visit<T>(
            elements, [&](int word) { async_copy<16>(row_tile + word * EACH, rows + word * EACH); },
            [&](int i) { row_tile[i] = rows[i]; });
    }
    template <class T>
    static __device__ __forceinline__ void empty(T* rows, const T* row_tile, int elements) {
        const auto store = [&](int word) {
            store_word(
                reinterpret_cast<uint4*>(rows) + word, reinterpret_cast<const uint4*>(row_tile)[word]);
        };
        visit<T>(elements, store, [&](int i) { rows[i] = row_tile[i]; });
    }
    // A vector of a group's row, at an aligned place.
    template <int N, class T> static __device__ __forceinline__ Vector<T, N> read(const T* place) {
        using V = Vector<T, N>;
        return {*reinterpret_cast<const typename V::word_t*>(place)};
    }
    template <class T, int N>
    static __device__ __forceinline__ void write(T* place, const Vector<T, N>& vector) {
        *reinterpret_cast<typename Vector<T, N>::word_t*>(place) = vector.word[0];
    }
};
