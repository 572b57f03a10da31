#pragma once
#include "normgen/vector.cuh"

// ---- Asynchronous copies from global to shared memory -------------------------------------------
// Every thread copies exactly the vectors that it reads itself, so that waiting for its own copies
// is all the synchronisation there is. Vectors of more than 16 bytes lie in planes of 16, which
// keeps the threads of a warp on different banks.

// One cp.async of BYTES. Those of 16 prefetch the 128-byte line into L2.
template <int BYTES> __device__ __forceinline__ void async_copy(void* shared, const void* global) {
#if defined(NORMGEN_HOST)
    normgen_async_copy(shared, global, BYTES);
#else
    const unsigned int target = static_cast<unsigned int>(__cvta_generic_to_shared(shared));
    if constexpr (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;"
                     ::"r"(target), "l"(global) : "memory");
    } else if constexpr (BYTES >= 4) {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;"
                     ::"r"(target), "l"(global), "n"(BYTES) : "memory");
    } else {
        // The hardware copies at least 4 bytes; narrower vectors go through a register.
        using word_t = typename Word<BYTES>::type;
        *static_cast<word_t*>(shared) = *static_cast<const word_t*>(global);
    }
#endif
}
__device__ __forceinline__ void async_commit() {
#if defined(NORMGEN_HOST)
    normgen_async_commit();
#else
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int PENDING> __device__ __forceinline__ void async_wait() {
#if defined(NORMGEN_HOST)
    normgen_async_wait(PENDING);
#else
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

// A stage of a circular pipeline of PLACES stages, where `place` may lie in the next round.
template <int PLACES> __device__ __forceinline__ constexpr int wrapped(int place) {
    return place < PLACES ? place : place - PLACES;
}

// One operand's part of a multistage pipeline in shared memory: `slots` vectors per thread of the
// block. Where each thread copies its own, they lie in planes of one word; where a block's slice of
// the row arrives as one copy (BULK), they lie as in memory.
template <class T, int N, int THREADS, bool BULK = false> struct Pipeline {
    using V = Vector<T, N>;
    static __device__ __forceinline__ unsigned char* at(unsigned char* base, int slot, int word) {
        if constexpr (BULK) {
            return base + ((slot * THREADS + int(threadIdx.x)) * V::WORDS + word) * V::WORD_BYTES;
        }
        return base + ((slot * V::WORDS + word) * THREADS + int(threadIdx.x)) * V::WORD_BYTES;
    }
    static __device__ __forceinline__ void fill(unsigned char* base, int slot, const T* source) {
#pragma unroll
        for (int word = 0; word < V::WORDS; ++word) {
            async_copy<V::WORD_BYTES>(
                at(base, slot, word), reinterpret_cast<const unsigned char*>(source) + word * V::WORD_BYTES);
        }
    }
    static __device__ __forceinline__ V read(unsigned char* base, int slot) {
        V vector;
#pragma unroll
        for (int word = 0; word < V::WORDS; ++word) {
            vector.word[word] = *reinterpret_cast<const typename V::word_t*>(at(base, slot, word));
        }
        return vector;
    }
    static __device__ __forceinline__ void write(unsigned char* base, int slot, const V& vector) {
#pragma unroll
        for (int word = 0; word < V::WORDS; ++word) {
            *reinterpret_cast<typename V::word_t*>(at(base, slot, word)) = vector.word[word];
        }
    }
};

// ---- Bulk copies: a run of bytes requested by one thread and counted by an mbarrier where it lands 
// For rows that are read from shared memory again in every pass, where a thread's own copies would
// take registers that it needs. (Where rows stay in registers, a thread's own copies are better.)
// On the host they are the thread's own asynchronous copies, for which all wait.
using arrival_t = unsigned long long;

// Initialises mbarriers, by one thread of the block. Others may wait after a barrier.
__device__ __forceinline__ void open_arrivals(arrival_t* arrival, int count) {
#if defined(NORMGEN_HOST)
    normgen_open_arrivals(arrival, count);
    normgen_arrivals_fence();
#elif __CUDA_ARCH__ >= 900
    const unsigned int first = static_cast<unsigned int>(__cvta_generic_to_shared(arrival));
    for (int k = 0; k < count; ++k) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(first + 8 * k) : "memory");
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// Expects so many more bytes, by one thread. Bytes that arrived earlier are counted too.
__device__ __forceinline__ void expect_bytes(arrival_t* arrival, int bytes) {
#if defined(NORMGEN_HOST)
    normgen_expect(arrival);
#elif __CUDA_ARCH__ >= 900
    const unsigned int mine = static_cast<unsigned int>(__cvta_generic_to_shared(arrival));
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(mine), "r"(bytes) : "memory");
#endif
}

// Whether the phase of this parity has completed; waits for it a while. In a cluster, what other
// blocks wrote is then visible too.
template <bool CLUSTER> __device__ __forceinline__ bool has_arrived(arrival_t* arrival, int parity) {
#if !defined(NORMGEN_HOST) && __CUDA_ARCH__ >= 900
    const unsigned int mine = static_cast<unsigned int>(__cvta_generic_to_shared(arrival));
    unsigned int done;
    if constexpr (CLUSTER) {
        asm volatile(
            "{\n.reg .pred complete;\n"
            "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 complete, [%1], %2;\n"
            "selp.u32 %0, 1, 0, complete;\n}" : "=r"(done) : "r"(mine), "r"(parity) : "memory");
    } else {
        asm volatile(
            "{\n.reg .pred complete;\n"
            "mbarrier.try_wait.parity.shared::cta.b64 complete, [%1], %2;\n"
            "selp.u32 %0, 1, 0, complete;\n}" : "=r"(done) : "r"(mine), "r"(parity) : "memory");
    }
    return done;
#else
    return true;
#endif
}

// Bulk copy by one thread: `bytes` and both addresses are multiples of 16. Kernels align their
// shared memory to lines of 128 bytes, since copies to places that straddle lines are slower.
__device__ __forceinline__ void bulk_copy(void* shared, const void* global, int bytes, arrival_t* arrival) {
#if defined(NORMGEN_HOST)
    for (int at = 0; at < bytes; at += 16) {
        normgen_async_copy(
            static_cast<unsigned char*>(shared) + at, static_cast<const unsigned char*>(global) + at, 16);
    }
#elif __CUDA_ARCH__ >= 900
    const unsigned int target = static_cast<unsigned int>(__cvta_generic_to_shared(shared));
    const unsigned int counted = static_cast<unsigned int>(__cvta_generic_to_shared(arrival));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(target), "l"(global), "r"(bytes), "r"(counted) : "memory");
#endif
}

// Commits the copies since the last call as those of one slot, even if there are none.
__device__ __forceinline__ void bulk_commit() {
#if defined(NORMGEN_HOST)
    normgen_async_commit();
#endif
}

// Waits, by all threads of the block, until a slot has arrived; the next PENDING slots need not
// have.
template <int PENDING> __device__ __forceinline__ void bulk_wait(arrival_t* arrival, int parity) {
#if defined(NORMGEN_HOST)
    normgen_bulk_wait(PENDING, arrival, parity);
#else
    while (!has_arrived<false>(arrival, parity)) {}
#endif
}
