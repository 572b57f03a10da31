#pragma once
#include "normgen/vector.cuh"

// ---- Columns that begin anywhere in a word of memory ---------------------------------------------
// The pixels of a plane lie side by side, and so do the planes of all channels. Where the length of a
// plane is no multiple of a vector, a thread's columns begin at another element of a word in each
// channel. A vector is then cut out of the aligned words around it, and a word of results is put
// together with those of the lane before. The last vector of a plane has fewer columns. Elements of
// other threads are never written; on a GPU those before a vector are read, since they lie in one word
// with its first element, and those after it where they are the plane's.

struct ColumnSpan {
    int count;    // columns of this thread; none where it is not live
    int after;    // those of the lane after it in the same plane
    bool opens;   // no lane before it has the beginning of its first word
    bool inside;  // all words around its columns end within the plane
};
template <bool REALIGNED, int VEC, int LANES, class Index>
__device__ __forceinline__ ColumnSpan span_of(Index column, Index plane, bool live) {
    if constexpr (!REALIGNED) return {};
    constexpr int SLICE = LANES < 32 ? LANES : 32;
    const int place = threadIdx.x % SLICE;
    const int left = plane - column < 2 * VEC ? int(plane - column) : 2 * VEC;
    const int count = !live ? 0 : left < VEC ? left : VEC;
    const int after = place == SLICE - 1 || left < VEC ? 0 : left - VEC;
#if defined(NORMGEN_HOST)
    const bool inside = false;  // nothing but the columns themselves is read
#else
    const bool inside = live && left == 2 * VEC;
#endif
    return {count, after, place == 0 || column == 0, inside};
}

// How many elements lie between the beginning of a word and an address.
template <int BYTES, class T> __device__ __forceinline__ int elements_before(const T* address) {
    return int(reinterpret_cast<unsigned long long>(address) % BYTES) / int(sizeof(T));
}

// Moves parts of 4 bytes towards the first, by up to a word.
template <class T, int FROM, int TO>
__device__ __forceinline__ void move_parts(unsigned int (&from)[FROM], unsigned int (&to)[TO], int bytes) {
#pragma unroll
    for (int step = FROM - TO; step > 0; step /= 2) {
#pragma unroll
        for (int i = 0; i + step < FROM; ++i) from[i] = bytes & 4 * step ? from[i + step] : from[i];
    }
#pragma unroll
    for (int i = 0; i < TO; ++i) {
        to[i] = sizeof(T) < 4 ? __funnelshift_r(from[i], from[i + 1], bytes % 4 * 8) : from[i];
    }
}

// The aligned words around N columns that lie inside a plane.
template <class T, int N>
__device__ __forceinline__ void load_around(Vector<T, N, true>& vector, const T* address) {
    using V = Vector<T, N>;
    const T* const begin = address - elements_before<V::WORD_BYTES>(address);
    const auto* words = reinterpret_cast<const typename V::word_t*>(begin);
#pragma unroll
    for (int w = 0; w <= V::WORDS; ++w) vector.word[w] = words[w];
}

// The same of columns near the end of a plane: what is not whole is read one by one.
template <class T, int N>
__device__ __forceinline__ void load_near_end(Vector<T, N, true>& vector, const T* address, int count) {
    using V = Vector<T, N>;
    using bits_t = typename Word<int(sizeof(T))>::type;
    constexpr int EACH = V::WORD_BYTES / int(sizeof(T));
    const int before = elements_before<V::WORD_BYTES>(address);
#pragma unroll
    for (int w = 0; w <= V::WORDS; ++w) {
        const int first = w * EACH - before;
        if (first >= 0 && first + EACH <= count) {
            vector.word[w] = *reinterpret_cast<const typename V::word_t*>(address + first);
            continue;
        }
        bits_t element[EACH];
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const bool there = (first + i >= 0) & (first + i < count);
            element[i] = there ? reinterpret_cast<const bits_t*>(address)[first + i] : bits_t(0);
        }
        memcpy(&vector.word[w], element, sizeof(element));
    }
}

