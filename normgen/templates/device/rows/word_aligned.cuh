#pragma once
#include "normgen/async.cuh"
#include "normgen/places.cuh"
#include "normgen/realigned.cuh"
#include "normgen/row_pipeline.cuh"
#include "normgen/vector.cuh"

// ---- Word-aligned stores: misaligned rows, and what is accumulated over them --------------------
// Realigned loads (realigned.cuh) move every element of a row twice, and exchange results between
// lanes. If the rows of a thread group all begin at the same element of a word, as those that are a
// multiple of a word's elements apart do, results can be stored by aligned words instead, and what
// is accumulated over rows goes by the same words: each thread has the columns of its words, in
// every row. Sums within a row still go by vectors of the row, so that its results have the same
// bits wherever it lies.
//
// A row of VECTORS vectors lies in as many words or in one more. The elements of that one take the
// places of the row's first word that belong to the row before: the first thread has both ends of
// the row. (One more word for the last thread would keep a whole group waiting for one warp.)
template <class T, int TEAM, int THREADS, int ITEMS, int LENGTH, int STAGES> struct WordAlignedPipeline {
    static constexpr int EACH = ELEMENTS_OF_WORD<T>;
    using Places = RealignedPlaces<TEAM, EACH, ITEMS, LENGTH, true>;
    using Row = RealignedPipeline<T, Places, THREADS, true>;
    using V = Vector<T, EACH>;

    // The word after the row's last vector, of this thread's group: after all slices.
    static __device__ __forceinline__ T* end(unsigned char* base, int stage) {
        constexpr int SLICES = THREADS / Row::LANES, TEAMS = THREADS / TEAM;
        const int word = STAGES * SLICES * (Row::SLICE + 1) + stage * TEAMS + int(threadIdx.x) / TEAM;
        return reinterpret_cast<T*>(base + word * 16);
    }
    static __device__ __forceinline__ void fill(
        unsigned char* base, int stage, const T* row, int lane, bool last) {
        Row::fill(base, stage, row, lane, last);
        if (lane != 0) return;
        const int column = Places::VECTORS * EACH - shift_of(row);
        if (Row::is_copied(column, last, true)) return async_copy<16>(end(base, stage), row + column);
#if defined(NORMGEN_HOST)
        last = true;
#endif
        if (!last) return;
#pragma unroll 1
        for (int i = 0; column + i < LENGTH; ++i) end(base, stage)[i] = row[column + i];
    }
    static __device__ __forceinline__ void clear(unsigned char* base, int stage) {
        Row::clear(base, stage);
        if (threadIdx.x % TEAM == 0) *reinterpret_cast<uint4*>(end(base, stage)) = uint4{};
    }
    // A vector of the row, cut out of its two words: moved by WHOLE parts of 4 bytes and so many
    // bits.
    template <int WHOLE>
    static __device__ __forceinline__ V cut(
        unsigned char* base, int stage, int item, int lane, unsigned int bits) {
        const Vector<T, EACH, true> words = Row::read(base, stage, item, lane);
        unsigned int part[8], moved[4];
        memcpy(part, words.word, sizeof(part));
        move_down<T, WHOLE>(part, moved, bits);
        V vector;
        memcpy(vector.word, moved, sizeof(moved));
        return vector;
    }
    // Puts the end of the row where its first word has room, once no vector is cut out of that any
    // more.
    static __device__ __forceinline__ void join(unsigned char* base, int stage, int lane, int shift) {
        if (lane < shift && Places::VECTORS * EACH - shift + lane < LENGTH) {
            first_word(base, stage)[lane] = end(base, stage)[lane];
        }
    }
    static __device__ __forceinline__ V read(unsigned char* base, int stage, int item, int lane) {
        return {*reinterpret_cast<const uint4*>(Row::at(base, stage, item * Row::LANES + lane % Row::LANES))};
    }
    // The first word of a thread's warp; of the row, for the first warp of a group.
    static __device__ __forceinline__ T* first_word(unsigned char* base, int stage) {
        return reinterpret_cast<T*>(Row::at(base, stage, 0));
    }
};

// The layout of a row over a thread group by aligned words.
template <int TEAM, int THREADS, int N, int ITEMS, int LENGTH> struct WordAlignedLayout {
    using Places = RealignedPlaces<TEAM, N, ITEMS, LENGTH, true>;

    // The column of an element of a thread's word; LENGTH or more for one outside the row.
    static __device__ __forceinline__ int column(int item, int lane, int i, int shift) {
        const int at = Places::column(item, lane) + i - shift;
        return at < 0 ? at + Places::VECTORS * N : at;
    }
    // The values of an operand that rows share, in the same layout: loaded once for all rows.
    template <class T>
    static __device__ __forceinline__ Vector<T, N> load(const T* values, int item, int lane, int shift) {
        using bits_t = typename Word<int(sizeof(T))>::type;
        bits_t element[N];
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const int at = column(item, lane, i, shift);
            element[i] = at < LENGTH ? reinterpret_cast<const bits_t*>(values)[at] : bits_t(0);
        }
        Vector<T, N> vector;
        memcpy(vector.word, element, sizeof(element));
        return vector;
    }
    template <class T>
    static __device__ __forceinline__ void add_stored(
        const T* row, int item, int lane, int shift, float (&values)[N]) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const int at = column(item, lane, i, shift);
            if (at < LENGTH) values[i] += to_float(row[at]);
        }
    }
    // Stores a word of results, except the one that has both ends of the row.
    template <class T>
    static __device__ __forceinline__ void store(
        T* row, const Vector<T, N>& vector, int item, int lane, int shift) {
        if (item == 0 && lane == 0) return;
        const int begin = Places::column(item, lane) - shift;
        if (item != Places::item_of(Places::LAST) || begin + N <= LENGTH) store_vector(row + begin, vector);
        else store_elements(row + begin, vector.word[0], 0, LENGTH - begin);
    }
    // Stores that one, which the first thread has, by as many threads as it has elements. They
    // exchange it through `word`.
    template <class T>
    static __device__ __forceinline__ void store_ends(
        T* row, const Vector<T, N>& vector, void* word, int lane, int shift, bool live) {
        if (lane >= 32) return;
        if (lane == 0) *reinterpret_cast<uint4*>(word) = vector.word[0];
        __syncwarp();
        if (lane < N && live) {
            const int at = column(0, 0, lane, shift);
            if (at < LENGTH) row[at] = static_cast<const T*>(word)[lane];
        }
    }
};

// A pass over the vectors of a row: one loop per number of whole parts of 4 bytes by which they are
// moved, so that vectors take no branch.
template <int COUNT> struct Whole { static constexpr int PARTS = COUNT; };
template <class Pass> __device__ __forceinline__ void by_whole_parts(int bytes, Pass pass) {
    switch (bytes / 4) {
        case 0: return pass(Whole<0>{});
        case 1: return pass(Whole<1>{});
        case 2: return pass(Whole<2>{});
        default: return pass(Whole<3>{});
    }
}
