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

// The number of this thread's team, and its place in it.
template <int TEAM, int THREADS, class Index> __device__ __forceinline__ Index team_of_thread() {
    if constexpr (TEAM > THREADS) return Index(blockIdx.x) / (TEAM / THREADS);
    return Index(blockIdx.x) * (THREADS / TEAM) + threadIdx.x / TEAM;
}
template <int TEAM, int THREADS> __device__ __forceinline__ int lane_of_team() {
    if constexpr (TEAM > THREADS) return cluster_rank() * THREADS + int(threadIdx.x);
    return int(threadIdx.x) % TEAM;
}

// Which vector of the row is a thread's `item`-th. Vectors are dealt out to the threads of a team in turn; in a cluster each block
// has a slice of the row, which can be copied as one. SHIFTED: each warp has a slice, so that neighbours in a row are neighbours in a
// warp.
template <int TEAM, int THREADS, int ITEMS, bool SHIFTED = false> __device__ __forceinline__ int vector_of(int item, int lane) {
    constexpr int LANES = TEAM < 32 ? TEAM : 32;
    if constexpr (SHIFTED) return (lane / LANES * ITEMS + item) * LANES + lane % LANES;
    if constexpr (TEAM > THREADS) return (lane / THREADS * ITEMS + item) * THREADS + lane % THREADS;
    return item * TEAM + lane;
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

// Scratch of a block: what each warp contributes to an exchange, and each block of a cluster. Teams within a warp need none.
template <int TEAM, int THREADS, int VALUES, int PARTS = 2, bool CLUSTER = (TEAM > THREADS)> struct Exchange {
    static constexpr int WARPS = TEAM > 32 ? THREADS / 32 : 1;
    float slot[2][WARPS][VALUES];
};
// In a cluster: what each of its warps contributes, and what has arrived. A half is used again after the exchange in between, to
// which every warp contributes only when it has read that half. Where a warp contributes to the next exchange before it awaits this
// one, there are four PARTS: it has then read a part two exchanges later.
template <int TEAM, int THREADS, int VALUES, int PARTS> struct Exchange<TEAM, THREADS, VALUES, PARTS, true> {
    static constexpr int WARPS = TEAM / 32;
    float slot[PARTS][WARPS][VALUES];
    arrival_t arrival[PARTS];
};

// The bytes that an exchange of a cluster delivers to each block.
template <int TEAM, int VALUES> constexpr int DELIVERED = TEAM / 32 * VALUES * int(sizeof(float));

// Before the first exchange.
template <int TEAM, int THREADS, int VALUES, int PARTS>
__device__ __forceinline__ void open_exchange(Exchange<TEAM, THREADS, VALUES, PARTS>& exchange) {
    if constexpr (TEAM > THREADS) {
        if (threadIdx.x == 0) {
            open_arrivals(exchange.arrival, PARTS);
            for (int part = 0; part < PARTS; ++part) expect_bytes(&exchange.arrival[part], DELIVERED<TEAM, VALUES>);
        }
        cluster_sync();  // every block must run, and be ready, before its shared memory is written to
    }
}

// Gives the values of each warp to an exchange. In a cluster `half` counts the parts twice over: which one, and how often it was used.
template <int TEAM, int THREADS, int VALUES, int PARTS, class... Float>
__device__ __forceinline__ void hand_in(Exchange<TEAM, THREADS, VALUES, PARTS>& exchange, int half, Float... value) {
    const int lane = threadIdx.x % 32;
    int which = 0;
    if constexpr (TEAM > THREADS) {
        float(&given)[VALUES] = exchange.slot[half % PARTS][lane_of_team<TEAM, THREADS>() / 32];
        arrival_t* const arrival = &exchange.arrival[half % PARTS];
        __syncwarp();  // what other lanes did before comes before what a receiver does after
        if (lane < TEAM / THREADS) {
            (send_to_block(&given[which++], value, arrival, lane), ...);
            for (; which < VALUES; ++which) send_to_block(&given[which], 0.f, arrival, lane);  // as many every time
            end_message();
        }
    } else {
        if (lane == 0) ((exchange.slot[half][threadIdx.x / 32][which++] = value), ...);
    }
}

// What all warps of the team gave, once it is there.
template <int TEAM, int THREADS, int VALUES, int PARTS>
__device__ __forceinline__ const float (*hand_out(Exchange<TEAM, THREADS, VALUES, PARTS>& exchange, int& half))[VALUES] {
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
        const float(*slot)[VALUES] = exchange.slot[half];
        __syncthreads();
        half ^= 1;
        return slot + threadIdx.x / 32 / WARPS * WARPS;
    }
}

