// ---- Rows that begin anywhere -----------------------------------------------------------------------------------------------------
// Memory is read and written in words of 16 bytes, at multiples of 16. A row of 5119 16-bit elements begins at any of the eight
// elements of a word. Its vectors still are the elements from a multiple of N of the row on, wherever it lies: a vector is cut out of
// the words around it, and results are put together with those of the thread before. So everything between loads and stores, and
// every bit of the results, is the same for all rows.
//
// `shift` counts the elements from the beginning of a word to the first of the row. What a word holds of other rows is never
// written, and not needed; on a GPU it is read where it precedes the row, since it lies in one word with the row's first element.

template <class T> constexpr int ELEMENTS_OF_WORD = 16 / int(sizeof(T));

template <class T> __device__ __forceinline__ int shift_of(const T* row) {
    return int(reinterpret_cast<unsigned long long>(row) % 16) / int(sizeof(T));
}

// `COUNT` parts of 4 bytes, moved towards the first by less than 16 bytes; towards the last.
template <class T, int COUNT> __device__ __forceinline__ void move_down(unsigned int (&part)[COUNT], int bytes) {
#pragma unroll
    for (int i = 0; i + 2 < COUNT; ++i) part[i] = bytes & 8 ? part[i + 2] : part[i];
#pragma unroll
    for (int i = 0; i + 1 < COUNT; ++i) part[i] = bytes & 4 ? part[i + 1] : part[i];
    if constexpr (sizeof(T) < 4) {
#pragma unroll
        for (int i = 0; i + 1 < COUNT; ++i) part[i] = __funnelshift_r(part[i], part[i + 1], bytes % 4 * 8);
    }
}
template <class T, int COUNT> __device__ __forceinline__ void move_up(unsigned int (&part)[COUNT], int bytes) {
#pragma unroll
    for (int i = COUNT - 1; i >= 2; --i) part[i] = bytes & 8 ? part[i - 2] : part[i];
#pragma unroll
    for (int i = COUNT - 1; i >= 1; --i) part[i] = bytes & 4 ? part[i - 1] : part[i];
    if constexpr (sizeof(T) < 4) {
#pragma unroll
        for (int i = COUNT - 1; i >= 1; --i) part[i] = __funnelshift_l(part[i - 1], part[i], bytes % 4 * 8);
    }
}

// A word of which the elements from `begin` up to `end` are the row's; what follows them is not read, and zero.
template <class T> __device__ __forceinline__ uint4 load_word_of_row(const T* address, int begin, int end) {
    constexpr int EACH = ELEMENTS_OF_WORD<T>;
    using bits_t = typename Word<int(sizeof(T))>::type;
#if defined(NORMGEN_HOST)
    const bool whole = begin <= 0 && end >= EACH;
#else
    const bool whole = end >= EACH;
#endif
    uint4 word;
    if (whole) {
        word = __ldg(reinterpret_cast<const uint4*>(address));
    } else {
        bits_t element[EACH];
#pragma unroll
        for (int i = 0; i < EACH; ++i) element[i] = i >= begin && i < end ? __ldg(reinterpret_cast<const bits_t*>(address) + i) : bits_t(0);
        memcpy(&word, element, sizeof(word));
    }
    return word;
}

// The words around the vector at `column` of a row of `length` elements, from the one that holds its first element.
template <int N, class T> __device__ __forceinline__ Vector<T, N, true> load_words_around(const T* row, int column, int length) {
    constexpr int EACH = ELEMENTS_OF_WORD<T>;
    constexpr int WORDS = Vector<T, N>::WORDS;
    const int shift = shift_of(row);
    const T* const first = row + (column - shift);
    const int begin = shift - column, end = length + begin;
    Vector<T, N, true> vector;
#pragma unroll
    for (int w = 0; w < WORDS; ++w) vector.word[w] = load_word_of_row(first + w * EACH, begin - w * EACH, end - w * EACH);
    vector.word[WORDS] = load_word_of_row(first + WORDS * EACH, begin - WORDS * EACH, shift > 0 ? end - WORDS * EACH : 0);
    return vector;
}

