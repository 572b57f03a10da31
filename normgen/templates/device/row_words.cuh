#pragma once
#include "normgen/peers.cuh"

// ---- Rows by peer memory: thread groups that tell peers what they have of their rows -------------------
// A kernel that computes values of a row, and needs those of all ranks to go on, exchanges them
// itself (see peers.cuh). A place is that of a row in one of the values, as it is where a kernel of
// its own exchanges them: so ranks need not do it in the same way.
//
// Blocks take rows by ticket, in order, and tell what they have before they wait. So the first row
// that is not done has a running block on every rank, and no two blocks need run at the same time.

// So many blocks run at the same time sooner or later, whatever else does: they take rows as they are
// numbered, without a ticket. On the host a block runs when another waits, in whatever order.
#if defined(NORMGEN_HOST)
constexpr unsigned FEW_BLOCKS = 1;
#else
constexpr unsigned FEW_BLOCKS = 32;
#endif

// Floats of 16 bytes: where each of several values begins.
constexpr int VALUES_ALIGNED = 4;

// What the host leaves in memory of a device for one channel. `slots` has null beyond the last rank.
struct ChannelRecord {
    unsigned counters[4];
    tagged_t* slots[8];
    tagged_t* fault;
    long long capacity;
    long long timeout;
    long long rank;
};

// Two words of it are counters, which other blocks may be changing; the epoch is that of the launch.
__device__ __forceinline__ unsigned long long look_at_record(const volatile unsigned long long* word) {
#if defined(NORMGEN_HOST)
    return normgen_atomic_load(word);
#else
    return *word;
#endif
}

// What all ranks have told of a row.
template <int RANKS, int VALUES> struct ToldRow {
    float value[VALUES][RANKS];
};

template <int RANKS, int VALUES, int TEAM, int THREADS> struct RowWordsScratch {
    static constexpr int GROUPS = THREADS / TEAM;
    unsigned long long record[sizeof(ChannelRecord) / 8];
    unsigned ticket;
    float told[GROUPS][VALUES * RANKS];
};

template <int RANKS, int VALUES, int TEAM, int THREADS> struct RowWords {
    static constexpr int LANES = TEAM < 32 ? TEAM : 32, WORDS = sizeof(ChannelRecord) / 8;
    static_assert(TEAM <= THREADS && WORDS <= THREADS, "a block has the whole row");
    RowWordsScratch<RANKS, VALUES, TEAM, THREADS>& scratch;
    unsigned* counters;
    unsigned ticket;
    unsigned long long word;  // of the record
    Channel<RANKS> channel;

    // All threads of a block call it, after the kernels before have ended.
    __device__ __forceinline__ RowWords(
        RowWordsScratch<RANKS, VALUES, TEAM, THREADS>& scratch, const ChannelRecord* record)
        : scratch(scratch),
          counters(const_cast<unsigned*>(record->counters)),
          ticket(blockIdx.x),
          word(0),
          channel{} {
        const auto* const words = reinterpret_cast<const volatile unsigned long long*>(record);
        if (threadIdx.x < WORDS) word = look_at_record(words + threadIdx.x);
        if (gridDim.x <= FEW_BLOCKS) return;
        if (threadIdx.x == 0) scratch.ticket = atomicAdd(counters + AT_TAKEN, 1u);
        __syncthreads();
        ticket = scratch.ticket;
    }

    // The number of this thread's group: rows are taken in order.
    template <class Index> __device__ __forceinline__ Index team() const {
        return Index(ticket) * (THREADS / TEAM) + threadIdx.x / TEAM;
    }

    // All threads of a block call it, before they exchange, and once what they read is on its way.
    __device__ __forceinline__ void open() {
        if (threadIdx.x < WORDS) scratch.record[threadIdx.x] = word;
        __syncthreads();
        const auto* const found = reinterpret_cast<const ChannelRecord*>(scratch.record);
        channel.counters = counters;
        channel.fault = found->fault;
        channel.capacity = found->capacity;
        channel.timeout = found->timeout;
        channel.rank = int(found->rank);
        channel.epoch = next_epoch(found->counters[AT_EPOCH]);
    }

    // Tells the peers these values of a row, and waits for theirs. `live`: whether the group has one.
    // All threads of a block call it, once.
    template <class Index, class... Float>
    __device__ __forceinline__ ToldRow<RANKS, VALUES> exchange(
        Index row, Index rows, bool live, Float... given) const {
        static_assert(sizeof...(Float) == VALUES, "as many as were said");
        const auto* const found = reinterpret_cast<const ChannelRecord*>(scratch.record);
        const int lane = int(threadIdx.x) % TEAM;
        float* const told = scratch.told[threadIdx.x / TEAM];
        const long long step =
            (static_cast<long long>(rows) + VALUES_ALIGNED - 1) / VALUES_ALIGNED * VALUES_ALIGNED;
        if (live && lane < LANES) {
            const float own[VALUES] = {given...};
            for (int k = lane; k < VALUES * RANKS; k += LANES) {
                const int peer = k % RANKS, which = k / RANKS;
                float value = own[0];
#pragma unroll
                for (int other = 1; other < VALUES; ++other) value = which == other ? own[other] : value;
                told[k] = value;
                if (peer == channel.rank) continue;
                const long long begin = channel.slot(channel.rank, which * step);
                tell_word(found->slots[peer] + begin + row, channel.word(__float_as_uint(value)));
                // (what lies between values is told too: peers may exchange all places)
                const bool last = VALUES > 1 && row + 1 == rows;
                for (long long place = rows; last && place < step; ++place) {
                    tell_word(found->slots[peer] + begin + place, channel.word(0u));
                }
            }
            for (int k = lane; k < VALUES * RANKS; k += LANES) {
                const int peer = k % RANKS, which = k / RANKS;
                if (peer != channel.rank) {
                    told[k] = __uint_as_float(
                        channel.await_bits(found->slots[channel.rank], peer, which * step + row));
                }
            }
        }
        if constexpr (TEAM <= 32) __syncwarp();
        else __syncthreads();
        if constexpr (TEAM == THREADS && TEAM > 32) count();
        ToldRow<RANKS, VALUES> all;
#pragma unroll
        for (int k = 0; k < VALUES * RANKS; ++k) all.value[k / RANKS][k % RANKS] = told[k];
        return all;
    }

    // When all threads of a block have what they waited for. The last block of a launch counts it.
    __device__ __forceinline__ void end() const {
        if constexpr (TEAM == THREADS && TEAM > 32) return;  // it has counted
        __syncthreads();
        count();
    }

    __device__ __forceinline__ void count() const {
        if (threadIdx.x != 0 || atomicAdd(counters + AT_DONE, 1u) != gridDim.x - 1) return;
        atomicExch(counters + AT_TAKEN, 0u);
        atomicExch(counters + AT_DONE, 0u);
        atomicExch(counters + AT_EPOCH, channel.epoch);
    }
};
