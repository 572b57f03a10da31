#pragma once
#include "normgen/async.cuh"
#include "normgen/cluster.cuh"
#include "normgen/math.cuh"

// ---- Thread groups (team): the threads that share a row ----------------------------------------
// A thread group (TEAM threads) is 1 to 32 lanes of a warp, several whole warps, or all blocks of a
// cluster. Reductions of one dependency level share one exchange: shuffles within warps, then one
// barrier. The scratch is double-buffered, so that one barrier per exchange is enough: a thread
// writes a half again only after the barrier of the exchange in between, which every reader of that
// half has passed.

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

// The first lane of the warp for which it is true; 0 where there is none.
__device__ __forceinline__ int first_lane(bool is_true) {
    const unsigned int lanes = __ballot_sync(0xffffffffu, is_true);
    return lanes ? __ffs(int(lanes)) - 1 : 0;
}

// The number of this block. BACKWARDS: blocks that run first have the last rows, which the kernel
// before may have left in L2.
template <bool BACKWARDS> __device__ __forceinline__ unsigned int block_number() {
    return BACKWARDS ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
}

// The number of this thread's group, and its lane in it. (Blocks of a cluster have neighbouring
// numbers either way.)
template <int TEAM, int THREADS, bool BACKWARDS, class Index>
__device__ __forceinline__ Index team_of_thread() {
    if constexpr (TEAM > THREADS) return Index(block_number<BACKWARDS>()) / (TEAM / THREADS);
    return Index(block_number<BACKWARDS>()) * (THREADS / TEAM) + threadIdx.x / TEAM;
}
template <int TEAM, int THREADS> __device__ __forceinline__ int lane_of_team() {
    if constexpr (TEAM > THREADS) return cluster_rank() * THREADS + int(threadIdx.x);
    return int(threadIdx.x) % TEAM;
}

// The number of this unit: a block, or a cluster.
template <int TEAM, int THREADS, class Index> __device__ __forceinline__ Index unit_of_block() {
    if constexpr (TEAM > THREADS) return Index(blockIdx.x) / (TEAM / THREADS);
    return Index(blockIdx.x);
}

// The number of units of the grid.
template <int TEAM, int THREADS, class Index> __device__ __forceinline__ Index units_together() {
    if constexpr (TEAM > THREADS) return Index(gridDim.x) / (TEAM / THREADS);
    return Index(gridDim.x);
}

// The walk of a persistent block, or cluster, over the rows of segments. `units` of them share a
// segment; each walks its rows there, then those of a later segment.
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

// What a warp contributes to an exchange.
template <int VALUES, bool CLUSTER> struct Given {
    float value[VALUES];
    __device__ __forceinline__ float operator[](int which) const { return value[which]; }
};
// In a cluster it is padded to one message, or to several whole ones.
template <int VALUES> struct alignas(VALUES == 1 ? 4 : VALUES == 2 ? 8 : 16) Given<VALUES, true> {
    static constexpr int PLACES = VALUES > 2 ? (VALUES + 3) / 4 * 4 : VALUES;
    float value[PLACES];
    __device__ __forceinline__ float operator[](int which) const { return value[which]; }
};

// Scratch of a block for exchanges: one entry per warp. Groups within a warp need none.
template <int TEAM, int THREADS, int VALUES, bool CLUSTER = (TEAM > THREADS)> struct Exchange {
    static constexpr int WARPS = TEAM > 32 ? THREADS / 32 : 1;
    Given<VALUES, false> slot[2][WARPS];
};
// In a cluster: one entry per warp of the cluster, and mbarriers. A half is used again after the
// exchange in between, to which every warp contributes only when it has read that half.
template <int TEAM, int THREADS, int VALUES> struct Exchange<TEAM, THREADS, VALUES, true> {
    static constexpr int WARPS = TEAM / 32;
    Given<VALUES, true> slot[2][WARPS];
    arrival_t arrival[2];
};

// Bytes that a cluster's exchange delivers to each block.
template <int TEAM, int VALUES> constexpr int DELIVERED = TEAM / 32 * int(sizeof(Given<VALUES, true>));

