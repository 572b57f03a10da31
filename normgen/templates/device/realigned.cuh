#pragma once
#include "normgen/first_out.cuh"
#include "normgen/places.cuh"
#include "normgen/vector.cuh"

// ---- Misaligned rows: realigned loads and word-aligned stores -----------------------------------
// Memory is read and written in aligned words of 16 bytes. A row of 5119 16-bit elements may begin
// at any of the eight elements of a word. Its vectors are still those from a multiple of N of the
// row on: a vector is cut out of the words around it, and a word of results is put together with
// those of the thread before. So everything between loads and stores, and every bit of the results,
// is the same for all rows.
//
// `shift` counts the elements from the beginning of a word to the first of the row. Elements of
// other rows are never written, and not needed. On a GPU those before the row are read, since they
// lie in one word with its first element; those after the row are not, since memory may end there.
//
// A branch around each load would be expensive. So it is decided at compile time which of a
// thread's vectors may be at an end of the row or of a warp's slice.

template <class T> constexpr int ELEMENTS_OF_WORD = 16 / int(sizeof(T));

template <class T> __device__ __forceinline__ int shift_of(const T* row) {
    return int(reinterpret_cast<unsigned long long>(row) % 16) / int(sizeof(T));
}

// Moves parts of 4 bytes towards the first or the last, by WHOLE parts and so many `bits` (funnel
// shifts).
template <class T, int WHOLE, int FROM, int TO>
__device__ __forceinline__ void move_down(
    const unsigned int (&from)[FROM], unsigned int (&to)[TO], unsigned int bits) {
#pragma unroll
    for (int i = 0; i < TO; ++i) {
        to[i] = sizeof(T) < 4 && i + WHOLE + 1 < FROM
            ? __funnelshift_r(from[i + WHOLE], from[i + WHOLE + 1], bits)
            : from[i + WHOLE];
    }
}
template <class T, int WHOLE, int FROM, int TO>
__device__ __forceinline__ void move_up(
    const unsigned int (&from)[FROM], unsigned int (&to)[TO], unsigned int bits) {
    constexpr int LAST = FROM - TO - WHOLE;
#pragma unroll
    for (int i = 0; i < TO; ++i) {
        to[i] = sizeof(T) < 4 ? __funnelshift_l(from[LAST + i - 1], from[LAST + i], bits) : from[LAST + i];
    }
}

// The same by so many `bytes`, for all parts of several vectors. They are the same in the whole
// thread group, so that one branch takes fewer instructions than a selection per part.
template <class T, int COUNT, int FROM, int TO>
__device__ __forceinline__ void move_all_down(
    const unsigned int (&from)[COUNT][FROM], unsigned int (&to)[COUNT][TO], int bytes) {
    const unsigned int bits = bytes % 4 * 8;
    switch (bytes / 4) {
        case 0:
#pragma unroll
            for (int k = 0; k < COUNT; ++k) move_down<T, 0>(from[k], to[k], bits);
            break;
        case 1:
#pragma unroll
            for (int k = 0; k < COUNT; ++k) move_down<T, 1>(from[k], to[k], bits);
            break;
        case 2:
#pragma unroll
            for (int k = 0; k < COUNT; ++k) move_down<T, 2>(from[k], to[k], bits);
            break;
        default:
#pragma unroll
            for (int k = 0; k < COUNT; ++k) move_down<T, 3>(from[k], to[k], bits);
    }
}
template <class T, int COUNT, int FROM, int TO>
__device__ __forceinline__ void move_all_up(
    const unsigned int (&from)[COUNT][FROM], unsigned int (&to)[COUNT][TO], int bytes) {
    const unsigned int bits = bytes % 4 * 8;
    switch (bytes / 4) {
        case 0:
#pragma unroll
            for (int k = 0; k < COUNT; ++k) move_up<T, 0>(from[k], to[k], bits);
            break;
        case 1:
#pragma unroll
            for (int k = 0; k < COUNT; ++k) move_up<T, 1>(from[k], to[k], bits);
            break;
        case 2:
#pragma unroll
            for (int k = 0; k < COUNT; ++k) move_up<T, 2>(from[k], to[k], bits);
            break;
        default:
#pragma unroll
            for (int k = 0; k < COUNT; ++k) move_up<T, 3>(from[k], to[k], bits);
    }
}

