// bf16, f16 and the two fp8 formats: conversions bit-equal to CUDA's (round to nearest even; 16-bit formats
// overflow to infinity, fp8 saturates; a NaN becomes the canonical one). Arithmetic is left out: kernels
// compute in float.
#pragma once

#include "simt_types.h"

// ---- bits -----------------------------------------------------------------------------------------------

// Drops `bits` low bits of a magnitude, rounding to nearest even.
SIMT_INLINE uint32_t simt_round_off(uint32_t magnitude, int bits) {
  return (magnitude + ((1u << (bits - 1)) - 1) + ((magnitude >> bits) & 1)) >> bits;
}

// A small value as a whole number of steps of 1 / per_one, a power of two: adding 1.5 * 2^23 rounds to
// nearest even.
SIMT_INLINE uint32_t simt_steps(float value, float per_one) {
  return __float_as_uint(value * per_one + 12582912.0f) & 0x3fffff;
}

SIMT_INLINE uint16_t simt_float_to_bf16(float value) {
  const uint32_t bits = __float_as_uint(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return uint16_t(simt_round_off(bits, 16));
}

SIMT_INLINE float simt_bf16_to_float(uint16_t bits) { return __uint_as_float(uint32_t(bits) << 16); }

SIMT_INLINE uint16_t simt_float_to_f16(float value) {
  const uint32_t bits = __float_as_uint(value), sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return 0x7fff;
  if (magnitude >= 0x477ff000) return uint16_t(sign | 0x7c00);  // 65520 and more: infinity
  if (magnitude < 0x38800000) return uint16_t(sign | simt_steps(__uint_as_float(magnitude), 16777216.0f));
  return uint16_t(sign | (simt_round_off(magnitude, 13) - (112u << 10)));
}

SIMT_INLINE float simt_f16_to_float(uint16_t bits) {
  const uint32_t sign = uint32_t(bits & 0x8000) << 16, exponent = (bits >> 10) & 31, mantissa = bits & 0x3ff;
  if (exponent == 31) return __uint_as_float(mantissa ? 0x7fffffff : sign | 0x7f800000);
  if (exponent) return __uint_as_float(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = float(mantissa) * (1.0f / 16777216.0f);
  return sign ? -magnitude : magnitude;
}

// An fp8 format: `mantissa` bits, exponent `bias`, and the code of its largest finite value, to which it
// saturates.
template <int mantissa, int bias, unsigned largest>
SIMT_INLINE uint8_t simt_float_to_f8(float value) {
  const uint32_t bits = __float_as_uint(value), sign = (bits >> 24) & 0x80, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return 0x7f;
  uint32_t code;
  if (magnitude < uint32_t(128 - bias) << 23)  // below the smallest normal
    code = simt_steps(__uint_as_float(magnitude), float(1u << (bias - 1 + mantissa)));
  else
    code = simt_round_off(magnitude, 23 - mantissa) - (uint32_t(127 - bias) << mantissa);
  return uint8_t(sign | (code > largest ? largest : code));
}

SIMT_INLINE uint8_t simt_float_to_e4m3(float value) { return simt_float_to_f8<3, 7, 0x7e>(value); }
SIMT_INLINE uint8_t simt_float_to_e5m2(float value) { return simt_float_to_f8<2, 15, 0x7b>(value); }

SIMT_INLINE float simt_e4m3_to_float(uint8_t bits) {
  const uint32_t sign = uint32_t(bits & 0x80) << 24, exponent = (bits >> 3) & 15, mantissa = bits & 7;
  if ((bits & 0x7f) == 0x7f) return __uint_as_float(0x7fffffff);
  if (exponent) return __uint_as_float(sign | ((exponent + 120) << 23) | (mantissa << 20));
  const float magnitude = float(mantissa) * (1.0f / 512.0f);
  return sign ? -magnitude : magnitude;
}

SIMT_INLINE float simt_e5m2_to_float(uint8_t bits) { return simt_f16_to_float(uint16_t(bits << 8)); }

// ---- types ----------------------------------------------------------------------------------------------

struct __nv_bfloat16 {
  uint16_t __x;
  __nv_bfloat16() = default;
  __nv_bfloat16(float value) : __x(simt_float_to_bf16(value)) {}
  operator float() const { return simt_bf16_to_float(__x); }
};

struct __half {
  uint16_t __x;
  __half() = default;
  __half(float value) : __x(simt_float_to_f16(value)) {}
  operator float() const { return simt_f16_to_float(__x); }
};

// Explicit, as in CUDA: text that compiles here must compile there.
struct __nv_fp8_e4m3 {
  uint8_t __x;
  __nv_fp8_e4m3() = default;
  explicit __nv_fp8_e4m3(float value) : __x(simt_float_to_e4m3(value)) {}
  explicit operator float() const { return simt_e4m3_to_float(__x); }
};

struct __nv_fp8_e5m2 {
  uint8_t __x;
  __nv_fp8_e5m2() = default;
  explicit __nv_fp8_e5m2(float value) : __x(simt_float_to_e5m2(value)) {}
  explicit operator float() const { return simt_e5m2_to_float(__x); }
};

struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};

struct alignas(4) __half2 {
  __half x, y;
};

#define SIMT_FP8_VECTORS(format)                                                                            \
  struct __nv_fp8x2_##format {                                                                              \
    uint16_t __x;                                                                                           \
    __nv_fp8x2_##format() = default;                                                                        \
    explicit __nv_fp8x2_##format(float2 v)                                                                  \
        : __x(uint16_t(simt_float_to_##format(v.x) | simt_float_to_##format(v.y) << 8)) {}                  \
    explicit operator float2() const {                                                                      \
      return {simt_##format##_to_float(uint8_t(__x)), simt_##format##_to_float(uint8_t(__x >> 8))};         \
    }                                                                                                       \
  };                                                                                                        \
  struct __nv_fp8x4_##format {                                                                              \
    uint32_t __x;                                                                                           \
    __nv_fp8x4_##format() = default;                                                                        \
    explicit __nv_fp8x4_##format(float4 v)                                                                  \
        : __x(simt_float_to_##format(v.x) | uint32_t(simt_float_to_##format(v.y)) << 8 |                    \
              uint32_t(simt_float_to_##format(v.z)) << 16 | uint32_t(simt_float_to_##format(v.w)) << 24) {} \
    explicit operator float4() const {                                                                      \
      return {simt_##format##_to_float(uint8_t(__x)), simt_##format##_to_float(uint8_t(__x >> 8)),          \
              simt_##format##_to_float(uint8_t(__x >> 16)), simt_##format##_to_float(uint8_t(__x >> 24))};  \
    }                                                                                                       \
  };

SIMT_FP8_VECTORS(e4m3)
SIMT_FP8_VECTORS(e5m2)

// ---- conversion functions -------------------------------------------------------------------------------

SIMT_INLINE __nv_bfloat16 __float2bfloat16_rn(float value) { return value; }
SIMT_INLINE float __bfloat162float(__nv_bfloat16 value) { return value; }
SIMT_INLINE __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {x, y}; }
SIMT_INLINE float2 __bfloat1622float2(__nv_bfloat162 value) { return {value.x, value.y}; }

SIMT_INLINE __half __float2half_rn(float value) { return value; }
SIMT_INLINE float __half2float(__half value) { return value; }
SIMT_INLINE __half2 __floats2half2_rn(float x, float y) { return {x, y}; }
SIMT_INLINE float2 __half22float2(__half2 value) { return {value.x, value.y}; }
