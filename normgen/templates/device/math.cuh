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
