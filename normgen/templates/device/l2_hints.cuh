#pragma once
#include "normgen/vector.cuh"

// ---- L2 eviction-priority hints for rows that are read once -------------------------------------
// Loads are tagged evict_last, so that L2 keeps reads while writes drain. Tags outlive their
// kernel, and a kernel that follows would have less of L2. So the last UNTAGGED blocks, or clusters,
// tag nothing, and demote the lines of as many before them; both are half of what L2 holds, and of
// earlier ones nothing is left by then. Where all blocks together read less than twice what L2
// holds, nothing is tagged.
template <int UNTAGGED, int TEAM, int THREADS> struct L2Hints {
    static constexpr unsigned int TAGGED_ABOVE = 4 * UNTAGGED;  // units, at most
    static constexpr unsigned int BLOCKS = TEAM > THREADS ? TEAM / THREADS : 1;  // of a unit
    unsigned long long priority = 0;
    bool tags, last;

    __device__ __forceinline__ L2Hints()
        : tags(gridDim.x / BLOCKS > TAGGED_ABOVE),
          last(tags && blockIdx.x / BLOCKS >= gridDim.x / BLOCKS - UNTAGGED) {
#if !defined(NORMGEN_HOST)
        unsigned long long usual;
        asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(priority));
        asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(usual));
        if (last || !tags) priority = usual;
#endif
    }
    __device__ __forceinline__ uint4 load_word(const uint4* address) const {
#if defined(NORMGEN_HOST)
        return *address;
#else
        uint4 word;
        asm volatile("ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                     : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
                     : "l"(address), "l"(priority) : "memory");
        return word;
#endif
    }
    // Words of fewer bytes are not tagged.
    template <class W> __device__ __forceinline__ W load_word(const W* address) const {
        return *address;
    }

    // Demotes a row that an earlier thread group tagged, by all threads of this one: its lines are
    // evicted like any other.
    template <int LENGTH, class T> __device__ __forceinline__ void demote(const T* row, int lane) const {
#if defined(NORMGEN_HOST)
        if (lane == 0) normgen_named(row, LENGTH * sizeof(T));
#else
        constexpr int LINE = 128;
        const char* const end = reinterpret_cast<const char*>(row + LENGTH);
        const unsigned long long begin = reinterpret_cast<unsigned long long>(row) / LINE * LINE;
        const char* line = reinterpret_cast<const char*>(begin) + lane * LINE;
#pragma unroll 1
        for (; line < end; line += TEAM * LINE) {
            asm volatile("applypriority.global.L2::evict_normal [%0], 128;" ::"l"(line) : "memory");
        }
#endif
    }
};

template <int N, class T, class Hints>
__device__ __forceinline__ Vector<T, N> load_vector(const T* address, const Hints& hints) {
    using V = Vector<T, N>;
    V vector;
    const auto* words = reinterpret_cast<const typename V::word_t*>(address);
#pragma unroll
    for (int i = 0; i < V::WORDS; ++i) vector.word[i] = hints.load_word(words + i);
    return vector;
}
