// What a kernel may call of the C library. The library's own headers declare as much again for each further
// format of floating point: to read them takes longer than to read a kernel.
#pragma once

#include <stddef.h>
#include <stdint.h>

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define isfinite(x) __builtin_isfinite(x)
#define isinf(x) __builtin_isinf(x)
#define isnan(x) __builtin_isnan(x)
#define signbit(x) __builtin_signbit(x)

#define SIMT_LIBC_1(name)               \
  double name(double) noexcept;         \
  float name##f(float) noexcept;
#define SIMT_LIBC_2(name)               \
  double name(double, double) noexcept; \
  float name##f(float, float) noexcept;

extern "C" {
SIMT_LIBC_1(acos)
SIMT_LIBC_1(acosh)
SIMT_LIBC_1(asin)
SIMT_LIBC_1(asinh)
SIMT_LIBC_1(atan)
SIMT_LIBC_1(atanh)
SIMT_LIBC_1(cbrt)
SIMT_LIBC_1(ceil)
SIMT_LIBC_1(cos)
SIMT_LIBC_1(cosh)
SIMT_LIBC_1(erf)
SIMT_LIBC_1(erfc)
SIMT_LIBC_1(exp)
SIMT_LIBC_1(exp2)
SIMT_LIBC_1(expm1)
SIMT_LIBC_1(fabs)
SIMT_LIBC_1(floor)
SIMT_LIBC_1(lgamma)
SIMT_LIBC_1(log)
SIMT_LIBC_1(log10)
SIMT_LIBC_1(log1p)
SIMT_LIBC_1(log2)
SIMT_LIBC_1(nearbyint)
SIMT_LIBC_1(rint)
SIMT_LIBC_1(round)
SIMT_LIBC_1(sin)
SIMT_LIBC_1(sinh)
SIMT_LIBC_1(sqrt)
SIMT_LIBC_1(tan)
SIMT_LIBC_1(tanh)
SIMT_LIBC_1(tgamma)
SIMT_LIBC_1(trunc)
SIMT_LIBC_2(atan2)
SIMT_LIBC_2(copysign)
SIMT_LIBC_2(fdim)
SIMT_LIBC_2(fmax)
SIMT_LIBC_2(fmin)
SIMT_LIBC_2(fmod)
SIMT_LIBC_2(hypot)
SIMT_LIBC_2(nextafter)
SIMT_LIBC_2(pow)
SIMT_LIBC_2(remainder)
double fma(double, double, double) noexcept;
float fmaf(float, float, float) noexcept;
double frexp(double, int*) noexcept;
float frexpf(float, int*) noexcept;
double ldexp(double, int) noexcept;
float ldexpf(float, int) noexcept;
int abs(int) noexcept;
int printf(const char*, ...);
void* memcpy(void*, const void*, size_t) noexcept;
void* memmove(void*, const void*, size_t) noexcept;
void* memset(void*, int, size_t) noexcept;
}