// The elements from `begin` to before `end` of a word, one by one; the others are zero.
template <class T> __device__ __forceinline__ uint4 load_elements(const T* address, int begin, int end) {
    using bits_t = typename Word<int(sizeof(T))>::type;
    bits_t element[ELEMENTS_OF_WORD<T>];
#pragma unroll
    for (int i = 0; i < ELEMENTS_OF_WORD<T>; ++i) {
        element[i] = i >= begin && i < end ? reinterpret_cast<const bits_t*>(address)[i] : bits_t(0);
    }
    uint4 word;
    memcpy(&word, element, sizeof(word));
    return word;
}
// The first `count` elements of a vector that begins where a word does; the others are zero.
template <int N, class T>
__device__ __forceinline__ Vector<T, N> load_first(const T* values, int count) {
    Vector<T, N> vector;
#pragma unroll
    for (int w = 0; w < Vector<T, N>::WORDS; ++w) {
        const int begin = w * ELEMENTS_OF_WORD<T>;
        vector.word[w] = load_elements(values + begin, 0, count - begin);
    }
    return vector;
}
// Stores the elements from `begin` to before `end` of a word. The first `apart` of them lie `distance`
// further on.
template <class T>
__device__ __forceinline__ void store_elements(
    T* address, const uint4& word, int begin, int end, int apart = 0, int distance = 0) {
    using bits_t = typename Word<int(sizeof(T))>::type;
    bits_t element[ELEMENTS_OF_WORD<T>];
    memcpy(element, &word, sizeof(word));
#pragma unroll
    for (int i = 0; i < ELEMENTS_OF_WORD<T>; ++i) {
        bits_t* const to = reinterpret_cast<bits_t*>(i < apart ? address + distance : address) + i;
        if (i >= begin && i < end) *to = element[i];
    }
}

// ---- Misaligned rows in memory: the loads and stores of a layout --------------------------------

template <bool FIRST_OUT> __device__ __forceinline__ void store_word_of(uint4* address, uint4 word) {
    if constexpr (FIRST_OUT) store_word_first_out(address, word);
    else store_word(address, word);
}

struct NoL2Hints {
    __device__ __forceinline__ uint4 load_word(const uint4* address) const { return *address; }
};

// FIRST_OUT: lines that are written are the first to leave L2 (evict_first).
template <class Places, bool FIRST_OUT> struct RealignedRow : Places {
    using Places::column;
    using Places::LANES;
    using Places::item_of;
    using Places::LAST;
    static constexpr int N = Places::VECTOR, ITEMS = Places::ITEMS, LENGTH = Places::ELEMENTS;

    // Whether a thread's `item`-th vector may be the last of the row, or the last but `before`.
    static __device__ __forceinline__ constexpr bool may_be_last(int item, int before = 0) {
        return LAST < before || item == item_of(LAST - before);
    }
    // Whether a column of a thread's `item`-th vector lies beyond the end of the row.
    static __device__ __forceinline__ bool beyond(int item, int column) {
        return LENGTH % N > 0 && may_be_last(item) && column >= LENGTH;
    }

    // How many elements of a thread's `item`-th vector are the row's.
    static __device__ __forceinline__ int elements_of(int item, int column) {
        return beyond(item, column + N - 1) ? LENGTH - column : N;
    }

    // The words around a vector of a row, as far as they are the row's. The others are read by
    // `load_ends`.
    template <class T, class Hints = NoL2Hints>
    static __device__ __forceinline__ Vector<T, N, true> load_words(
        const T* row, int item, int lane, const Hints& hints = {}) {
        constexpr int EACH = ELEMENTS_OF_WORD<T>;
        const int begin = column(item, lane) - shift_of(row);
        Vector<T, N, true> vector;
#pragma unroll
        for (int w = 0; w <= Vector<T, N>::WORDS; ++w) {
            if (is_whole<T>(item, lane, begin + w * EACH)) {
                vector.word[w] = hints.load_word(reinterpret_cast<const uint4*>(row + begin) + w);
            } else vector.word[w] = {};
        }
        return vector;
    }
    // Whether a word of a vector, which begins at a column, may be read whole. On the host only the
    // vector itself is read.
    template <class T> static __device__ __forceinline__ bool is_whole(int item, int lane, int begin) {
#if defined(NORMGEN_HOST)
        return begin >= column(item, lane) && begin + ELEMENTS_OF_WORD<T> <= end_of(item, lane);
#else
        return !(may_be_last(item) || may_be_last(item, 1)) || begin + ELEMENTS_OF_WORD<T> <= LENGTH;
#endif
    }
    static __device__ __forceinline__ int end_of(int item, int lane) {
        const int end = column(item, lane) + N;
        return end < LENGTH ? end : LENGTH;
    }
    // Reads the words in which a row ends.
    template <class T>
    static __device__ __forceinline__ void load_ends(
        Vector<T, N, true> (&vectors)[ITEMS], const T* row, int lane) {
        constexpr int EACH = ELEMENTS_OF_WORD<T>;
        constexpr int WORDS = Vector<T, N>::WORDS;
        const int shift = shift_of(row);
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) {
            const int begin = column(item, lane) - shift;
            if (is_whole<T>(item, lane, begin) && is_whole<T>(item, lane, begin + WORDS * EACH)) continue;
#pragma unroll
            for (int w = 0; w <= WORDS; ++w) {
                const int first = begin + w * EACH;
                if (is_whole<T>(item, lane, first)) continue;
                vectors[item].word[w] = load_elements(
                    row + first, begin + shift - first, end_of(item, lane) - first);
            }
        }
    }
    // Realigns: moves the elements of a row's vectors to their front, once the words are there.
    template <class T, int COUNT>
    static __device__ __forceinline__ void cut_out(Vector<T, N, true> (&vectors)[COUNT], const T* row) {
        unsigned int part[COUNT][4 * Vector<T, N>::WORDS + 4], moved[COUNT][4 * Vector<T, N>::WORDS];
#pragma unroll
        for (int item = 0; item < COUNT; ++item) {
            memcpy(part[item], vectors[item].word, sizeof(part[item]));
        }
        move_all_down<T>(part, moved, shift_of(row) * int(sizeof(T)));
#pragma unroll
        for (int item = 0; item < COUNT; ++item) {
            memcpy(vectors[item].word, moved[item], sizeof(moved[item]));
        }
    }
    template <class T>
    static __device__ __forceinline__ void cut_out(Vector<T, N, true>& vector, const T* row) {
        Vector<T, N, true> one[1] = {vector};
        cut_out(one, row);
        vector = one[0];
    }

    // A vector of an operand that rows share, which begins where a word does.
    template <class T>
    static __device__ __forceinline__ Vector<T, N> load_aligned(const T* values, int item, int lane) {
        const int first = column(item, lane);
        if constexpr (LENGTH % N > 0) {
            if (may_be_last(item) && first + N > LENGTH) return load_first<N>(values + first, LENGTH - first);
        }
        return ::load_vector<N>(values + first);
    }

    // Stores a thread's vectors of a row. By all threads of the warp; `live`: whether the thread
    // has a row.
    template <class T, int COUNT>
    static __device__ __forceinline__ void store(
        T* row, const Vector<T, N> (&vectors)[COUNT], int lane, bool live) {
        constexpr int WORDS = Vector<T, N>::WORDS;
        const int place = lane % LANES;
        const int shift = shift_of(row);
        // the last word of the vector before, and the vector; the first lane of a slice gets
        // that of the slice's last vector
        unsigned int part[COUNT][4 * WORDS + 4];
#pragma unroll
        for (int item = 0; item < COUNT; ++item) {
            unsigned int handed[4];
            memcpy(part[item] + 4, vectors[item].word, sizeof(Vector<T, N>));
            memcpy(handed, &vectors[item].word[WORDS - 1], sizeof(handed));
            const int before = item > 0 ? item - 1 : COUNT - 1;
            if (place == LANES - 1) memcpy(handed, &vectors[before].word[WORDS - 1], sizeof(handed));
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                part[item][i] = __shfl_sync(0xffffffffu, handed[i], place + LANES - 1, LANES);
            }
        }
        unsigned int moved[COUNT][4 * WORDS];
        move_all_up<T>(part, moved, shift * int(sizeof(T)));
