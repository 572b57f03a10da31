// ---- Tiles: a matrix piece by piece, through shared memory --------------------------------------------------------------------

// A tile of ROWS x COLUMNS elements of T in shared memory, column by column: what lies turned in memory is moved in runs of
// rows, while threads compute runs of VEC columns. The 16-byte units of a column are exchanged by its number, so that eight
// threads that touch one unit each, in one column or in eight neighbouring runs, find them in different banks.
template <class T, int ROWS, int COLUMNS, int VEC> struct Tile {
    static constexpr int PITCH = ROWS * int(sizeof(T));
    static constexpr int BYTES = PITCH * COLUMNS;
    static constexpr int UNITS = PITCH >= 128 ? 8 : PITCH / 16;
    static_assert(PITCH % 16 == 0 && (UNITS & (UNITS - 1)) == 0, "a column is a whole number of 16-byte units");

    static __device__ __forceinline__ unsigned char* at(unsigned char* base, int row, int column) {
        return base + column * PITCH + (row * int(sizeof(T)) ^ column / VEC % UNITS * 16);
    }
    // N rows of one column, from a row that N divides.
    template <int N> static __device__ __forceinline__ Vector<T, N> read(unsigned char* base, int row, int column) {
        using V = Vector<T, N>;
        V vector;
#pragma unroll
        for (int word = 0; word < V::WORDS; ++word) {
            vector.word[word] = *reinterpret_cast<const typename V::word_t*>(at(base, row + word * (N / V::WORDS), column));
        }
        return vector;
    }
    template <int N> static __device__ __forceinline__ void write(unsigned char* base, int row, int column, const Vector<T, N>& vector) {
        using V = Vector<T, N>;
#pragma unroll
        for (int word = 0; word < V::WORDS; ++word) {
            *reinterpret_cast<typename V::word_t*>(at(base, row + word * (N / V::WORDS), column)) = vector.word[word];
        }
    }
};
