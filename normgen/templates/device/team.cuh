#pragma once
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
template <int VALUES> struct Given {
    float value[VALUES];
    __device__ __forceinline__ float operator[](int which) const { return value[which]; }
};

// Scratch of a block for exchanges: one entry per warp. Groups within a warp need none.
template <int THREADS_OF_GROUP, int THREADS, int VALUES> struct Exchange {
    static constexpr int TEAM = THREADS_OF_GROUP;
    static constexpr int WARPS = TEAM > 32 ? THREADS / 32 : 1;
    Given<VALUES> slot[2][WARPS];

    // A thread's number in its group.
    static __device__ __forceinline__ int lane() { return int(threadIdx.x) % TEAM; }
};

// Contributes the values of each warp to an exchange: to one side of the scratch.
template <int TEAM, int THREADS, int VALUES, class... Float>
__device__ __forceinline__ void hand_in(
    Exchange<TEAM, THREADS, VALUES>& exchange, int side, Float... value) {
    if (threadIdx.x % 32 == 0) exchange.slot[side][threadIdx.x / 32] = Given<VALUES>{value...};
}

// Waits for the contributions of all warps of the group.
template <int TEAM, int THREADS, int VALUES>
__device__ __forceinline__ const Given<VALUES>* hand_out(
    Exchange<TEAM, THREADS, VALUES>& exchange, int& side) {
    constexpr int WARPS = TEAM / 32;
    const auto* slot = exchange.slot[side];
    __syncthreads();
    side ^= 1;
    return slot + threadIdx.x / 32 / WARPS * WARPS;
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
    template <class Scratch, class... Float>
    static __device__ __forceinline__ void reduce(Scratch& exchange, int& side, Float&... value) {
        constexpr int TEAM = Scratch::TEAM;
        if constexpr (TEAM <= 32) {
            ((value = lanes_reduce<TEAM, Op>(value)), ...);
        } else {
            hand_in(exchange, side, lanes_reduce<32, Op>(value)...);
            warps_reduce<TEAM / 32, Op...>(hand_out(exchange, side), value...);
        }
    }
};