// The columns, cut out of the words around them.
template <class T, int N>
__device__ __forceinline__ Vector<T, N> cut_columns(const Vector<T, N, true>& around, const T* address) {
    using V = Vector<T, N>;
    unsigned int from[sizeof(around) / 4], to[sizeof(V) / 4];
    memcpy(from, around.word, sizeof(from));
    move_parts<T>(from, to, elements_before<V::WORD_BYTES>(address) * int(sizeof(T)));
    V vector;
    memcpy(vector.word, to, sizeof(to));
    return vector;
}

// One store, where the compiler would make two of a word whose parts it has moved.
__device__ __forceinline__ void store_whole(unsigned int* address, unsigned int word) { *address = word; }
__device__ __forceinline__ void store_whole(uint4* address, uint4 word) { store_word(address, word); }
__device__ __forceinline__ void store_whole(uint2* address, uint2 word) {
#if defined(NORMGEN_HOST)
    *address = word;
#else
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(address), "r"(word.x), "r"(word.y) : "memory");
#endif
}

// Stores the columns of the lanes of a member. By all of these in a warp.
template <int LANES, class T, int N>
__device__ __forceinline__ void store_misaligned(
    T* address, const Vector<T, N>& vector, const ColumnSpan& span) {
    using V = Vector<T, N>;
    using bits_t = typename Word<int(sizeof(T))>::type;
    constexpr int EACH = V::WORD_BYTES / int(sizeof(T)), WORD_PARTS = V::WORD_BYTES / 4;
    constexpr int SLICE = LANES < 32 ? LANES : 32, PARTS = sizeof(V) / 4;
    constexpr unsigned int FIRST = SLICE < 32 ? (1u << SLICE % 32) - 1 : ~0u;
    const unsigned int mask = FIRST << threadIdx.x % 32 / SLICE * SLICE;
    const int before = elements_before<V::WORD_BYTES>(address);
    // the last word of the lane before, and the vector
    unsigned int from[PARTS + WORD_PARTS], to[PARTS];
    memcpy(from + WORD_PARTS, vector.word, sizeof(V));
#pragma unroll
    for (int i = 0; i < WORD_PARTS; ++i) from[i] = __shfl_up_sync(mask, from[PARTS + i], 1, SLICE);
    move_parts<T>(from, to, (EACH - before) * int(sizeof(T)));
    V moved;
    memcpy(moved.word, to, sizeof(to));
    // elements of words that are not whole: the first ones, and those from `tail` on
    const int head = span.opens && before > 0 ? EACH - before : 0;
    const bool ends = span.after < EACH - before;  // the lane after has not all of the word
    const int tail = ends ? (span.count + before) / EACH * EACH - before : N;
#pragma unroll
    for (int w = 0; w < V::WORDS; ++w) {
        const int first = w * EACH - before;
        if (first + EACH <= span.count && !(w == 0 && head > 0)) {
            store_whole(reinterpret_cast<typename V::word_t*>(address + first), moved.word[w]);
        }
    }
    if (head > 0 || tail < span.count) {
        bits_t element[N];
        memcpy(element, vector.word, sizeof(element));
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const bool alone = (i < head) | (i >= tail);
            if (alone & (i < span.count)) reinterpret_cast<bits_t*>(address)[i] = element[i];
        }
    }
}

// Values that each column has one of.
template <class T, int N>
__device__ __forceinline__ void load_some_columns(const T* address, float (&values)[N], int count) {
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = i < count ? to_float(address[i]) : 0.f;
}
template <class T, int N>
__device__ __forceinline__ void store_some_columns(T* address, const float (&values)[N], int count) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
        if (i < count) address[i] = from_float<T>(values[i]);
    }
}
template <class T, int N>
__device__ __forceinline__ void add_some_columns(const T* address, float (&values)[N], int count) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
        if (i < count) values[i] += to_float(address[i]);
    }
}
