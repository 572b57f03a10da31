#pragma once

// ---- Peer memory: how ranks of one node exchange numbers inside a kernel --------------
// Each rank has a buffer that all ranks can write. What a rank tells, it stores into the buffers of
// all its peers, and then polls its own buffer for what they tell. A word is 8 bytes, stored and
// loaded at once: 32 bits of a value, and above them the number of the exchange, its epoch. A word
// of the epoch that is awaited is one that has come, so that there are no flags, no fences, and
// nothing is cleared.
//
// A slot is [epoch & 1][rank][place]. Two halves suffice: a rank stores words of epoch e + 2 once it
// has read those of e + 1, which its peers store once they have read those of e. The epoch is
// counted on the device, by the last block of a launch, so that graphs count on when they are
// replayed.
//
// Blocks take chunks of words by ticket, in order, and store the words of a chunk before they wait
// for those of peers. So the first chunk that is not done has a running block on every rank, and no
// two blocks need run at the same time. (Blocks so few that all of them run at the same time sooner or
// later, whatever else does, need no tickets.)
//
// A wait ends: after so much time the kernel records who did not deliver, gives NaN, and goes on.
// From then on no launch of this channel waits, since ranks are out of step.

using tagged_t = unsigned long long;

// Of a channel's counters. (Chunks taken, and blocks that are done, are counts of one launch.)
constexpr int AT_EPOCH = 0;
constexpr int AT_TAKEN = 1;
constexpr int AT_DONE = 2;
constexpr int AT_GIVEN_UP = 3;

constexpr unsigned NOTHING = 0x7fc00000u;  // NaN: what did not come

// How often a thread polls before it looks at the clock. On the host peers are other processes, and
// the threads of a block take turns.
#if defined(NORMGEN_HOST)
constexpr int POLLS = 1;
#else
constexpr int POLLS = 64;
#endif

__device__ __forceinline__ void tell_word(tagged_t* slot, tagged_t word) {
#if defined(NORMGEN_HOST)
    *static_cast<volatile tagged_t*>(slot) = word;
#else
    asm volatile("st.relaxed.sys.global.b64 [%0], %1;" ::"l"(slot), "l"(word) : "memory");
#endif
}

__device__ __forceinline__ tagged_t look_word(const tagged_t* slot) {
#if defined(NORMGEN_HOST)
    return *static_cast<const volatile tagged_t*>(slot);
#else
    tagged_t word;
    asm volatile("ld.relaxed.sys.global.b64 %0, [%1];" : "=l"(word) : "l"(slot) : "memory");
    return word;
#endif
}

__device__ __forceinline__ long long nanoseconds() {
#if defined(NORMGEN_HOST)
    return normgen_nanoseconds();
#else
    long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
#endif
}

// Whether a wait of this channel has ended, in any block.
__device__ __forceinline__ bool has_given_up(unsigned* counters) {
#if defined(NORMGEN_HOST)
    return normgen_atomic_load(counters + AT_GIVEN_UP) != 0;
#else
    return *static_cast<volatile unsigned*>(counters + AT_GIVEN_UP) != 0;
#endif
}

// The epoch after another. (0 is that of memory that nobody has written: it is left out, and the
// halves take turns.)
__device__ __forceinline__ unsigned next_epoch(unsigned epoch) { return epoch + 1 == 0 ? 2 : epoch + 1; }

