// What the memory can do: copies (one array in, one out) and triads (two in, one out) with streaming stores. WORDS words of
// 16 bytes a thread, all loads before the stores.
__device__ __forceinline__ uint4 read_once(const uint4* address) {
    uint4 word;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w) : "l"(address));
    return word;
}

extern "C" __global__ void copy(const uint4* __restrict__ x, uint4* __restrict__ y, long long words) {
    const long long first = (long long)blockIdx.x * blockDim.x * WORDS + threadIdx.x;
    uint4 held[WORDS];
#pragma unroll
    for (int k = 0; k < WORDS; ++k) {
        const long long i = first + (long long)k * blockDim.x;
        if (i < words) held[k] = read_once(x + i);
    }
#pragma unroll
    for (int k = 0; k < WORDS; ++k) {
        const long long i = first + (long long)k * blockDim.x;
        if (i < words) __stcs(y + i, held[k]);
    }
}

extern "C" __global__ void triad(
    const uint4* __restrict__ x, const uint4* __restrict__ z, uint4* __restrict__ y, long long words) {
    const long long first = (long long)blockIdx.x * blockDim.x * WORDS + threadIdx.x;
    uint4 held[WORDS], other[WORDS];
#pragma unroll
    for (int k = 0; k < WORDS; ++k) {
        const long long i = first + (long long)k * blockDim.x;
        if (i < words) held[k] = read_once(x + i), other[k] = read_once(z + i);
    }
#pragma unroll
    for (int k = 0; k < WORDS; ++k) {
        const long long i = first + (long long)k * blockDim.x;
        const uint4 a = held[k], b = other[k];
        if (i < words) __stcs(y + i, make_uint4(a.x ^ b.x, a.y ^ b.y, a.z ^ b.z, a.w ^ b.w));
    }
}
