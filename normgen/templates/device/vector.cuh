#pragma once

// ---- Vectors: N elements of T moved as whole words of up to 16 bytes ----------------------------
// Values are float inside a kernel; an element type exists only between memory and registers.

template <int BYTES> struct Word;
template <> struct Word<16> { using type = uint4; };
template <> struct Word<8> { using type = uint2; };
template <> struct Word<4> { using type = unsigned int; };
template <> struct Word<2> { using type = unsigned short; };
template <> struct Word<1> { using type = unsigned char; };

// REALIGNED: one word more, until the elements are realigned (realigned.cuh).
template <class T, int N, bool REALIGNED = false> struct Vector {
    static constexpr int BYTES = N * int(sizeof(T));
    static constexpr int WORD_BYTES = BYTES < 16 ? BYTES : 16;
    static constexpr int WORDS = BYTES / WORD_BYTES;
    using word_t = typename Word<WORD_BYTES>::type;
    word_t word[REALIGNED ? WORDS + 1 : WORDS];
};

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(__half value) { return __half2float(value); }
__device__ __forceinline__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ __forceinline__ float to_float(__nv_fp8_e4m3 value) { return float(value); }
__device__ __forceinline__ float to_float(__nv_fp8_e5m2 value) { return float(value); }

// Round to nearest even; 16-bit types overflow to infinity, fp8 saturates, NaN stays NaN.
template <class T> __device__ __forceinline__ T from_float(float value) { return T(value); }
template <> __device__ __forceinline__ __half from_float<__half>(float value) {
    return __float2half_rn(value);
}
template <> __device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float value) {
    return __float2bfloat16_rn(value);
}

// A value rounded to T. A 16-bit type is converted as a pair with zero: the conversion of a pair
// runs at the rate of arithmetic, that of one value at an eighth of it; and with the zero below it,
// a bfloat16 is a float already.
template <class T> __device__ __forceinline__ float round_to(float value) {
    return to_float(from_float<T>(value));
}
#if !defined(NORMGEN_HOST) && __CUDA_ARCH__ >= 800
template <> __device__ __forceinline__ float round_to<__nv_bfloat16>(float value) {
    unsigned int pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(value), "f"(0.f));
    return __uint_as_float(pair);
}
#endif
#if !defined(NORMGEN_HOST) && __CUDA_ARCH__ >= 800
template <> __device__ __forceinline__ float round_to<__half>(float value) {
    return __low2float(__floats2half2_rn(value, 0.f));
}
#endif

// EACH elements, converted together in half the instructions.
template <class T> struct Packed { static constexpr int EACH = 1; };
template <> struct Packed<__half> {
    static constexpr int EACH = 2;
    using type = __half2;
    static __device__ __forceinline__ type of(const float* values) {
        return __floats2half2_rn(values[0], values[1]);
    }
};
template <> struct Packed<__nv_bfloat16> {
    static constexpr int EACH = 2;
    using type = __nv_bfloat162;
    static __device__ __forceinline__ type of(const float* values) {
        return __floats2bfloat162_rn(values[0], values[1]);
    }
};
template <class Fours> struct PackedFours {
    static constexpr int EACH = 4;
    using type = Fours;
    static __device__ __forceinline__ type of(const float* values) {
        return type(make_float4(values[0], values[1], values[2], values[3]));
    }
};
template <> struct Packed<__nv_fp8_e4m3> : PackedFours<__nv_fp8x4_e4m3> {};
template <> struct Packed<__nv_fp8_e5m2> : PackedFours<__nv_fp8x4_e5m2> {};

// The elements of a word of four bytes, where a packed conversion is faster.
template <class T> struct InWords { static constexpr int EACH = 1; };
template <> struct InWords<__nv_bfloat16> {
    static constexpr int EACH = 2;
    // One instruction each: a bfloat16 is the upper half of a float. (The second is opaque to the
    // compiler, which would otherwise share its results between the passes over a row, and run out
    // of registers.)
    static __device__ __forceinline__ void unpack(unsigned int word, float* values) {
        unsigned int upper = word & 0xffff0000u;
#if !defined(NORMGEN_HOST)
        asm("and.b32 %0, %1, 0xffff0000;" : "=r"(upper) : "r"(word));
#endif
        values[0] = __uint_as_float(word << 16);
        values[1] = __uint_as_float(upper);
    }
};
template <class T> struct FourInWord {
    static constexpr int EACH = 4;
    static __device__ __forceinline__ void unpack(unsigned int word, float* values) {
        typename Packed<T>::type fours;
        memcpy(&fours, &word, sizeof(fours));
        const float4 four = static_cast<float4>(fours);
        values[0] = four.x;
        values[1] = four.y;
        values[2] = four.z;
        values[3] = four.w;
    }
};
template <> struct InWords<__nv_fp8_e5m2> : FourInWord<__nv_fp8_e5m2> {};
#if defined(NORMGEN_HOST) || __CUDA_ARCH__ < 890
template <> struct InWords<__nv_fp8_e4m3> : FourInWord<__nv_fp8_e4m3> {};
#else
template <> struct InWords<__nv_fp8_e4m3> {
    static constexpr int EACH = 4;
    // (the compiler extracts the upper half by itself only where the two halves are named as such)
    static __device__ __forceinline__ void unpack(unsigned int word, float* values) {
        __half2 low, high;
        asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\n"
            "cvt.rn.f16x2.e4m3x2 %0, low;\ncvt.rn.f16x2.e4m3x2 %1, high;\n}"
            : "=r"(reinterpret_cast<unsigned int&>(low)), "=r"(reinterpret_cast<unsigned int&>(high))
            : "r"(word));
        values[0] = __low2float(low);
        values[1] = __high2float(low);
        values[2] = __low2float(high);
        values[3] = __high2float(high);
    }
};
#endif

