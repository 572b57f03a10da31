#pragma once

// ---- Functions of one element -------------------------------------------------------------------

__device__ __forceinline__ float square(float x) { return x * x; }
__device__ __forceinline__ float cube(float x) { return x * x * x; }

__device__ __forceinline__ bool is_finite(float x) { return fabsf(x) <= 3.4028234663852886e38f; }

// The rounding error of a mean in float32, which is subtracted from the differences from it; 0
// where it is not finite, as the differences then are not either.
__device__ __forceinline__ float if_finite(float missed) { return is_finite(missed) ? missed : 0.f; }

// Approximate reciprocal (rcp.approx): within one unit in the last place where the result is not
// subnormal.
__device__ __forceinline__ float normal_reciprocal(float x) {
#if defined(NORMGEN_HOST)
    return 1.f / x;
#else
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

// 1 / (1 + exp(-x)), scaled by a quarter so that the reciprocal is never subnormal.
__device__ __forceinline__ float sigmoid(float x) {
    return 0.25f * normal_reciprocal(fmaf(0.25f, expf(-x), 0.25f));
}

// exp(x) for x <= 0, a distance from a maximum. NARROW: x comes from 2-byte elements and is nearly
// always exact, so one product may round: 4 instructions in place of the 8 of expf. The square root
// of the result is never subnormal where the result is not zero.
template <bool NARROW> __device__ __forceinline__ float exponential(float x) {
    if constexpr (!NARROW) return expf(x);
    constexpr float HALF_LOG2_E = 0.72134752f;
    const float halved = x * HALF_LOG2_E;
#if defined(NORMGEN_HOST)
    return square(exp2f(halved));
#else
    float root;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(halved));
    return square(root);
#endif
}

// A sum of exp(x - top) as one of exp(x) where the largest x is infinite.
__device__ __forceinline__ float about_finite(float total, float top) {
    return fabsf(top) == INFINITY ? fmaxf(top, 0.f) : total;
}

// Maximum and minimum that keep NaN; fmaxf and fminf drop it. One instruction from sm_80 on.
__device__ __forceinline__ float maximum(float a, float b) {
#if defined(NORMGEN_HOST) || __CUDA_ARCH__ < 800
    return a > b || a != a ? a : b;
#else
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
    return larger;
#endif
}
__device__ __forceinline__ float minimum(float a, float b) {
#if defined(NORMGEN_HOST) || __CUDA_ARCH__ < 800
    return a < b || a != a ? a : b;
#else
    float smaller;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(smaller) : "f"(a), "f"(b));
    return smaller;
#endif
}

// c * v, for a largest magnitude v that was found without its factor c. Where c is infinite and
// some v was 0, c v is NaN and must propagate.
__device__ __forceinline__ float with_factor(float c, float v) { return fmaf(c, 0.f, c * v); }

template <int EXPONENT> __device__ __forceinline__ float integer_power(float x) {
    static_assert(EXPONENT > 0, "negative powers are divisions");
    if constexpr (EXPONENT == 1) return x;
    else if constexpr (EXPONENT % 2 == 0) return square(integer_power<EXPONENT / 2>(x));
    else return x * integer_power<EXPONENT - 1>(x);
}

// Approximate square roots: within two units in the last place, for zero and for normal numbers.
__device__ __forceinline__ float normal_root(float x) {
#if defined(NORMGEN_HOST)
    return sqrtf(x);
#else
    float y;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}
__device__ __forceinline__ float normal_reciprocal_root(float x) {
#if defined(NORMGEN_HOST)
    return rsqrtf(x);
#else
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

// x^(QUARTERS / 4) by square roots, for positive normal x: a few instructions where powf takes
// dozens.
constexpr float LEAST_NORMAL = 1.17549435e-38f;
template <int QUARTERS> __device__ __forceinline__ float normal_quarter_power(float x) {
    constexpr int MAGNITUDE = QUARTERS < 0 ? -QUARTERS : QUARTERS, WHOLE = MAGNITUDE / 4;
    static_assert(MAGNITUDE % 4 != 0, "whole powers are products");
    const float half = QUARTERS < 0 ? normal_reciprocal_root(x) : normal_root(x);
    float y = MAGNITUDE % 4 == 1 ? normal_root(half) : MAGNITUDE % 4 == 2 ? half : half * normal_root(half);
    if constexpr (WHOLE > 0) y *= integer_power<WHOLE>(square(half));
    return y;
}

// The same for any x: NaN below zero, as in powf.
template <int QUARTERS> __device__ __forceinline__ float quarter_power(float x) {
    // subnormal x are scaled by 2^96, and their powers back: those beyond x^(+-5/4) are infinite or
    // zero
    constexpr float BACK = QUARTERS < -5   ? INFINITY
                           : QUARTERS == -5 ? 0x1p120f
                           : QUARTERS == -3 ? 0x1p72f
                           : QUARTERS == -2 ? 0x1p48f
                           : QUARTERS == -1 ? 0x1p24f
                           : QUARTERS == 1  ? 0x1p-24f
                           : QUARTERS == 2  ? 0x1p-48f
                           : QUARTERS == 3  ? 0x1p-72f
                           : QUARTERS == 5  ? 0x1p-120f
                                            : 0.f;
    const bool subnormal = x < LEAST_NORMAL;
    const float scaled = subnormal ? x * 0x1p96f : x;
    // (the reciprocal root of -0 is -inf)
    const float y = normal_quarter_power<QUARTERS>(scaled == 0.f ? 0.f : scaled);
    return subnormal ? y * BACK : y;
}

// powf, kept out of line because it is long.
__device__ __noinline__ float general_power(float x, float exponent) { return powf(x, exponent); }

// x^exponent, fast for the exponents of local response norms, of square roots, and of their
// derivatives.
__device__ __forceinline__ float power(float x, float exponent) {
    if (exponent == -0.75f) return quarter_power<-3>(x);
    if (exponent == -1.75f) return quarter_power<-7>(x);
    if (exponent == -0.5f) return quarter_power<-2>(x);
    if (exponent == -1.5f) return quarter_power<-6>(x);
    return general_power(x, exponent);
}
