// ---- Teams: the threads that own one row -------------------------------------------------------------------------------------
// A team is 1 to 32 lanes of a warp, several whole warps, or all blocks of a cluster. Reductions of one dependency level share one exchange: shuffles
// inside the warps, then one barrier. The scratch alternates between two halves, so that one barrier an exchange is enough: a
// thread writes a half again only after the barrier of the exchange in between, which every reader of that half has passed.

struct Sum {
    static constexpr float START = 0.f;
    static constexpr bool REPEATABLE = false;  // adding a value twice changes the result
    static __device__ __forceinline__ float apply(float a, float b) { return a + b; }
};
struct Max {
    static constexpr float START = -INFINITY;
    static constexpr bool REPEATABLE = true;
    static __device__ __forceinline__ float apply(float a, float b) { return maximum(a, b); }
};
struct Min {
    static constexpr float START = INFINITY;
    static constexpr bool REPEATABLE = true;
    static __device__ __forceinline__ float apply(float a, float b) { return minimum(a, b); }
};

template <int LANES, class Op> __device__ __forceinline__ float lanes_reduce(float value) {
#pragma unroll
    for (int distance = LANES / 2; distance > 0; distance /= 2) {
        value = Op::apply(value, __shfl_xor_sync(0xffffffffu, value, distance));
    }
    return value;
}

// The number of this block. BACKWARDS: the first to run has the last rows, which the kernel before may have left in the cache.
template <bool BACKWARDS> __device__ __forceinline__ unsigned int block_number() {
    return BACKWARDS ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
}

// The number of this thread's team, and its place in it. (Blocks of a cluster have neighbouring numbers either way.)
template <int TEAM, int THREADS, bool BACKWARDS, class Index> __device__ __forceinline__ Index team_of_thread() {
    if constexpr (TEAM > THREADS) return Index(block_number<BACKWARDS>()) / (TEAM / THREADS);
    return Index(block_number<BACKWARDS>()) * (THREADS / TEAM) + threadIdx.x / TEAM;
}
template <int TEAM, int THREADS> __device__ __forceinline__ int lane_of_team() {
    if constexpr (TEAM > THREADS) return cluster_rank() * THREADS + int(threadIdx.x);
    return int(threadIdx.x) % TEAM;
}

// The number of this block, or of the cluster that it is in.
template <int TEAM, int THREADS, class Index> __device__ __forceinline__ Index unit_of_block() {
    if constexpr (TEAM > THREADS) return Index(blockIdx.x) / (TEAM / THREADS);
    return Index(blockIdx.x);
}

// How many of them there are.
template <int TEAM, int THREADS, class Index> __device__ __forceinline__ Index units_together() {
    if constexpr (TEAM > THREADS) return Index(gridDim.x) / (TEAM / THREADS);
    return Index(gridDim.x);
}

// The way of a block, or cluster, through the rows of segments. A segment's rows belong to `units` of them; it walks its own, then
// those that it has of a later segment.
template <int TEAMS, class Index> struct Walk {
    Index unit, segment, first;

    __device__ __forceinline__ Walk(Index begin, int units) { enter(begin, units); }

    __device__ __forceinline__ void enter(Index next, int units) {
        unit = next;
        segment = unit / units;
        first = unit % units * TEAMS;
    }
    __device__ __forceinline__ void go_on(Index rows, Index together, int units) {
        first += Index(units) * TEAMS;
        if (first >= rows) enter(unit + together, units);
    }
};

// What a warp contributes to an exchange: in a cluster as many values as one message takes, or several whole messages.
template <int VALUES, bool CLUSTER> struct alignas((!CLUSTER || VALUES == 1) ? 4 : VALUES == 2 ? 8 : 16) Given {
    static constexpr int PLACES = CLUSTER && VALUES > 2 ? (VALUES + 3) / 4 * 4 : VALUES;
    float value[PLACES];
    __device__ __forceinline__ float operator[](int which) const { return value[which]; }
};

// Scratch of a block: what each warp contributes to an exchange, and each block of a cluster. Teams within a warp need none.
template <int TEAM, int THREADS, int VALUES, int PARTS = 2, bool CLUSTER = (TEAM > THREADS)> struct Exchange {
    static constexpr int WARPS = TEAM > 32 ? THREADS / 32 : 1;
    Given<VALUES, false> slot[2][WARPS];
};
// In a cluster: what each of its warps contributes, and what has arrived. A half is used again after the exchange in between, to
// which every warp contributes only when it has read that half. Where a warp contributes to the next exchange before it awaits this
// one, there are four PARTS: it has then read a part two exchanges later.
template <int TEAM, int THREADS, int VALUES, int PARTS> struct Exchange<TEAM, THREADS, VALUES, PARTS, true> {
    static constexpr int WARPS = TEAM / 32;
    Given<VALUES, true> slot[PARTS][WARPS];
    arrival_t arrival[PARTS];
};

// The bytes that an exchange of a cluster delivers to each block.
template <int TEAM, int VALUES> constexpr int DELIVERED = TEAM / 32 * int(sizeof(Given<VALUES, true>));

