#pragma once
#include "normgen/async.cuh"

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