// Opens exchanges, ahead of loads where possible: blocks of a cluster initialise their mbarriers.
template <int TEAM, int THREADS, int VALUES>
__device__ __forceinline__ void open_exchange(Exchange<TEAM, THREADS, VALUES>& exchange) {
    if constexpr (TEAM > THREADS) {
        if (threadIdx.x == 0) {
            open_arrivals(exchange.arrival, 2);
            for (int half = 0; half < 2; ++half) {
                expect_bytes(&exchange.arrival[half], DELIVERED<TEAM, VALUES>);
            }
        }
        cluster_arrive();
    }
}

// After `open_exchange`: waits until every block of the cluster runs and may be sent to.
template <int TEAM, int THREADS> __device__ __forceinline__ void join_exchange() {
    if constexpr (TEAM > THREADS) cluster_wait();
}

// Contributes the values of each warp to an exchange: to one side of the scratch.
template <int TEAM, int THREADS, int VALUES, class... Float>
__device__ __forceinline__ void hand_in(
    Exchange<TEAM, THREADS, VALUES>& exchange, int side, Float... value) {
    const int lane = threadIdx.x % 32;
    if constexpr (TEAM > THREADS) {
        // `side` counts modulo 4: the half, and the parity of its mbarrier
        auto& place = exchange.slot[side % 2][lane_of_team<TEAM, THREADS>() / 32];
        arrival_t* const arrival = &exchange.arrival[side % 2];
        __syncwarp();  // what other lanes did before comes before what a receiver does after
        if (lane < TEAM / THREADS) {
            const Given<VALUES, true> given{value...};  // as many every time
            send_to_block(place.value, given.value, arrival, lane);
            end_message();
        }
    } else {
        if (lane == 0) exchange.slot[side][threadIdx.x / 32] = Given<VALUES, false>{value...};
    }
}

// Waits for the contributions of all warps of the group.
template <int TEAM, int THREADS, int VALUES>
__device__ __forceinline__ const Given<VALUES, (TEAM > THREADS)>* hand_out(
    Exchange<TEAM, THREADS, VALUES>& exchange, int& side) {
    if constexpr (TEAM > THREADS) {
        const int half = side % 2;
        arrival_t* const arrival = &exchange.arrival[half];
        await_sent(arrival, side / 2);
        // Re-arms the mbarrier of this half. (Bytes that are sent before they are expected are
        // counted, but wake waiting threads in vain.)
        if (threadIdx.x == 0) expect_bytes(arrival, DELIVERED<TEAM, VALUES>);
        side = (side + 1) % 4;
        return exchange.slot[half];
    } else {
        constexpr int WARPS = TEAM / 32;
        const auto* slot = exchange.slot[side];
        __syncthreads();
        side ^= 1;
        return slot + threadIdx.x / 32 / WARPS * WARPS;
    }
}

// Combines the values of every warp in a fixed order, each by its operation; every thread gets the
// results.
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
        // each lane takes some warps, then lanes are reduced: fewer registers than one warp after
        // the other
        constexpr int LANES = WARPS <= 8 ? 8 : WARPS <= 16 ? 16 : 32;
        const int taken = threadIdx.x % LANES;
        const Slot own = slot[taken < WARPS ? taken : 0];
        ((value = own[which++]), ...);
        if (taken >= WARPS) ((value = Op::REPEATABLE ? value : 0.f), ...);
#pragma unroll
        for (int first = LANES; first < WARPS; first += LANES) {
            const int warp = first + taken;
            if (WARPS % LANES == 0 || warp < WARPS) combine(slot[warp]);
        }
        ((value = lanes_reduce<LANES, Op>(value)), ...);
    }
}

// reduce(exchange, side, a, b, ...): replaces every value by its reduction over the thread group,
// one operation each, in one exchange.
template <class... Op> struct Team {
    template <int TEAM, int THREADS, int VALUES, class... Float>
    static __device__ __forceinline__ void reduce(
        Exchange<TEAM, THREADS, VALUES>& exchange, int& side, Float&... value) {
        if constexpr (TEAM <= 32) {
            ((value = lanes_reduce<TEAM, Op>(value)), ...);
        } else {
            hand_in(exchange, side, lanes_reduce<32, Op>(value)...);
            warps_reduce<TEAM / 32, Op...>(hand_out(exchange, side), value...);
        }
    }
};