// Combine one value of every warp of a team in fixed order; every thread gets the result.
template <int WARPS, class Op, int VALUES>
__device__ __forceinline__ float warps_reduce(const float (*slot)[VALUES], int which) {
    if constexpr (WARPS <= 4) {
        float value = slot[0][which];
#pragma unroll
        for (int warp = 1; warp < WARPS; ++warp) value = Op::apply(value, slot[warp][which]);
        return value;
    } else {
        // each lane takes some warps, and the lanes are reduced: fewer registers than one read after the other
        constexpr int TAKEN = WARPS <= 8 ? 8 : WARPS <= 16 ? 16 : 32;
        const int taken = threadIdx.x % TAKEN;
        float value = slot[taken < WARPS ? taken : 0][which];
        if constexpr (!Op::REPEATABLE) value = taken < WARPS ? value : 0.f;
#pragma unroll
        for (int first = TAKEN; first < WARPS; first += TAKEN) {
            const int warp = first + taken;
            if (WARPS % TAKEN == 0 || warp < WARPS) value = Op::apply(value, slot[warp][which]);
        }
        return lanes_reduce<TAKEN, Op>(value);
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
        const float(*slot)[VALUES] = hand_out(exchange, half);
        int which = 0;
        ((value = warps_reduce<TEAM / 32, Op>(slot, which++)), ...);
    }
};

// Elements of a row that a warp of the team owns: see `vector_of`.
template <int TEAM, int THREADS, int VEC, int ITEMS, int LENGTH, bool SHIFTED = false>
__device__ __forceinline__ int elements_of_warp(int warp) {
    if constexpr (SHIFTED) {
        constexpr int SLICE = ITEMS * 32 * VEC;
        const int left = LENGTH - warp * SLICE;
        return left < 0 ? 0 : left < SLICE ? left : SLICE;
    } else if constexpr (TEAM > THREADS) {
        constexpr int SLICE = ITEMS * THREADS * VEC;
        constexpr int RUN = 32 * VEC;
        const int left = LENGTH - warp / (THREADS / 32) * SLICE;
        const int slice = left < 0 ? 0 : left < SLICE ? left : SLICE;
        const int rest = slice % (THREADS * VEC) - warp % (THREADS / 32) * RUN;
        return slice / (THREADS * VEC) * RUN + (rest < 0 ? 0 : rest < RUN ? rest : RUN);
    } else {
        constexpr int ROUNDS = LENGTH / (TEAM * VEC);
        const int rest = LENGTH - (ROUNDS * TEAM + warp * 32) * VEC;
        return ROUNDS * 32 * VEC + (rest < 0 ? 0 : rest < 32 * VEC ? rest : 32 * VEC);
    }
}

// The mean of a row, and the sums of (x - mean) and (x - mean)^2 about it.
struct Moments {
    float mean;
    float centred;
    float squares;
};

// Merges the statistics of a team's warps in one exchange, by Chan's rule: each lane takes some warps, and the lanes are added up.
// A warp's mean is in two parts, of which the second is small, so that a row of mean 1e6 and deviation 1 is as accurate as any.
template <int TEAM, int VEC, int ITEMS, int LENGTH, bool SHIFTED = false, int THREADS, int VALUES, int PARTS>
__device__ __forceinline__ Moments merge_warps(Exchange<TEAM, THREADS, VALUES, PARTS>& exchange, int& half) {
    constexpr int WARPS = TEAM / 32;
    constexpr int TAKEN = WARPS <= 2 ? 2 : WARPS <= 4 ? 4 : WARPS <= 8 ? 8 : WARPS <= 16 ? 16 : 32;
    constexpr int ROUNDS = (WARPS + TAKEN - 1) / TAKEN;
    constexpr float INVERSE_LENGTH = 1.f / float(LENGTH);
    const float(*slot)[VALUES] = hand_out(exchange, half);
    const int taken = threadIdx.x % TAKEN;
    const float origin = slot[0][0];
    float offset = 0.f;
    float plain = 0.f;
    float weight[ROUNDS], apart[ROUNDS];
#pragma unroll
    for (int k = 0; k < ROUNDS; ++k) {
        const int warp = k * TAKEN + taken;
        const bool present = WARPS % TAKEN == 0 || warp < WARPS;
        const float* theirs = slot[present ? warp : 0];
        weight[k] = present ? float(elements_of_warp<TEAM, THREADS, VEC, ITEMS, LENGTH, SHIFTED>(warp)) : 0.f;
        apart[k] = (theirs[0] - origin) + theirs[1];
        offset += weight[k] > 0.f ? weight[k] * apart[k] : 0.f;
        plain += weight[k] > 0.f ? weight[k] * theirs[0] : 0.f;
    }
    offset = lanes_reduce<TAKEN, Sum>(offset) * INVERSE_LENGTH;
    plain = lanes_reduce<TAKEN, Sum>(plain) * INVERSE_LENGTH;
    float total = 0.f;
#pragma unroll
    for (int k = 0; k < ROUNDS; ++k) {
        const int warp = k * TAKEN + taken;
        const float* theirs = slot[WARPS % TAKEN == 0 || warp < WARPS ? warp : 0];
        total += weight[k] > 0.f ? theirs[2] + weight[k] * square(apart[k] - offset) : 0.f;
    }
    total = lanes_reduce<TAKEN, Sum>(total);
    // With an infinity in the row the differences are NaN, but the mean is still that infinity.
    const bool finite = fabsf(plain) <= 3.4028234663852886e38f;
    const float whole = finite ? origin + offset : plain;
    const float left = (finite ? origin - whole : 0.f) + offset;
    return {whole, left * float(LENGTH), total + square(left) * float(LENGTH)};
}

