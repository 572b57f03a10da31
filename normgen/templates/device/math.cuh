// ---- Functions of one element ------------------------------------------------------------------------------------------------

__device__ __forceinline__ float square(float x) { return x * x; }
__device__ __forceinline__ float cube(float x) { return x * x * x; }
__device__ __forceinline__ float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }

// Maximum and minimum that keep NaN; fmaxf and fminf drop it.
__device__ __forceinline__ float maximum(float a, float b) { return a > b || a != a ? a : b; }
__device__ __forceinline__ float minimum(float a, float b) { return a < b || a != a ? a : b; }

template <int EXPONENT> __device__ __forceinline__ float integer_power(float x) {
    static_assert(EXPONENT > 0, "negative powers are divisions");
    if constexpr (EXPONENT == 1) return x;
    else if constexpr (EXPONENT % 2 == 0) return square(integer_power<EXPONENT / 2>(x));
    else return x * integer_power<EXPONENT - 1>(x);
}

// A square root by the unit that has one, within two units of the last place: a third of the exact one's time.
__device__ __forceinline__ float root(float x) {
#if defined(NORMGEN_HOST)
    return sqrtf(x);
#else
    float y;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

// x^(QUARTERS / 4) for a fraction, by roots: a few instructions where powf takes dozens. NaN below zero, as powf has it.
template <int QUARTERS> __device__ __forceinline__ float quarter_power(float x) {
    constexpr int MAGNITUDE = QUARTERS < 0 ? -QUARTERS : QUARTERS, WHOLE = MAGNITUDE / 4;
    static_assert(MAGNITUDE % 4 != 0, "whole powers are products");
    const float half = QUARTERS < 0 ? fabsf(rsqrtf(x)) : root(x);  // (the reciprocal root of -0 is -inf)
    float y = MAGNITUDE % 4 == 1 ? root(half) : MAGNITUDE % 4 == 2 ? half : half * root(half);
    if constexpr (WHOLE > 0) y *= integer_power<WHOLE>(square(half));
    return y;
}

// A power as general as powf, in one place: it is long.
__device__ __noinline__ float general_power(float x, float exponent) { return powf(x, exponent); }

// x^exponent. All threads take the same branch where the exponent is an argument of the kernel; those of local response norms and
// of square roots, and of their derivatives, come first.
__device__ __forceinline__ float power(float x, float exponent) {
    if (exponent == -0.75f) return quarter_power<-3>(x);
    if (exponent == -1.75f) return quarter_power<-7>(x);
    if (exponent == -0.5f) return quarter_power<-2>(x);
    if (exponent == -1.5f) return quarter_power<-6>(x);
    return general_power(x, exponent);
}
