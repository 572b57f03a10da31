#pragma once
#include "normgen/vector.cuh"

// ---- Tiles: a matrix transposed through shared memory -------------------------------------------

// N elements of a longer vector from element `first` on, which N divides; and the reverse.
template <int N, class T, int VEC>
__device__ __forceinline__ Vector<T, N> part_of(const Vector<T, VEC>& vector, int first) {
    Vector<T, N> part;
    memcpy(
        part.word, reinterpret_cast<const unsigned char*>(vector.word) + first * int(sizeof(T)),
        sizeof(part.word));
    return part;
}
template <int N, class T, int VEC>
__device__ __forceinline__ void put_part(Vector<T, VEC>& vector, int first, const Vector<T, N>& part) {
    memcpy(
        reinterpret_cast<unsigned char*>(vector.word) + first * int(sizeof(T)), part.word, sizeof(part.word));
}

// Transposes lines of elements. Four bytes of four lines, or two 16-bit elements of two, take one
// permutation per resulting word; packed beforehand, elements wait for their neighbours in a
// quarter or half of the registers that floats take.
template <class T, int VEC, int N>
__device__ __forceinline__ void turn(const Vector<T, VEC> (&lines)[N], Vector<T, N> (&columns)[VEC]) {
    constexpr int EACH = 4 / int(sizeof(T));  // elements of a word
    if constexpr (VEC % EACH == 0 && N % EACH == 0) {
        unsigned int from[N][VEC / EACH], to[VEC][N / EACH];
        memcpy(from, lines, sizeof(from));
#pragma unroll
        for (int i = 0; i < VEC; i += EACH) {
#pragma unroll
            for (int line = 0; line < N; line += EACH) {
                const int column = i / EACH, word = line / EACH;
                if constexpr (EACH == 1) {
                    to[i][word] = from[line][column];
                } else if constexpr (EACH == 2) {
                    to[i][word] = __byte_perm(from[line][column], from[line + 1][column], 0x5410);
                    to[i + 1][word] = __byte_perm(from[line][column], from[line + 1][column], 0x7632);
                } else {
                    const unsigned int low_01 = __byte_perm(
                        from[line][column], from[line + 1][column], 0x5140);
                    const unsigned int low_23 = __byte_perm(
                        from[line + 2][column], from[line + 3][column], 0x5140);
                    const unsigned int high_01 = __byte_perm(
                        from[line][column], from[line + 1][column], 0x7362);
                    const unsigned int high_23 = __byte_perm(
                        from[line + 2][column], from[line + 3][column], 0x7362);
                    to[i][word] = __byte_perm(low_01, low_23, 0x5410);
                    to[i + 1][word] = __byte_perm(low_01, low_23, 0x7632);
                    to[i + 2][word] = __byte_perm(high_01, high_23, 0x5410);
                    to[i + 3][word] = __byte_perm(high_01, high_23, 0x7632);
                }
            }
        }
        memcpy(columns, to, sizeof(to));
    } else {
        T from[N][VEC], to[VEC][N];
        memcpy(from, lines, sizeof(from));
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
#pragma unroll
            for (int line = 0; line < N; ++line) to[i][line] = from[line][i];
        }
        memcpy(columns, to, sizeof(to));
    }
}

// A tile of ROWS x COLUMNS elements of T in shared memory, column by column: a transposed tensor is
// moved in runs of rows, while threads compute runs of VEC columns. The 16-byte units of a column
// are swizzled by its number, so that eight threads that touch one unit each, in one column or in
// eight neighbouring runs, find them in different banks.
template <class T, int ROWS, int COLUMNS, int VEC> struct Tile {
    static constexpr int PITCH = ROWS * int(sizeof(T));
    static constexpr int BYTES = PITCH * COLUMNS;
    static constexpr int UNITS = PITCH >= 128 ? 8 : PITCH / 16;
    static_assert(
        PITCH % 16 == 0 && (UNITS & (UNITS - 1)) == 0, "a column is a whole number of 16-byte units");

    static __device__ __forceinline__ unsigned char* at(unsigned char* base, int row, int column) {
        const int swap = unsigned(column) / VEC % UNITS * 16;
        return base + column * PITCH + (row * int(sizeof(T)) ^ swap);
    }
    // N rows of one column, from a row that N divides.
    template <int N>
    static __device__ __forceinline__ Vector<T, N> read(unsigned char* base, int row, int column) {
        using V = Vector<T, N>;
        V vector;
#pragma unroll
        for (int word = 0; word < V::WORDS; ++word) {
            vector.word[word] = *reinterpret_cast<const typename V::word_t*>(
                at(base, row + word * (N / V::WORDS), column));
        }
        return vector;
    }
    template <int N>
    static __device__ __forceinline__ void write(
        unsigned char* base, int row, int column, const Vector<T, N>& vector) {
        using V = Vector<T, N>;
#pragma unroll
        for (int word = 0; word < V::WORDS; ++word) {
            *reinterpret_cast<typename V::word_t*>(
                at(base, row + word * (N / V::WORDS), column)) = vector.word[word];
        }
    }
    // Writes the columns of a patch of N lines and VEC columns, from the lines' packed elements.
    template <int N>
    static __device__ __forceinline__ void write_lines(
        unsigned char* base, int row, int column, const Vector<T, VEC> (&lines)[N]) {
        Vector<T, N> columns[VEC];
        turn(lines, columns);
        static_assert(Vector<T, N>::WORDS == 1, "a column of a patch is one word");
        unsigned char* const first = at(base, row, column);  // the units of these columns are exchanged alike
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            *reinterpret_cast<typename Vector<T, N>::word_t*>(first + i * PITCH) = columns[i].word[0];
        }
    }
};
