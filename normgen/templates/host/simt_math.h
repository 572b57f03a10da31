// CUDA's mathematical functions beyond those of the C library. The fast ones (__expf, ...) are the accurate
// ones here.
#pragma once

#include "simt_types.h"

// Macros where the C library has, or one day may have, a function of the same name.
#define rsqrtf simt_rsqrtf
#define __expf simt_expf

// As in CUDA, the functions without the letter f take a float as it is.
SIMT_INLINE float abs(float x) { return fabsf(x); }
SIMT_INLINE float fabs(float x) { return fabsf(x); }
SIMT_INLINE float fmax(float x, float y) { return fmaxf(x, y); }
SIMT_INLINE float fmin(float x, float y) { return fminf(x, y); }
SIMT_INLINE float sqrt(float x) { return sqrtf(x); }
SIMT_INLINE float exp(float x) { return expf(x); }
SIMT_INLINE float log(float x) { return logf(x); }
SIMT_INLINE float pow(float x, float y) { return powf(x, y); }

SIMT_INLINE float simt_rsqrtf(float x) { return float(1.0 / sqrt(double(x))); }
SIMT_INLINE float simt_expf(float x) { return expf(x); }

SIMT_INLINE float __fadd_rn(float x, float y) { return x + y; }

SIMT_INLINE int __popc(unsigned x) { return __builtin_popcount(x); }
SIMT_INLINE int __ffs(int x) { return __builtin_ffs(x); }

// Picks 4 of the 8 bytes of y:x; a selector's high bit spreads the sign of the byte it picks.
SIMT_INLINE unsigned __byte_perm(unsigned x, unsigned y, unsigned selectors) {
  const uint64_t bytes = uint64_t(y) << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; i++) {
    const unsigned selector = selectors >> (4 * i), byte = unsigned(bytes >> (8 * (selector & 7))) & 0xff;
    result |= (selector & 8 ? (byte & 0x80 ? 0xffu : 0u) : byte) << (8 * i);
  }
  return result;
}

// The low and the high half of high:low, moved by up to 31 bits.
SIMT_INLINE unsigned __funnelshift_r(unsigned low, unsigned high, unsigned bits) {
  return unsigned((uint64_t(high) << 32 | low) >> (bits & 31));
}
SIMT_INLINE unsigned __funnelshift_l(unsigned low, unsigned high, unsigned bits) {
  return unsigned((uint64_t(high) << 32 | low) << (bits & 31) >> 32);
}

// CUDA's min and max of floats drop a NaN; those of mixed integers convert as ?: does.
template <class A, class B>
SIMT_INLINE auto min(A a, B b) -> decltype(true ? A() : B()) {
  typedef decltype(true ? A() : B()) T;
  return T(b) < T(a) ? T(b) : T(a);
}
template <class A, class B>
SIMT_INLINE auto max(A a, B b) -> decltype(true ? A() : B()) {
  typedef decltype(true ? A() : B()) T;
  return T(a) < T(b) ? T(b) : T(a);
}
SIMT_INLINE float min(float a, float b) { return fminf(a, b); }
SIMT_INLINE float max(float a, float b) { return fmaxf(a, b); }
SIMT_INLINE double min(double a, double b) { return fmin(a, b); }
SIMT_INLINE double max(double a, double b) { return fmax(a, b); }
