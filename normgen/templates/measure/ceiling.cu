// Bandwidth ceilings: copies (one array in, one out) and triads (two in, one out). A thread has 1,
// 2 or 4 words of 16 bytes, all loads before the stores. STREAMING: streaming hints, best where L2
// holds nothing else. EVICT_LAST: loads are tagged evict_last, so that L2 drains writes first; tags stay.
// Beside them what measuring needs: contents, a kernel that waits, and one that fills L2.
enum Hint { NONE, STREAMING, EVICT_LAST };

template <Hint HINT> __device__ __forceinline__ uint4 load_word(const uint4* address) {
    if constexpr (HINT == NONE) return __ldg(address);
    uint4 word;
    if constexpr (HINT == EVICT_LAST) {
        unsigned long long last;
        asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(last));
        asm("ld.global.nc.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
            : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w) : "l"(address), "l"(last));
    } else {
        asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
            : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w) : "l"(address));
    }
    return word;
}

template <Hint HINT> __device__ __forceinline__ void store_word(uint4* address, uint4 word) {
    if constexpr (HINT == STREAMING) {
        __stcs(address, word);
    } else {
        *address = word;
    }
}

template <int WORDS, Hint HINT>
__device__ __forceinline__ void copy(const uint4* __restrict__ x, uint4* __restrict__ y, long long words) {
    const long long first = (long long)blockIdx.x * blockDim.x * WORDS + threadIdx.x;
    uint4 held[WORDS];
#pragma unroll
    for (int k = 0; k < WORDS; ++k) {
        const long long i = first + (long long)k * blockDim.x;
        if (i < words) held[k] = load_word<HINT>(x + i);
    }
#pragma unroll
    for (int k = 0; k < WORDS; ++k) {
        const long long i = first + (long long)k * blockDim.x;
        if (i < words) store_word<HINT>(y + i, held[k]);
    }
}

template <int WORDS, Hint HINT>
__device__ __forceinline__ void triad(
    const uint4* __restrict__ x, const uint4* __restrict__ z, uint4* __restrict__ y, long long words) {
    const long long first = (long long)blockIdx.x * blockDim.x * WORDS + threadIdx.x;
    uint4 held[WORDS], other[WORDS];
#pragma unroll
    for (int k = 0; k < WORDS; ++k) {
        const long long i = first + (long long)k * blockDim.x;
        if (i < words) held[k] = load_word<HINT>(x + i), other[k] = load_word<HINT>(z + i);
    }
#pragma unroll
    for (int k = 0; k < WORDS; ++k) {
        const long long i = first + (long long)k * blockDim.x;
        const uint4 a = held[k], b = other[k];
        if (i < words) store_word<HINT>(y + i, make_uint4(a.x ^ b.x, a.y ^ b.y, a.z ^ b.z, a.w ^ b.w));
    }
}

#define VARIANT(NAME, WORDS, HINT)                                                                         \
    extern "C" __global__ void copy##NAME(const uint4* x, uint4* y, long long words) {                     \
        copy<WORDS, HINT>(x, y, words);                                                                    \
    }                                                                                                      \
    extern "C" __global__ void triad##NAME(const uint4* x, const uint4* z, uint4* y, long long words) {    \
        triad<WORDS, HINT>(x, z, y, words);                                                                \
    }
VARIANT(1, 1, NONE)
VARIANT(2, 2, NONE)
VARIANT(4, 4, NONE)
VARIANT(1s, 1, STREAMING)
VARIANT(2s, 2, STREAMING)
VARIANT(4s, 4, STREAMING)
VARIANT(1k, 1, EVICT_LAST)

// Bits without a pattern, so that reading them costs the memory what data costs.
extern "C" __global__ void noise(uint4* y, long long words) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= words) return;
    unsigned int bits[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        unsigned int h = (unsigned int)(4 * i + k) * 0x9E3779B9u;
        h = (h ^ (h >> 16)) * 0x85EBCA6Bu;
        h = (h ^ (h >> 13)) * 0xC2B2AE35u;
        bits[k] = h ^ (h >> 16);
    }
    y[i] = make_uint4(bits[0], bits[1], bits[2], bits[3]);
}

// Keeps the stream busy for so many cycles.
extern "C" __global__ void spin(long long cycles) {
    const long long begin = clock64();
    while (clock64() - begin < cycles) {
    }
}

// Leaves L2 full of lines of y, which nobody reads again.
extern "C" __global__ void crowd(uint4* y, long long words) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= words) return;
    uint4 word = y[i];
    y[i] = make_uint4(word.x + 1, word.y, word.z, word.w);
}
