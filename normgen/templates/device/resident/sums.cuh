#pragma once
#include "normgen/folded.cuh"
#include "normgen/resident/resident.cuh"
#include "normgen/team.cuh"
#include "normgen/vector.cuh"

// ---- Resident slices whose statistics are sums --------------------------------------------------
// The threads' sums of each column are added over thread groups, then over neighbours, and those of
// blocks over members: each in an order that depends on nothing but how a segment is dealt out.

// Before what comes next is waited for (see `SliceMoments`).
__device__ __forceinline__ void summed_so_far(float sum) {
    if (__float_as_uint(sum) == 0x7fc0beefu) __threadfence_block();
}

// Stores a vector in shared memory, where `store_vector` would write to global memory.
template <int N> __device__ __forceinline__ void write_vector(float* at, const Vector<float, N>& vector) {
    using V = Vector<float, N>;
#pragma unroll
    for (int i = 0; i < V::WORDS; ++i) reinterpret_cast<typename V::word_t*>(at)[i] = vector.word[i];
}

// How many neighbouring lanes add up a column of the block's thread groups; with several, rows are
// padded by four words, so that these lanes read different banks.
template <int LENGTH, int TEAMS, int THREADS> struct TeamRoom {
    static constexpr int LANES = power_within(smaller(smaller(THREADS / LENGTH, TEAMS), 32));
    static constexpr int STRIDE = LENGTH + (LANES > 1 ? 4 : 0);
    static constexpr int SIZE = TEAMS * STRIDE;
};

// The sums of each column, over all thread groups: `into` may be read, and the scratch written
// again, when it returns.
template <class Layout, int N, int ITEMS, int LENGTH, int TEAMS, int THREADS>
__device__ __forceinline__ void add_teams(
    float* room, float* into, const float (&sums)[ITEMS * N], int team, int lane) {
    using Room = TeamRoom<LENGTH, TEAMS, THREADS>;
    constexpr int LANES = Room::LANES, STRIDE = Room::STRIDE;
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int column = Layout::column(item, lane);
        if (!Layout::has(item, lane, column)) continue;
        float values[N];
#pragma unroll
        for (int i = 0; i < N; ++i) values[i] = sums[item * N + i];
        write_vector(room + team * STRIDE + column, pack<float>(values));
    }
    __syncthreads();
    const int one = threadIdx.x % LANES;
    for (int first = 0; first < LENGTH; first += THREADS / LANES) {
        const int column = first + int(threadIdx.x) / LANES;
        float all = 0.f;
        if (column < LENGTH) {
#pragma unroll
            for (int k = 0; k < TEAMS; k += LANES) {
                if (k + LANES <= TEAMS || k + one < TEAMS) all += room[(k + one) * STRIDE + column];
            }
        }
        all = lanes_reduce<LANES, Sum>(all);
        if (one == 0 && column < LENGTH) into[column] = all;
    }
    __syncthreads();
}

// Fills those of a sum that nobody wants: a slice's sums are always read whole.
template <int LENGTH, int THREADS> __device__ __forceinline__ void clear_sums(float* into) {
    for (int column = threadIdx.x; column < LENGTH; column += THREADS) into[column] = 0.f;
    __syncthreads();
}

// COUNT sums of each group of FOLD neighbours, as [sum][group]; `add(column, all)` adds those of a
// column.
template <int COUNT, int GROUPS, int FOLD, int THREADS, class Add>
__device__ __forceinline__ void fold_columns(float* into, Add add) {
    constexpr int LANES = power_within(smaller(smaller(THREADS / GROUPS, FOLD), 32));
    const int one = threadIdx.x % LANES;
    for (int first = 0; first < GROUPS; first += THREADS / LANES) {
        const int group = first + int(threadIdx.x) / LANES;
        float all[COUNT] = {};
        if (group < GROUPS) {
            for (int k = one; k < FOLD; k += LANES) add(group * FOLD + k, all);
        }
#pragma unroll
        for (int k = 0; k < COUNT; ++k) {
            all[k] = lanes_reduce<LANES, Sum>(all[k]);
            if (one == 0 && group < GROUPS) into[k * GROUPS + group] = all[k];
        }
    }
}

// Factors of a vector's elements, from shared memory.
template <int N, int COUNT>
__device__ __forceinline__ void read_factors(const float* from, float (&into)[COUNT], int item) {
    float values[N];
    unpack(read_vector<N>(from), values);
#pragma unroll
    for (int i = 0; i < N; ++i) into[item * N + i] = values[i];
}

// The sums of what MEMBERS have published in `found`, SIZE values each. Neighbouring threads fetch
// neighbouring values, each of the SUBS-th part of the members, and add those up in shared memory.
// Afterwards `into` may be read.
template <int MEMBERS, int SIZE, int ROOM, int THREADS>
__device__ __forceinline__ void add_members(const float* found, float* room, float* into) {
    constexpr int SUBS = power_within(smaller(smaller(THREADS / SIZE, ROOM / SIZE), MEMBERS));
    constexpr int ROUNDS = (MEMBERS + SUBS - 1) / SUBS;
    constexpr int TOGETHER = smaller(ROUNDS, KEPT_PARTS);  // more, and what waits in registers spills
    const auto some = [&](int value, int sub) {
        float all = 0.f;
#pragma unroll TOGETHER
        for (int k = 0; k < ROUNDS; ++k) {
            const int member = k * SUBS + sub;
            if (member < MEMBERS) all += __ldcg(found + member * SIZE + value);
        }
        return all;
    };
    if constexpr (SUBS == 1) {
        for (int value = threadIdx.x; value < SIZE; value += THREADS) into[value] = some(value, 0);
    } else {
        const int value = threadIdx.x % SIZE, sub = threadIdx.x / SIZE;
        if (sub < SUBS) room[sub * SIZE + value] = some(value, sub);
        __syncthreads();
        if (threadIdx.x < SIZE) {
            float all = 0.f;
#pragma unroll
            for (int k = 0; k < SUBS; ++k) all += room[k * SIZE + threadIdx.x];
            into[threadIdx.x] = all;
        }
    }
    __syncthreads();
}
