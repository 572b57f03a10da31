// ---- Asynchronous copies from global to shared memory -------------------------------------------------------------------------
// Every thread copies exactly the vectors that it reads itself, so that waiting for its own copies is all the synchronisation
// there is. Vectors of more than 16 bytes lie in planes of 16, which keeps the threads of a warp on different banks.

// PASSING: the second-level cache lets go of it first. Right for a kernel that writes next to nothing, after which the results of
// the next one stay in the cache until they are written in peace (a backward over batch statistics 502 -> 475 us on an H200); wrong where
// this kernel has results of its own (a backward over rows 0.97 -> 0.80 of a triad).
template <int BYTES, bool PASSING> __device__ __forceinline__ void async_copy(void* shared, const void* global) {
#if defined(NORMGEN_HOST)
    normgen_async_copy(shared, global, BYTES);
#else
    const unsigned int target = static_cast<unsigned int>(__cvta_generic_to_shared(shared));
    if constexpr (BYTES == 16 && PASSING) {
        unsigned long long policy;
        asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
        // Flips no bit, as grids have no z; but ptxas of CUDA 13.0, where it can tell the part of the address that all threads
        // share, encodes that and the policy in registers that do not exist.
        const unsigned int opaque = target ^ (blockIdx.z << (threadIdx.x % 32));
        asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;"
                     ::"r"(opaque), "l"(global), "l"(policy) : "memory");
    } else if constexpr (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(global) : "memory");
    } else if constexpr (BYTES >= 4) {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(target), "l"(global), "n"(BYTES) : "memory");
    } else {
        // The hardware copies 4 bytes at least; narrower vectors go through a register.
        *static_cast<typename Word<BYTES>::type*>(shared) = __ldg(static_cast<const typename Word<BYTES>::type*>(global));
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

// One operand's part of a ring: `slots` vectors for each thread of the block.
template <class T, int N, int THREADS> struct Ring {
    using V = Vector<T, N>;
    static __device__ __forceinline__ unsigned char* at(unsigned char* base, int slot, int word) {
        return base + ((slot * V::WORDS + word) * THREADS + int(threadIdx.x)) * V::WORD_BYTES;
    }
    template <bool PASSING> static __device__ __forceinline__ void fill(unsigned char* base, int slot, const T* source) {
#pragma unroll
        for (int word = 0; word < V::WORDS; ++word) {
            async_copy<V::WORD_BYTES, PASSING>(at(base, slot, word), reinterpret_cast<const unsigned char*>(source) + word * V::WORD_BYTES);
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