template <class T, int N, bool REALIGNED>
__device__ __forceinline__ void unpack(const Vector<T, N, REALIGNED>& vector, float (&values)[N]) {
    constexpr int EACH = InWords<T>::EACH;
    if constexpr (EACH > 1 && N % EACH == 0) {
        unsigned int words[N / EACH];
        memcpy(words, vector.word, sizeof(words));
#pragma unroll
        for (int i = 0; i < N; i += EACH) InWords<T>::unpack(words[i / EACH], values + i);
    } else {
        T elements[N];
        memcpy(elements, vector.word, sizeof(elements));
#pragma unroll
        for (int i = 0; i < N; ++i) values[i] = to_float(elements[i]);
    }
}

template <int N> __device__ __forceinline__ void copy_all(const float* from, float (&to)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = from[i];
}
template <int N> __device__ __forceinline__ void put_all(const float (&from)[N], float* to) {
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = from[i];
}
template <int N> __device__ __forceinline__ void set_all(float (&values)[N], float value) {
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = value;
}

// The values of an operand that may be absent: `missing` then stands for every element.
template <bool PRESENT, class T, int N, bool REALIGNED>
__device__ __forceinline__ void unpack_or(
    const Vector<T, N, REALIGNED>& vector, float missing, float (&values)[N]) {
    if constexpr (PRESENT) unpack(vector, values);
    else set_all(values, missing);
}

// Hides a packed vector's history from the compiler, which would otherwise keep the unpacked floats
// of an earlier phase alive over the reduction: twice the registers.
template <class T, int N, bool REALIGNED>
__device__ __forceinline__ void keep_packed(Vector<T, N, REALIGNED>& vector) {
#if !defined(NORMGEN_HOST)
    if constexpr (Vector<T, N>::WORD_BYTES >= 4) {
        auto* parts = reinterpret_cast<unsigned int*>(vector.word);
#pragma unroll
        for (int i = 0; i < Vector<T, N>::BYTES / 4; ++i) asm volatile("" : "+r"(parts[i]));
    }
#endif
}

template <class T, int N> __device__ __forceinline__ Vector<T, N> pack(const float (&values)[N]) {
    Vector<T, N> vector;
    constexpr int EACH = Packed<T>::EACH;
    if constexpr (EACH > 1 && N % EACH == 0) {
        typename Packed<T>::type packed[N / EACH];
#pragma unroll
        for (int i = 0; i < N; i += EACH) packed[i / EACH] = Packed<T>::of(values + i);
        memcpy(vector.word, packed, sizeof(packed));
    } else {
        T elements[N];
#pragma unroll
        for (int i = 0; i < N; ++i) elements[i] = from_float<T>(values[i]);
        memcpy(vector.word, elements, sizeof(elements));
    }
    return vector;
}

// The offset of a row. Neither number is negative, so one 32-bit multiplication gives 64 bits.
template <class Offset, class Index> __device__ __forceinline__ Offset row_offset(Index row, Index stride) {
    if constexpr (sizeof(Offset) > sizeof(Index)) {
        return Offset((unsigned long long)(unsigned int)row * (unsigned int)stride);
    } else return Offset(row) * stride;
}

// Loads have no cache hints except where rows are many (`L2Hints`), and stores none except in
// clusters. Streaming hints (L1::no_allocate, st.global.cs) would make every line of L2 the first to
// go: once L2 is full of such lines, a kernel runs in the little room that others have left.
template <int N, class T> __device__ __forceinline__ Vector<T, N> load_vector(const T* address) {
    using V = Vector<T, N>;
    V vector;
    const auto* words = reinterpret_cast<const typename V::word_t*>(address);
#pragma unroll
    for (int i = 0; i < V::WORDS; ++i) vector.word[i] = words[i];
    return vector;
}

// One store: the compiler would split that of a vector whose elements it has in registers of their
// own.
__device__ __forceinline__ void store_word(uint4* address, uint4 word) {
#if defined(NORMGEN_HOST)
    *address = word;
#else
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
                 ::"l"(address), "r"(word.x), "r"(word.y), "r"(word.z), "r"(word.w) : "memory");
#endif
}
template <class W> __device__ __forceinline__ void store_word(W* address, W word) { *address = word; }

template <class T, int N>
__device__ __forceinline__ void store_vector(T* address, const Vector<T, N>& vector) {
    auto* words = reinterpret_cast<typename Vector<T, N>::word_t*>(address);
#pragma unroll
    for (int i = 0; i < Vector<T, N>::WORDS; ++i) store_word(words + i, vector.word[i]);
}

template <bool ACCUMULATES, class T> __device__ __forceinline__ void store_scalar(T* address, float value) {
    if constexpr (ACCUMULATES) value += to_float(*address);
    *address = from_float<T>(value);
}

template <class T> __device__ __forceinline__ float load_scalar(const T* address) {
    float value[1];
    unpack(load_vector<1>(address), value);
    return value[0];
}

// Adds the values that memory holds already (accumulated parameter gradients).
template <int N, class T> __device__ __forceinline__ void add_stored(const T* address, float (&values)[N]) {
    float stored[N];
    Vector<T, N> vector;
    const auto* words = reinterpret_cast<const typename Vector<T, N>::word_t*>(address);
#pragma unroll
    for (int i = 0; i < Vector<T, N>::WORDS; ++i) vector.word[i] = words[i];
    unpack(vector, stored);
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] += stored[i];
}
