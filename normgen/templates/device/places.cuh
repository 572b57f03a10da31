// ---- Places: which vectors of its row a thread has -----------------------------------------------------------------------------------

// Vectors of N elements are dealt out to the threads of a team in turn, ITEMS to each at most; in a cluster each block has a slice of
// the row, which can be copied as one. SHIFTED: each warp has a slice, so that neighbours in a row are neighbours in a warp. EVEN: the
// slices of a cluster's blocks are of one length, in whole runs of a warp, where otherwise the last is shorter; and so are those of
// warps, vector by vector, so that none but a thread's last vector may be beyond the row. Rows of 50176 elements in pieces take 1168
// instructions with it and 1456 without; a backward over rows of 7168 in four blocks is 4 % slower with it.
template <int TEAM, int THREADS, int N, int ITEMS, int LENGTH, bool SHIFTED, bool EVEN = false> struct RowPlaces {
    static constexpr bool CLUSTER = TEAM > THREADS;
    static constexpr int LANES = TEAM < 32 ? TEAM : 32;
    static constexpr int BLOCKS = CLUSTER ? TEAM / THREADS : 1;
    static constexpr int VECTORS = (LENGTH + N - 1) / N;
    static constexpr int LAST = VECTORS - 1;
    static constexpr int SHARE = (VECTORS + BLOCKS * 32 - 1) / (BLOCKS * 32) * 32;
    static constexpr int SLICE = EVEN && CLUSTER && SHARE < ITEMS * THREADS ? SHARE : ITEMS * THREADS;  // vectors of a block
    static constexpr int WARPS = TEAM / LANES;
    static constexpr int OWN = EVEN ? (VECTORS + WARPS - 1) / WARPS : ITEMS * LANES;  // of a warp, where those have slices
    static constexpr int ELEMENTS = LENGTH, VECTOR = N;

    // Where in the row a thread's `item`-th vector begins.
    static __device__ __forceinline__ int column(int item, int lane) {
        if constexpr (SHIFTED && EVEN) return (lane / LANES * OWN + item * LANES + lane % LANES) * N;
        if constexpr (SHIFTED) return ((lane / LANES * ITEMS + item) * LANES + lane % LANES) * N;
        if constexpr (CLUSTER) return (lane / THREADS * SLICE + item * THREADS + lane % THREADS) * N;
        return (item * TEAM + lane) * N;
    }
    // Whether the row has that vector. Of most this is known ahead.
    static __device__ __forceinline__ bool has(int item, int lane, int column) {
        if constexpr (ITEMS * TEAM == VECTORS) return true;
        if constexpr (SHIFTED) {
            constexpr int FEWEST = VECTORS - (WARPS - 1) * OWN;  // of a slice: the last
            return (item + 1) * LANES <= FEWEST || (item * LANES + lane % LANES < OWN && column < LENGTH);
        }
        constexpr int WIDTH = CLUSTER ? THREADS : TEAM, OF_BLOCK = CLUSTER ? SLICE : VECTORS;
        return ((item + 1) * WIDTH <= OF_BLOCK || item * WIDTH + lane % WIDTH < OF_BLOCK) && (BLOCKS * OF_BLOCK == VECTORS || column < LENGTH);
    }
    // Which of its thread's vectors one is, in rows that are SHIFTED.
    static __device__ __forceinline__ constexpr int item_of(int vector) { return vector % OWN / LANES; }
    // How many elements of it a warp of the team has.
    static __device__ __forceinline__ int elements_of_warp(int warp) {
        constexpr int RUN = 32 * N;
        if constexpr (SHIFTED) {
            return clamped(LENGTH - warp * OWN * N, OWN * N);
        } else if constexpr (CLUSTER) {
            const int slice = clamped(LENGTH - warp / (THREADS / 32) * SLICE * N, SLICE * N);
            return slice / (THREADS * N) * RUN + clamped(slice % (THREADS * N) - warp % (THREADS / 32) * RUN, RUN);
        } else {
            constexpr int ROUNDS = LENGTH / (TEAM * N);
            return ROUNDS * RUN + clamped(LENGTH - (ROUNDS * TEAM + warp * 32) * N, RUN);
        }
    }
    static __device__ __forceinline__ int clamped(int value, int most) { return value < 0 ? 0 : value < most ? value : most; }
};
