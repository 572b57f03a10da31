// ---- Lines of the second-level cache that rows pass through -------------------------------------------------------------------
// What a kernel reads is marked as the last to leave the cache, so that what it writes leaves before: forwards over rows of 8 KB and
// more take 2 to 5 % less on an H200 (32768 x 4096 floats 261 -> 251 us). But marks outlive their kernel, until everything else has
// gone, and what runs next has less of the cache: a norm of 1024 x 4096 floats takes 9.1 us behind such a kernel, and 8.0 else. So
// the last KEPT blocks, or clusters, mark nothing, and take the marks back of as many before them, whose rows are half of
// what the cache holds: of earlier ones nothing is left by then. Where all blocks read less than twice what it holds, nothing is gained
// and nothing is marked.
template <int KEPT, int TEAM, int THREADS> struct Lines {
    static constexpr unsigned int UNMARKED = 4 * KEPT;  // units, at most
    unsigned long long priority = 0;
    bool marks, last;

    __device__ __forceinline__ Lines()
        : marks(units_together<TEAM, THREADS, unsigned int>() > UNMARKED),
          last(marks && unit_of_block<TEAM, THREADS, unsigned int>() >= units_together<TEAM, THREADS, unsigned int>() - KEPT) {
#if !defined(NORMGEN_HOST)
        unsigned long long usual;
        asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(priority));
        asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(usual));
        if (last || !marks) priority = usual;
#endif
    }
    __device__ __forceinline__ uint4 load_word(const uint4* address) const {
#if defined(NORMGEN_HOST)
        return __ldg(address);
#else
        uint4 word;
        asm("ld.global.nc.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
            : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w) : "l"(address), "l"(priority));
        return word;
#endif
    }
    // Words of fewer bytes are not marked.
    template <class W> __device__ __forceinline__ W load_word(const W* address) const { return __ldg(address); }

    // By all threads of a team: a row of an earlier one leaves like any other.
    template <int LENGTH, class T> __device__ __forceinline__ void take_back(const T* row, int lane) const {
#if defined(NORMGEN_HOST)
        if (lane == 0) normgen_named(row, LENGTH * sizeof(T));
#else
        constexpr int LINE = 128;
        const char* const end = reinterpret_cast<const char*>(row + LENGTH);
        const char* line = reinterpret_cast<const char*>(reinterpret_cast<unsigned long long>(row) / LINE * LINE) + lane * LINE;
#pragma unroll 1
        for (; line < end; line += TEAM * LINE) asm volatile("applypriority.global.L2::evict_normal [%0], 128;" ::"l"(line) : "memory");
#endif
    }
};
// Where it does not pay nothing is marked.
template <int TEAM, int THREADS> struct Lines<0, TEAM, THREADS> : Unmarked {
    static constexpr bool last = false;
    template <int LENGTH, class T> __device__ __forceinline__ void take_back(const T*, int) const {}
};
