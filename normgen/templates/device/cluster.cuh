#pragma once
#include "normgen/async.cuh"
#include "normgen/team.cuh"

// ---- Clusters: blocks that run together and write to each other's shared memory -----------------
// A thread group of several blocks is a cluster, from sm_90 on. Elsewhere no schedule makes one.

__device__ __forceinline__ int cluster_rank() {
#if defined(NORMGEN_HOST)
    return int(normgen_cluster_rank());
#else
    int rank = 0;
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
    return rank;
#endif
}

// A condition that the compiler cannot prove. It would move loads of read-only memory from before a
// barrier to behind it, so that none is in flight while blocks wait for each other; or move the
// arrival at a barrier behind all that the loads are used for. It moves neither past a branch.
#if !defined(NORMGEN_HOST)
__device__ __forceinline__ bool always() { return gridDim.x != 0; }
#endif

// Cluster barrier in two steps: what a thread did to mbarriers before it arrives is visible after
// the wait. Arriving orders no other memory, so it need not wait for loads in flight.
__device__ __forceinline__ void cluster_arrive() {
#if defined(NORMGEN_HOST)
    normgen_cluster_arrive();
#elif __CUDA_ARCH__ >= 900
    if (always()) asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if defined(NORMGEN_HOST)
    normgen_cluster_wait();
#elif __CUDA_ARCH__ >= 900
    if (always()) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// The address of the same variable in the shared memory of another block of the cluster (mapa).
template <class T> __device__ __forceinline__ T* in_block(T* shared, int rank) {
#if defined(NORMGEN_HOST)
    return normgen_remote_shared(shared, rank);
#else
    T* remote = shared;
#if __CUDA_ARCH__ >= 900
    asm("mapa.u64 %0, %1, %2;" : "=l"(remote) : "l"(shared), "r"(rank));
#endif
    return remote;
#endif
}

// Stores values to the same place in the shared memory of another block (st.async), up to four at a
// time, counted by its mbarrier. Cheaper than a barrier of the whole cluster.
template <int N>
__device__ __forceinline__ void send_to_block(
    float (&place)[N], const float (&value)[N], arrival_t* arrival, int rank) {
#if defined(NORMGEN_HOST)
    float* const remote = in_block(&place[0], rank);
    for (int i = 0; i < N; ++i) remote[i] = value[i];
#elif __CUDA_ARCH__ >= 900
    unsigned int there, counted;
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(there)
        : "r"(static_cast<unsigned int>(__cvta_generic_to_shared(&place[0]))), "r"(rank));
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(counted)
        : "r"(static_cast<unsigned int>(__cvta_generic_to_shared(arrival))), "r"(rank));
    if constexpr (N == 1) {
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];"
                     ::"r"(there), "f"(value[0]), "r"(counted) : "memory");
    } else if constexpr (N == 2) {
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];"
                     ::"r"(there), "f"(value[0]), "f"(value[1]), "r"(counted) : "memory");
    } else {
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            asm volatile(
                "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
                "[%0], {%1, %2, %3, %4}, [%5];"
                :
                : "r"(there + 4 * i), "f"(value[i]), "f"(value[i + 1]), "f"(value[i + 2]), "f"(value[i + 3]),
                  "r"(counted)
                : "memory");
        }
    }
#endif
}

// Ends a message. (Nothing to do on a device, where the mbarrier counts every value.)
__device__ __forceinline__ void end_message() {
#if defined(NORMGEN_HOST)
    normgen_sent();
#endif
}

// Waits until all that was sent to this block has arrived.
__device__ __forceinline__ void await_sent(arrival_t* arrival, int parity) {
#if defined(NORMGEN_HOST)
    normgen_await_sent(arrival, parity);
#else
    while (!has_arrived<true>(arrival, parity)) {}
#endif
}

// ---- Exchanges of a cluster -----------------------------------------------------------------------

// What a warp contributes, padded to one message, or to several whole ones.
template <int VALUES> struct alignas(VALUES == 1 ? 4 : VALUES == 2 ? 8 : 16) Message {
    static constexpr int PLACES = VALUES > 2 ? (VALUES + 3) / 4 * 4 : VALUES;
    float value[PLACES];
    __device__ __forceinline__ float operator[](int which) const { return value[which]; }
};

// One entry per warp of the cluster, and mbarriers. A half is used again after the exchange in
// between, to which every warp contributes only when it has read that half.
template <int THREADS_OF_GROUP, int THREADS, int VALUES> struct ClusterExchange {
    static constexpr int TEAM = THREADS_OF_GROUP;
    static constexpr int WARPS = TEAM / 32;
    Message<VALUES> slot[2][WARPS];
    arrival_t arrival[2];

    // A thread's number in its group.
    static __device__ __forceinline__ int lane() { return cluster_rank() * THREADS + int(threadIdx.x); }
};

// Bytes that an exchange delivers to each block.
template <int TEAM, int VALUES> constexpr int DELIVERED = TEAM / 32 * int(sizeof(Message<VALUES>));

// Opens exchanges, ahead of loads where possible: blocks initialise their mbarriers.
template <int TEAM, int THREADS, int VALUES>
__device__ __forceinline__ void open_exchange(ClusterExchange<TEAM, THREADS, VALUES>& exchange) {
    if (threadIdx.x == 0) {
        open_arrivals(exchange.arrival, 2);
        for (int half = 0; half < 2; ++half) expect_bytes(&exchange.arrival[half], DELIVERED<TEAM, VALUES>);
    }
    cluster_arrive();
}

// After `open_exchange`: waits until every block of the cluster runs and may be sent to.
__device__ __forceinline__ void join_exchange() { cluster_wait(); }

template <int TEAM, int THREADS, int VALUES, class... Float>
__device__ __forceinline__ void hand_in(
    ClusterExchange<TEAM, THREADS, VALUES>& exchange, int side, Float... value) {
    // `side` counts modulo 4: the half, and the parity of its mbarrier
    const int lane = threadIdx.x % 32;
    auto& place = exchange.slot[side % 2][exchange.lane() / 32];
    arrival_t* const arrival = &exchange.arrival[side % 2];
    __syncwarp();  // what other lanes did before comes before what a receiver does after
    if (lane < TEAM / THREADS) {
        const Message<VALUES> given{value...};  // as many every time
        send_to_block(place.value, given.value, arrival, lane);
        end_message();
    }
}

template <int TEAM, int THREADS, int VALUES>
__device__ __forceinline__ const Message<VALUES>* hand_out(
    ClusterExchange<TEAM, THREADS, VALUES>& exchange, int& side) {
    const int half = side % 2;
    arrival_t* const arrival = &exchange.arrival[half];
    await_sent(arrival, side / 2);
    // Re-arms the mbarrier of this half. (Bytes that are sent before they are expected are counted,
    // but wake waiting threads in vain.)
    if (threadIdx.x == 0) expect_bytes(arrival, DELIVERED<TEAM, VALUES>);
    side = (side + 1) % 4;
    return exchange.slot[half];
}