// Before the first exchange, and before loads where that may be: blocks of a cluster make ready for what others send.
template <int TEAM, int THREADS, int VALUES, int PARTS>
__device__ __forceinline__ void open_exchange(Exchange<TEAM, THREADS, VALUES, PARTS>& exchange) {
    if constexpr (TEAM > THREADS) {
        if (threadIdx.x == 0) {
            open_arrivals(exchange.arrival, PARTS);
            for (int part = 0; part < PARTS; ++part) expect_bytes(&exchange.arrival[part], DELIVERED<TEAM, VALUES>);
        }
        cluster_arrive();
    }
}

// After `open_exchange`: every block runs, and may be sent to.
template <int TEAM, int THREADS> __device__ __forceinline__ void join_exchange() {
    if constexpr (TEAM > THREADS) cluster_wait();
}

// Gives the values of each warp to an exchange. In a cluster `half` counts the parts twice over: which one, and how often it was used.
template <int TEAM, int THREADS, int VALUES, int PARTS, class... Float>
__device__ __forceinline__ void hand_in(Exchange<TEAM, THREADS, VALUES, PARTS>& exchange, int half, Float... value) {
    const int lane = threadIdx.x % 32;
    if constexpr (TEAM > THREADS) {
        auto& place = exchange.slot[half % PARTS][lane_of_team<TEAM, THREADS>() / 32];
        arrival_t* const arrival = &exchange.arrival[half % PARTS];
        __syncwarp();  // what other lanes did before comes before what a receiver does after
        if (lane < TEAM / THREADS) {
            const Given<VALUES, true> given{value...};  // as many every time
            send_to_block(place.value, given.value, arrival, lane);
            end_message();
        }
    } else {
        if (lane == 0) exchange.slot[half][threadIdx.x / 32] = Given<VALUES, false>{value...};
    }
}

// What all warps of the team gave, once it is there.
template <int TEAM, int THREADS, int VALUES, int PARTS>
__device__ __forceinline__ const Given<VALUES, (TEAM > THREADS)>* hand_out(
    Exchange<TEAM, THREADS, VALUES, PARTS>& exchange, int& half) {
    if constexpr (TEAM > THREADS) {
        const int part = half % PARTS;
        arrival_t* const arrival = &exchange.arrival[part];
        await_sent(arrival, half / PARTS);
        // For the next exchange in this part. What is sent before it is expected wakes those who wait again and again.
        if (threadIdx.x == 0) expect_bytes(arrival, DELIVERED<TEAM, VALUES>);
        half = (half + 1) % (2 * PARTS);
        return exchange.slot[part];
    } else {
        constexpr int WARPS = TEAM / 32;
        const auto* slot = exchange.slot[half];
        __syncthreads();
        half ^= 1;
        return slot + threadIdx.x / 32 / WARPS * WARPS;
    }
}

// Combine the values of every warp of a team in fixed order, each by its operation; every thread gets the results.
template <int WARPS, class... Op, class Slot, class... Float>
__device__ __forceinline__ void warps_reduce(const Slot* slot, Float&... value) {
    const auto combine = [&](const Slot& theirs) {
        int which = 0;
        ((value = Op::apply(value, theirs[which++])), ...);
    };
    int which = 0;
    if constexpr (WARPS <= 4) {
        const Slot first = slot[0];
        ((value = first[which++]), ...);
#pragma unroll
        for (int warp = 1; warp < WARPS; ++warp) combine(slot[warp]);
    } else {
        // each lane takes some warps, and the lanes are reduced: fewer registers than one read after the other
        constexpr int TAKEN = WARPS <= 8 ? 8 : WARPS <= 16 ? 16 : 32;
        const int taken = threadIdx.x % TAKEN;
        const Slot own = slot[taken < WARPS ? taken : 0];
        ((value = own[which++]), ...);
        if (taken >= WARPS) ((value = Op::REPEATABLE ? value : 0.f), ...);
#pragma unroll
        for (int first = TAKEN; first < WARPS; first += TAKEN) {
            const int warp = first + taken;
            if (WARPS % TAKEN == 0 || warp < WARPS) combine(slot[warp]);
        }
        ((value = lanes_reduce<TAKEN, Op>(value)), ...);
    }
}

// reduce(exchange, half, a, b, ...): every value becomes its reduction over the team, one operation each, in one exchange.
template <class... Op> struct Team {
    template <int TEAM, int THREADS, int VALUES, int PARTS, class... Float>
    static __device__ __forceinline__ void reduce(Exchange<TEAM, THREADS, VALUES, PARTS>& exchange, int& half, Float&... value) {
        if constexpr (TEAM <= 32) {
            ((value = lanes_reduce<TEAM, Op>(value)), ...);
        } else {
            give(exchange, half, value...);
            take(exchange, half, value...);
        }
    }
    // The same in two steps, between which a thread may do other things.
    template <int TEAM, int THREADS, int VALUES, int PARTS, class... Float>
    static __device__ __forceinline__ void give(Exchange<TEAM, THREADS, VALUES, PARTS>& exchange, int half, Float... value) {
        hand_in(exchange, half, lanes_reduce<32, Op>(value)...);
    }
    template <int TEAM, int THREADS, int VALUES, int PARTS, class... Float>
    static __device__ __forceinline__ void take(Exchange<TEAM, THREADS, VALUES, PARTS>& exchange, int& half, Float&... value) {
        warps_reduce<TEAM / 32, Op...>(hand_out(exchange, half), value...);
    }
};