// A buffer of each of RANKS ranks, as one of them sees them in one exchange. `capacity`: places of a
// rank in one half; `timeout`: nanoseconds.
template <int RANKS> struct Channel {
    tagged_t* slots[RANKS];
    tagged_t* own;
    unsigned* counters;
    tagged_t* fault;
    long long capacity;
    long long timeout;
    int rank;
    unsigned epoch;

    // The epoch of this launch.
    __device__ __forceinline__ void begin() {
        epoch = next_epoch(*static_cast<volatile unsigned*>(counters + AT_EPOCH));
    }

    // The next chunk for a block, the same for all its threads.
    __device__ __forceinline__ unsigned take(unsigned& shared) const {
        __syncthreads();
        if (threadIdx.x == 0) shared = atomicAdd(counters + AT_TAKEN, 1u);
        __syncthreads();
        return shared;
    }

    __device__ __forceinline__ long long slot(int from, long long place) const {
        return ((epoch & 1) * RANKS + from) * capacity + place;
    }
    __device__ __forceinline__ tagged_t word(unsigned bits) const { return tagged_t(epoch) << 32 | bits; }
    __device__ __forceinline__ bool is_there(tagged_t word) const { return unsigned(word >> 32) == epoch; }

    // Tells all peers a value at a place.
    __device__ __forceinline__ void tell(long long place, unsigned bits) const {
#pragma unroll
        for (int peer = 0; peer < RANKS; ++peer) {
            if (peer != rank) tell_word(slots[peer] + slot(rank, place), word(bits));
        }
    }

    // Reads those words that are not there, of EACH places, `step` apart, of every rank. Whether all
    // are there then.
    template <int EACH>
    __device__ __forceinline__ bool look(tagged_t (&words)[RANKS][EACH], long long first, int step) const {
        bool all = true;
#pragma unroll
        for (int from = 0; from < RANKS; ++from) {
#pragma unroll
            for (int k = 0; k < EACH; ++k) {
                if (!is_there(words[from][k])) words[from][k] = look_word(own + slot(from, first + k * step));
            }
        }
#pragma unroll
        for (int from = 0; from < RANKS; ++from) {
#pragma unroll
            for (int k = 0; k < EACH; ++k) all = all && is_there(words[from][k]);
        }
        return all;
    }

    // Waits until all words are there, or this channel has given up.
    template <int EACH>
    __device__ __forceinline__ void await(tagged_t (&words)[RANKS][EACH], long long first, int step) const {
        if (look(words, first, step)) return;
        const long long start = nanoseconds();
        for (unsigned polls = 1; !look(words, first, step); ++polls) {
            if (polls % POLLS) continue;
            if (has_given_up(counters)) return;
            if (nanoseconds() - start > timeout) return give_up(words, first, step);
            __nanosleep(100);
        }
    }

    // The first thread that gives up records who did not deliver: the epoch, above it the rank and
    // 1, and the place.
    template <int EACH>
    __device__ __forceinline__ void give_up(tagged_t (&words)[RANKS][EACH], long long first, int step) const {
        if (atomicExch(counters + AT_GIVEN_UP, 1u)) return;
        tagged_t found = 0;
#pragma unroll
        for (int from = RANKS - 1; from >= 0; --from) {
#pragma unroll
            for (int k = EACH - 1; k >= 0; --k) {
                if (!is_there(words[from][k])) found = late(from, first + k * step);
            }
        }
        tell_word(fault, found);
    }

    // What is recorded of a rank that did not deliver.
    __device__ __forceinline__ tagged_t late(int from, long long place) const {
        const long long last = (1 << 24) - 1;
        const tagged_t where = tagged_t(place < last ? place : last) << 8 | tagged_t(from + 1);
        return where << 32 | epoch;
    }

    // The bits that a rank tells at one place, when they have come; or, once this channel has given
    // up, those of a NaN.
    __device__ __forceinline__ unsigned await_bits(const tagged_t* mine, int from, long long place) const {
        const tagged_t* const at = mine + slot(from, place);
        tagged_t word = look_word(at);
        if (is_there(word)) return unsigned(word);
        const long long start = nanoseconds();
        for (unsigned polls = 1; !is_there(word = look_word(at)); ++polls) {
            if (polls % POLLS) continue;
            if (has_given_up(counters)) return NOTHING;
            if (nanoseconds() - start > timeout) {
                if (!atomicExch(counters + AT_GIVEN_UP, 1u)) tell_word(fault, late(from, place));
                return NOTHING;
            }
            __nanosleep(100);
        }
        return unsigned(word);
    }

    // The last block of a launch counts it.
    __device__ __forceinline__ void end() const {
        __syncthreads();
        if (threadIdx.x != 0) return;
        __threadfence();
        if (atomicAdd(counters + AT_DONE, 1u) != gridDim.x - 1) return;
        atomicExch(counters + AT_TAKEN, 0u);
        atomicExch(counters + AT_DONE, 0u);
        atomicExch(counters + AT_EPOCH, epoch);
    }
};