// Moves the elements of a vector to its front.
template <class T, int N> __device__ __forceinline__ void cut_out(Vector<T, N, true>& vector, const T* row) {
    unsigned int part[4 * Vector<T, N>::WORDS + 4];
    memcpy(part, vector.word, sizeof(part));
    move_down<T>(part, shift_of(row) * int(sizeof(T)));
    memcpy(vector.word, part, sizeof(part));
}
template <class T, int N> __device__ __forceinline__ void cut_out(Vector<T, N>&, const T*) {}

// The vector at `column` of a row, or if that is SHIFTED the words around it.
template <int N, bool SHIFTED, class T> __device__ __forceinline__ Vector<T, N, SHIFTED> load_once(const T* row, int column, int length) {
    if constexpr (SHIFTED) return load_words_around<N>(row, column, length);
    else return load_once<N>(row + column);
}
template <int N, bool SHIFTED, class T>
__device__ __forceinline__ Vector<T, N, SHIFTED> load_shared_by_rows(const T* row, int column, int length) {
    if constexpr (SHIFTED) return load_words_around<N>(row, column, length);
    else return load_shared_by_rows<N>(row + column);
}

// The elements from `begin` up to `end` of a word.
template <class T> __device__ __forceinline__ void store_word_of_row(T* address, const uint4& word, int begin, int end) {
    constexpr int EACH = ELEMENTS_OF_WORD<T>;
    using bits_t = typename Word<int(sizeof(T))>::type;
    if (begin <= 0 && end >= EACH) {
        __stcs(reinterpret_cast<uint4*>(address), word);
    } else {
        bits_t element[EACH];
        memcpy(element, &word, sizeof(word));
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            if (i >= begin && i < end) __stcs(reinterpret_cast<bits_t*>(address) + i, element[i]);
        }
    }
}

// Stores the vectors that each thread has of a row. By all threads of the warp; `live`: of those that have one.
template <int TEAM, int THREADS, int LENGTH, class T, int N, int ITEMS>
__device__ __forceinline__ void store_row(T* row, const Vector<T, N> (&vectors)[ITEMS], int lane, bool live) {
    constexpr int EACH = ELEMENTS_OF_WORD<T>;
    constexpr int WORDS = Vector<T, N>::WORDS;
    constexpr int LANES = TEAM < 32 ? TEAM : 32;
    const int place = lane % LANES;
    const int shift = shift_of(row);
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int column = vector_of<TEAM, THREADS, ITEMS, true>(item, lane) * N;
        // the last word of the vector before, the vector, and room for what moves out of it
        unsigned int part[4 * WORDS + 8] = {};
        unsigned int handed[4];
        memcpy(part + 4, vectors[item].word, sizeof(Vector<T, N>));
        memcpy(handed, &vectors[item].word[WORDS - 1], sizeof(handed));
        if (item > 0 && place == LANES - 1) memcpy(handed, &vectors[item - 1].word[WORDS - 1], sizeof(handed));
#pragma unroll
        for (int i = 0; i < 4; ++i) part[i] = __shfl_sync(0xffffffffu, handed[i], place + LANES - 1, LANES);
        move_up<T>(part, shift * int(sizeof(T)));
        if (!live || column >= LENGTH) continue;
        const bool first = item == 0 && place == 0;
        const bool last = (item == ITEMS - 1 && place == LANES - 1) || column + N >= LENGTH;
        const int end = (column + N < LENGTH ? column + N : LENGTH) - column + shift;
        T* const address = row + (column - shift);
        uint4 words[WORDS + 1];
        memcpy(words, part + 4, sizeof(words));
#pragma unroll
        for (int w = 0; w < WORDS; ++w) {
            store_word_of_row(address + w * EACH, words[w], first && w == 0 ? shift : 0, end - w * EACH);
        }
        if (last && end > N) store_word_of_row(address + N, words[WORDS], 0, end - N);
    }
}

// Adds what the memory holds already.
template <bool SHIFTED, int N, class T> __device__ __forceinline__ void add_stored(const T* row, int column, int length, float (&values)[N]) {
    if constexpr (SHIFTED) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            if (column + i < length) values[i] += to_float(row[column + i]);
        }
    } else {
        add_stored(row + column, values);
    }
}

// ---- The ring of rows --------------------------------------------------------------------------------------------------------------

