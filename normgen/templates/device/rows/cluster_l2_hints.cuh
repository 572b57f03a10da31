#pragma once
#include "normgen/async.cuh"

// ---- L2 eviction-priority hints for persistent clusters -----------------------------------------
// Bulk copies are tagged evict_last (`L2Hints`). The last UNTAGGED rows, half of what L2 holds, are not,
// and a cluster that has no row left demotes its rows among as many before them. (Row by row, the
// bookkeeping would cost most of the gain.)
template <int UNTAGGED> struct ClusterL2Hints {
    static constexpr int TAGGED_ABOVE = 4 * UNTAGGED;  // rows, at most: the cache might hold half of them
    unsigned long long priority = 0, usual = 0;

    __device__ __forceinline__ ClusterL2Hints() {
#if !defined(NORMGEN_HOST)
        asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(priority));
        asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(usual));
#endif
    }

    // `bulk_copy` of a slice of a row, with its hint.
    template <class Index>
    __device__ __forceinline__ void copy(
        void* shared, const void* global, int bytes, arrival_t* arrival, Index row, Index rows) const {
#if !defined(NORMGEN_HOST) && __CUDA_ARCH__ >= 900
        const unsigned int target = static_cast<unsigned int>(__cvta_generic_to_shared(shared));
        const unsigned int counted = static_cast<unsigned int>(__cvta_generic_to_shared(arrival));
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
            "[%0], [%1], %2, [%3], %4;"
            :
            : "r"(target), "l"(global), "r"(bytes), "r"(counted),
              "l"(rows > TAGGED_ABOVE && row < rows - UNTAGGED ? priority : usual)
            : "memory");
#else
        bulk_copy(shared, global, bytes, arrival);
#endif
    }

    // The first row that a cluster demotes, of its rows, which are STEP apart.
    template <class Index> static __device__ __forceinline__ Index first(Index unit, Index step, Index rows) {
        if (rows <= TAGGED_ABOVE) return rows;
        const Index from = rows - 2 * UNTAGGED;
        return unit < from ? unit + (from - unit + step - 1) / step * step : unit;
    }

    // Demotes a block's slice of such a row, by all its threads.
    template <int THREADS, class T>
    static __device__ __forceinline__ void demote(const T* slice, int elements) {
        if (elements <= 0) return;
#if defined(NORMGEN_HOST)
        if (threadIdx.x == 0) normgen_named(slice, elements * sizeof(T));
#else
        constexpr int LINE = 128;
        const char* const end = reinterpret_cast<const char*>(slice + elements);
        const unsigned long long begin = reinterpret_cast<unsigned long long>(slice) / LINE * LINE;
        const char* line = reinterpret_cast<const char*>(begin) + threadIdx.x * LINE;
#pragma unroll 1
        for (; line < end; line += THREADS * LINE) {
            asm volatile("applypriority.global.L2::evict_normal [%0], 128;" ::"l"(line) : "memory");
        }
#endif
    }
};
