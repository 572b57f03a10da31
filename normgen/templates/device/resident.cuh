// ---- Resident slices: blocks that keep what they read until all of their segment have met ------------------------------------------
// As in spread rows, blocks meet in memory, words tell what is there, and none waits for one that may not run (spread.cuh). What they
// leave is a row of moments: of every element of a row, or of every group of neighbours.

constexpr int MEETING_TILE = 8;  // groups of neighbours that a warp merges together, four members side by side

// A block among those of a segment, whose members leave SIZE floats each.
template <int MEMBERS, int THREADS, int SIZE> struct Meeting : Spread<MEMBERS, THREADS, 1> {
    using Rows = Spread<MEMBERS, THREADS, 1>;
    float* found;  // [member][SIZE]

    template <class Index>
    __device__ __forceinline__ Meeting(SpreadScratch<THREADS, 1>& scratch, word_t* words, float* met, Index segment, int home)
        : Rows(scratch, words, met, segment, home), found(met + segment * (MEMBERS * SIZE)) {}

    // What the block has found of this slice lies in `own`, in shared memory. After it the block is away, or what all members found may
    // be read, and `own` written again.
    __device__ __forceinline__ void meet(const float* own) {
        __syncthreads();
        if (threadIdx.x < 32) {
            leave(own);
            const int missing = this->look();
            if (threadIdx.x == 0) {
                this->scratch.away = missing < MEMBERS || this->slice != this->home;
                this->scratch.next = missing < MEMBERS ? (this->home + missing) % MEMBERS : this->home;
            }
        }
        __syncthreads();
        this->go_on();
    }

    // By the first warp. As in `Spread`, what has come in the meantime is left as it is: its owner may overwrite what was read.
    __device__ __forceinline__ void leave(const float* own) const {
        int there = 0;
        if (threadIdx.x == 0) there = this->slice == this->home ? this->come : this->has_come();
        if (__shfl_sync(0xffffffffu, there, 0)) return;
        for (int k = threadIdx.x; k < SIZE; k += 32) found[this->slice * SIZE + k] = own[k];
        __syncwarp();
        if (threadIdx.x == 0) set_bit(this->words + this->slice / WORD_BITS, this->slice % WORD_BITS);
    }

    // The moments of the segment, merged in the order of its members: of the MEETING_TILE groups of each warp, in turn. A visit has the
    // number of a group, or `GROUPS` where there is none, and is made by lanes that may write.
    template <int GROUPS, class Visit> __device__ __forceinline__ void merge(void* scratch, Visit visit) const {
        const auto tiles = reinterpret_cast<PartMoments(*)[MEETING_TILE]>(scratch);
        for (int first = threadIdx.x / 32 * MEETING_TILE; first < GROUPS; first += THREADS / 32 * MEETING_TILE) {
            const int lane = threadIdx.x % 32, group = first + lane % MEETING_TILE;
            const FinalMoments all = merge_partials<MEETING_TILE, 1, GROUPS>(tiles, found, group, MEMBERS, [](int k) { return k; });
            if (lane < MEETING_TILE && group < GROUPS) visit(group, all);
        }
    }
};

// A vector of what lies in shared memory, or anywhere else that is written meanwhile.
template <int N> __device__ __forceinline__ Vector<float, N> read_vector(const float* at) {
    using V = Vector<float, N>;
    V vector;
#pragma unroll
    for (int i = 0; i < V::WORDS; ++i) vector.word[i] = reinterpret_cast<const typename V::word_t*>(at)[i];
    return vector;
}
