// ---- Resident slices: blocks that keep what they read until all of their segment have met ------------------------------------------
// As in spread rows, blocks meet in memory, words tell what is there, and none waits for one that may not run (spread.cuh). What they
// leave is a row of moments: of every element of a row, or of every group of neighbours.

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

    // The moments of each group of the segment, by the first of the lanes that have its members: `visit(group, moments)`. (Registers are
    // full of what the block keeps: a lane has one member at a time, or as few as there are to each.)
    template <int GROUPS, class Visit> __device__ __forceinline__ void merge(Visit visit) const {
        constexpr int LANES = MEMBERS > 16 ? 32 : MEMBERS > 8 ? 16 : MEMBERS > 4 ? 8 : 4, TOGETHER = 32 / LANES;
        const int lane = threadIdx.x % LANES;
        for (int first = threadIdx.x / 32 * TOGETHER; first < GROUPS; first += THREADS / 32 * TOGETHER) {
            const int group = first + threadIdx.x % 32 / LANES;
            const FinalMoments all = merged_members<LANES, GROUPS>(group, lane);
            if (lane == 0 && group < GROUPS) visit(group, all);
        }
    }

    // By Chan's rule, about the pivot of the first member, which is finite.
    template <int LANES, int GROUPS> __device__ __forceinline__ FinalMoments merged_members(int group, int lane) const {
        constexpr int ROUNDS = (MEMBERS + LANES - 1) / LANES;
        PartMoments part[ROUNDS];
        float count = 0.f, offset = 0.f, squares = 0.f;
#pragma unroll
        for (int k = 0; k < ROUNDS; ++k) {
            if (k * LANES + lane >= MEMBERS || group >= GROUPS) continue;
            const float* const row = found + (k * LANES + lane) * SIZE;
            part[k] = {__ldcg(row + group), __ldcg(row + GROUPS + group), __ldcg(row + 2 * GROUPS + group), __ldcg(row + 3 * GROUPS)};
            count += part[k].count;
        }
        const float origin = __shfl_sync(0xffffffffu, part[0].pivot, threadIdx.x % 32 / LANES * LANES);
        count = lanes_reduce<LANES, Sum>(count);
#pragma unroll
        for (int k = 0; k < ROUNDS; ++k) {
            part[k].residual += part[k].pivot - origin;  // from now on of the origin
            offset += part[k].count > 0.f ? part[k].count * part[k].residual : 0.f;
        }
        offset = lanes_reduce<LANES, Sum>(offset) * (1.f / count);
#pragma unroll
        for (int k = 0; k < ROUNDS; ++k) {
            squares += part[k].count > 0.f ? part[k].squares + part[k].count * square(part[k].residual - offset) : 0.f;
        }
        squares = lanes_reduce<LANES, Sum>(squares);
        const float mean = origin + offset, missed = (origin - mean) + offset;
        return {mean, missed * count, squares + square(missed) * count, count};
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
