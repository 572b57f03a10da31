#pragma once
#include "normgen/realigned.cuh"
#include "normgen/vector.cuh"

// ---- Rows that stream by, vector by vector ------------------------------------------------------
// VEC elements of a thread at a time, from a multiple of VEC of the row on; neighbours in a warp
// have neighbours in the row. REALIGNED: rows begin anywhere in a word of memory, and the last
// vector may be the row's in part. What is loaded are then the words around a vector, of which
// `cut_out` makes the vector.

template <int VEC, int LENGTH, bool REALIGNED> struct StreamedRow {
    // Whether a vector is the row's in part, or an element of it is not.
    static __device__ __forceinline__ bool partial(int column) {
        return LENGTH % VEC > 0 && column + VEC > LENGTH;
    }
    static __device__ __forceinline__ bool beyond(int, int column) {
        return LENGTH % VEC > 0 && column >= LENGTH;
    }
    static __device__ __forceinline__ int end_of(int column) {
        return partial(column) ? LENGTH : column + VEC;
    }

    // How many elements of a vector are the row's.
    static __device__ __forceinline__ int elements_of(int, int column) {
        return partial(column) ? LENGTH - column : VEC;
    }

    template <class T>
    static __device__ __forceinline__ Vector<T, VEC, REALIGNED> load(const T* row, int column) {
        if constexpr (REALIGNED) {
            constexpr int EACH = ELEMENTS_OF_WORD<T>;
            constexpr int WORDS = Vector<T, VEC>::WORDS;
            const int shift = shift_of(row), begin = column - shift;
            Vector<T, VEC, true> vector;
#pragma unroll
            for (int w = 0; w <= WORDS; ++w) {
                const int at = begin + w * EACH;
                if (is_whole<T>(column, at)) {
                    vector.word[w] = *reinterpret_cast<const uint4*>(row + at);
                } else vector.word[w] = load_elements(row + at, column - at, end_of(column) - at);
            }
            return vector;
        } else return ::load_vector<VEC>(row + column);
    }
    // Has a vector brought into the second-level cache.
    template <class T> static __device__ __forceinline__ void ask(const T* row, int column) {
#if !defined(NORMGEN_HOST)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(row + column));
#endif
    }
    // Whether a word around a vector may be read whole. On the host only the vector itself is read.
    template <class T> static __device__ __forceinline__ bool is_whole(int column, int at) {
#if defined(NORMGEN_HOST)
        return at >= column && at + ELEMENTS_OF_WORD<T> <= end_of(column);
#else
        return at + ELEMENTS_OF_WORD<T> <= LENGTH;
#endif
    }
    template <class T>
    static __device__ __forceinline__ Vector<T, VEC> cut_out(
        const Vector<T, VEC, REALIGNED>& words, const T* row) {
        if constexpr (REALIGNED) {
            unsigned int part[1][4 * Vector<T, VEC>::WORDS + 4], moved[1][4 * Vector<T, VEC>::WORDS];
            memcpy(part[0], words.word, sizeof(part[0]));
            move_all_down<T>(part, moved, shift_of(row) * int(sizeof(T)));
            Vector<T, VEC> vector;
            memcpy(vector.word, moved[0], sizeof(moved[0]));
            return vector;
        } else return words;
    }

    template <class T>
    static __device__ __forceinline__ Vector<T, VEC, REALIGNED> whole(const Vector<T, VEC>& vector) {
        Vector<T, VEC, REALIGNED> words;
        memcpy(words.word, vector.word, sizeof(vector));
        return words;
    }
    // Adds the values of a vector that are the row's to running statistics.
    template <class Running>
    static __device__ __forceinline__ void add(Running& running, const float (&values)[VEC], int column) {
        if (!partial(column)) {
            running.add(values);
            return;
        }
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            const float one[1] = {values[i]};
            if (!beyond(0, column + i)) running.add(one);
        }
    }

    // A vector of what begins where a word does: what rows share, or is made of all of them.
    template <class T>
    static __device__ __forceinline__ Vector<T, VEC> load_aligned(const T* values, int column) {
        if constexpr (LENGTH % VEC > 0) {
            if (partial(column)) return load_first<VEC>(values + column, LENGTH - column);
        }
        return ::load_vector<VEC>(values + column);
    }
    // Stores a vector of a row, if REALIGNED by aligned words, with the end of the vector before.
    // By all threads of the warp, of which some have a column beyond the row.
    template <class T>
    static __device__ __forceinline__ void store(T* row, int column, const Vector<T, VEC>& vector) {
        if constexpr (REALIGNED) {
            constexpr int EACH = ELEMENTS_OF_WORD<T>;
            constexpr int WORDS = Vector<T, VEC>::WORDS;
            const int lane = threadIdx.x % 32, shift = shift_of(row);
            const int begin = column - shift, end = end_of(column);
            unsigned int last[4], part[1][4 * WORDS + 4], moved[1][4 * WORDS];
            memcpy(last, &vector.word[WORDS - 1], sizeof(last));
            memcpy(part[0] + 4, vector.word, sizeof(vector));
#pragma unroll
            for (int i = 0; i < 4; ++i) part[0][i] = __shfl_up_sync(0xffffffffu, last[i], 1);
            move_all_up<T>(part, moved, shift * int(sizeof(T)));
            __syncwarp();  // in-place results: a thread's words hold elements of its neighbour
            if (column >= LENGTH) return;
            Vector<T, VEC> words;
            memcpy(words.word, moved[0], sizeof(words));
#pragma unroll
            for (int w = 0; w < WORDS; ++w) {
                const int at = begin + w * EACH;
                const bool opens = w == 0 && lane == 0 && shift > 0;
                if (!opens && at + EACH <= LENGTH) {
                    store_word(reinterpret_cast<uint4*>(row + at), words.word[w]);
                } else store_elements(row + at, words.word[w], opens ? shift : 0, end - at);
            }
            if (shift > 0 && (lane == 31 || column + VEC >= LENGTH)) {  // what moved out of the last vector
                unsigned int out[1][8] = {}, rest[1][4];
                memcpy(out[0], last, sizeof(last));
                move_all_up<T>(out, rest, shift * int(sizeof(T)));
                uint4 word;
                memcpy(&word, rest[0], sizeof(word));
                store_elements(row + begin + VEC, word, 0, end - begin - VEC);
            }
        } else ::store_vector(row + column, vector);
    }
};