// Exact two-pass statistics of what a warp, or a team within one, has of a row: the mean, the sum of what is left of the elements
// about it, and of the squares of that. `each(visit)` visits the values of this thread.
template <int TEAM, int THREADS, int VEC, int ITEMS, int LENGTH, bool SHIFTED, class Visit>
__device__ __forceinline__ Moments warp_moments(Visit each, float& inverse) {
    constexpr int LANES = TEAM < 32 ? TEAM : 32;
    const int warp = lane_of_team<TEAM, THREADS>() / 32;
    const int count = TEAM > 32 ? elements_of_warp<TEAM, THREADS, VEC, ITEMS, LENGTH, SHIFTED>(warp) : LENGTH;
    inverse = count > 0 ? 1.f / float(count) : 0.f;
    float sum = 0.f;
    each([&](float x) { sum += x; });
    const float mean = lanes_reduce<LANES, Sum>(sum) * inverse;
    float centred = 0.f, squares = 0.f;
    each([&](float x) {
        const float c = x - mean;
        centred += c;
        squares += square(c);
    });
    centred = lanes_reduce<LANES, Sum>(centred);
    return {mean, centred, lanes_reduce<LANES, Sum>(squares)};
}

// They are merged in one exchange: 6 % faster than two at 4096 columns on an H200. `give_moments` and `merge_warps` are the two steps
// of it.
template <int TEAM, int VEC, int ITEMS, int LENGTH, bool SHIFTED, int THREADS, int VALUES, int PARTS, class Visit>
__device__ __forceinline__ void give_moments(Exchange<TEAM, THREADS, VALUES, PARTS>& exchange, int half, Visit each) {
    float inverse;
    const Moments own = warp_moments<TEAM, THREADS, VEC, ITEMS, LENGTH, SHIFTED>(each, inverse);
    const float residual = own.centred * inverse;
    hand_in(exchange, half, own.mean, residual, own.squares - own.centred * residual);
}
template <int TEAM, int VEC, int ITEMS, int LENGTH, bool SHIFTED, int THREADS, int VALUES, int PARTS, class Visit>
__device__ __forceinline__ Moments team_moments(Exchange<TEAM, THREADS, VALUES, PARTS>& exchange, int& half, Visit each) {
    if constexpr (TEAM <= 32) {
        float inverse;
        return warp_moments<TEAM, THREADS, VEC, ITEMS, LENGTH, SHIFTED>(each, inverse);
    } else {
        give_moments<TEAM, VEC, ITEMS, LENGTH, SHIFTED>(exchange, half, each);
        return merge_warps<TEAM, VEC, ITEMS, LENGTH, SHIFTED>(exchange, half);
    }
}

// The maximum of a row, the sum of the exponentials of the distances from it, and what exponentials that a thread keeps are
// to be multiplied by.
struct Exponentials {
    float top;
    float total;
    float scale;
};

// Exponentials of the distances from the maximum of each warp, then one exchange, in which the warps' sums are scaled to the maximum
// of the row. `each(visit)` visits the values of this thread with their numbers; `keep(k, e)` may keep an exponential.
template <int TEAM, int THREADS, int VALUES, int PARTS, class Visit, class Keep>
__device__ __forceinline__ Exponentials team_exponentials(
    Exchange<TEAM, THREADS, VALUES, PARTS>& exchange, int& half, Visit each, Keep keep) {
    float own = -INFINITY;
    each([&](float x, int) { own = maximum(own, x); });
    own = lanes_reduce<(TEAM < 32 ? TEAM : 32), Max>(own);
    const float base = own == -INFINITY ? 0.f : own;  // where a warp has nothing but -inf, the row may have more
    float total = 0.f;
    each([&](float x, int k) {
        const float e = expf(x - base);
        total += e;
        keep(k, e);
    });
    total = lanes_reduce<(TEAM < 32 ? TEAM : 32), Sum>(total);
    if constexpr (TEAM <= 32) {
        return {own, total + (own - own), 1.f};  // NaN where all values are -inf, or one is inf
    } else {
        constexpr int WARPS = TEAM / 32;
        constexpr int TAKEN = WARPS <= 2 ? 2 : WARPS <= 4 ? 4 : WARPS <= 8 ? 8 : WARPS <= 16 ? 16 : 32;
        hand_in(exchange, half, own, total);
        const float(*slot)[VALUES] = hand_out(exchange, half);
        const int taken = threadIdx.x % TAKEN;
        float top = slot[0][0];
#pragma unroll
        for (int warp = taken; warp < WARPS; warp += TAKEN) top = maximum(top, slot[warp][0]);
        top = lanes_reduce<TAKEN, Max>(top);
        total = 0.f;
#pragma unroll
        for (int warp = taken; warp < WARPS; warp += TAKEN) total += slot[warp][1] * expf(slot[warp][0] - top);
        return {top, lanes_reduce<TAKEN, Sum>(total), expf(own - top)};
    }
}