#pragma unroll
        for (int item = 0; item < COUNT; ++item) {
            Vector<T, N> vector;
            memcpy(vector.word, moved[item], sizeof(moved[item]));
            if (live && column(item, lane) < LENGTH) {
                store_words(row, vector, vectors[item], item, lane, shift);
            }
        }
    }
    // Stores a vector together with the end of the one before. The first lane of a slice has both
    // its ends, in one word.
    template <class T>
    static __device__ __forceinline__ void store_words(
        T* row, const Vector<T, N>& moved, const Vector<T, N>& vector, int item, int lane, int shift) {
        constexpr int EACH = ELEMENTS_OF_WORD<T>;
        constexpr int WORDS = Vector<T, N>::WORDS;
        const int first = column(item, lane), begin = first - shift, end = end_of(item, lane);
        const bool opens = item == 0 && lane % LANES == 0 && shift > 0;
#pragma unroll
        for (int w = 0; w < WORDS; ++w) {
            const int at = begin + w * EACH;
            const bool whole = !(w == 0 && opens) && (!may_be_last(item) || at + EACH <= LENGTH);
            if (whole) store_word_of<FIRST_OUT>(reinterpret_cast<uint4*>(row + at), moved.word[w]);
            else if (!(w == 0 && opens)) store_elements(row + at, moved.word[w], 0, end - at);
        }
        if (opens) {
            const int after = begin + ITEMS * LANES * N;  // where the next slice begins
            store_elements(
                row + begin, moved.word[0], after + shift < LENGTH ? 0 : shift, end - begin, shift,
                after - begin);
        }
        if (may_be_last(item) && end == LENGTH && begin + N < LENGTH) {
            // what moved out of the last vector of the row
            unsigned int part[1][8] = {}, rest[1][4];
            memcpy(part[0], &vector.word[WORDS - 1], 16);
            move_all_up<T>(part, rest, shift * int(sizeof(T)));
            uint4 word;
            memcpy(&word, rest[0], sizeof(word));
            store_elements(row + begin + N, word, 0, LENGTH - begin - N);
        }
    }
};

// Adds the values that memory holds already of a vector that may end beyond the row.
template <int N, class T>
__device__ __forceinline__ void add_stored_first(const T* row, int column, int length, float (&values)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
        if (column + i < length) values[i] += to_float(row[column + i]);
    }
}
