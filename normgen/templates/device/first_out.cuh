#pragma once
#include "normgen/vector.cuh"

// In clusters, lines that are written are the first to leave L2 (evict_first), which leaves more of
// it to rows in flight.
__device__ __forceinline__ void store_word_first_out(uint4* address, uint4 word) {
#if defined(NORMGEN_HOST)
    *address = word;
#else
    asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};"
                 ::"l"(address), "r"(word.x), "r"(word.y), "r"(word.z), "r"(word.w) : "memory");
#endif
}
template <class W> __device__ __forceinline__ void store_word_first_out(W* address, W word) {
    *address = word;
}

template <class T, int N>
__device__ __forceinline__ void store_vector_first_out(T* address, const Vector<T, N>& vector) {
    auto* words = reinterpret_cast<typename Vector<T, N>::word_t*>(address);
#pragma unroll
    for (int i = 0; i < Vector<T, N>::WORDS; ++i) store_word_first_out(words + i, vector.word[i]);
}