// One operand's part of the ring: STAGES rows, of which each thread reads its ITEMS vectors.
template <class T, int N, int TEAM, int THREADS, int ITEMS, int LENGTH, bool BULK, bool SHIFTED> struct RowRing {
    using Slots = Ring<T, N, THREADS, BULK>;
    using V = Vector<T, N>;

    template <bool PASSING> static __device__ __forceinline__ void fill(unsigned char* base, int stage, const T* row, int lane) {
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) {
            const int column = vector_of<TEAM, THREADS, ITEMS>(item, lane) * N;
            if (ITEMS * TEAM * N == LENGTH || column < LENGTH) {
                Slots::template fill<PASSING>(base, stage * ITEMS + item, row + column);
            }
        }
    }
    static __device__ __forceinline__ void clear(unsigned char* base, int stage) {
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) Slots::write(base, stage * ITEMS + item, {});
    }
    static __device__ __forceinline__ V read(unsigned char* base, int stage, int item, const T*, int) {
        return Slots::read(base, stage * ITEMS + item);
    }
};

// Rows that begin anywhere arrive word by word, in a slice for each warp, from which its lanes cut their vectors. The word after a
// slice is the first of the next one too: there is place for it, SPARE bytes in all stages together.
template <class T, int N, int TEAM, int THREADS, int ITEMS, int LENGTH, bool BULK>
struct RowRing<T, N, TEAM, THREADS, ITEMS, LENGTH, BULK, true> {
    using V = Vector<T, N>;
    static constexpr int EACH = ELEMENTS_OF_WORD<T>;
    static constexpr int LANES = TEAM < 32 ? TEAM : 32;
    static constexpr int SLICE = ITEMS * LANES * V::WORDS;  // words, without the one after

    static __device__ __forceinline__ unsigned char* at(unsigned char* base, int stage, int word) {
        return base + ((stage * (THREADS / LANES) + int(threadIdx.x) / LANES) * (SLICE + 1) + word) * 16;
    }
    template <bool PASSING> static __device__ __forceinline__ void fill(unsigned char* base, int stage, const T* row, int lane) {
        const int place = lane % LANES;
        const int shift = shift_of(row);
        const int column = vector_of<TEAM, THREADS, ITEMS, true>(0, lane - place) * N - shift;
#pragma unroll
        for (int k = 0; k < ITEMS * V::WORDS; ++k) {
            copy_word<PASSING>(base, stage, k * LANES + place, row, column);
        }
        if (place == 0) copy_word<PASSING>(base, stage, SLICE, row, column);
    }
    // `column`: where in the row the slice begins; less than zero where its first word holds elements of another row.
    template <bool PASSING>
    static __device__ __forceinline__ void copy_word(unsigned char* base, int stage, int word, const T* row, int column) {
        const int begin = column + word * EACH;
        if (begin >= LENGTH) return;
        const int left = LENGTH - begin;
        async_copy_word<PASSING>(at(base, stage, word), row + begin, begin < 0 ? -begin : 0, left < EACH ? left : EACH);
    }
    static __device__ __forceinline__ void clear(unsigned char* base, int stage) {
#pragma unroll
        for (int k = 0; k < ITEMS * V::WORDS; ++k) {
            *reinterpret_cast<uint4*>(at(base, stage, k * LANES + int(threadIdx.x) % LANES)) = uint4{};
        }
        if (threadIdx.x % LANES == 0) *reinterpret_cast<uint4*>(at(base, stage, SLICE)) = uint4{};
    }
    static __device__ __forceinline__ V read(unsigned char* base, int stage, int item, const T* row, int lane) {
        const int place = lane % LANES;
        const int shift = shift_of(row);
        const int next = vector_of<TEAM, THREADS, ITEMS, true>(item, lane) * N + N - shift;
        Vector<T, N, true> words;
#pragma unroll
        for (int w = 0; w <= V::WORDS; ++w) {
            // a word that lies beyond the row has not been filled
            words.word[w] = w < V::WORDS || next < LENGTH
                ? *reinterpret_cast<const uint4*>(at(base, stage, (item * LANES + place) * V::WORDS + w)) : uint4{};
        }
        cut_out(words, row);
        V vector;
        memcpy(vector.word, words.word, sizeof(vector.word));
        return vector;
    }
};
