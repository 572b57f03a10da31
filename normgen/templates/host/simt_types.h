// The vector types of CUDA, with CUDA's sizes and alignments.
#pragma once

#include "simt_libc.h"

// Always inlined: the address of an access then lies in the kernel, and a report names the kernel's line.
#define SIMT_INLINE static inline __attribute__((always_inline))
#define SIMT_METHOD inline __attribute__((always_inline))

struct uint3 {
  unsigned x, y, z;
};

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

// A vector of 2 or 4 is aligned to its size, up to 16 bytes; one of 3 (and 1) as its element.
#define SIMT_VECTORS(T, name)                                            \
  struct name##1 {                                                       \
    T x;                                                                 \
  };                                                                     \
  struct alignas(2 * sizeof(T)) name##2 {                                \
    T x, y;                                                              \
  };                                                                     \
  struct alignas(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) name##4 {      \
    T x, y, z, w;                                                        \
  };                                                                     \
  SIMT_INLINE name##1 make_##name##1(T x) { return {x}; }                \
  SIMT_INLINE name##2 make_##name##2(T x, T y) { return {x, y}; }        \
  SIMT_INLINE name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }

#define SIMT_VECTOR3(T, name)                                            \
  struct name##3 {                                                       \
    T x, y, z;                                                           \
  };                                                                     \
  SIMT_INLINE name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }

SIMT_VECTORS(signed char, char)
SIMT_VECTORS(unsigned char, uchar)
SIMT_VECTORS(short, short)
SIMT_VECTORS(unsigned short, ushort)
SIMT_VECTORS(int, int)
SIMT_VECTORS(unsigned, uint)
SIMT_VECTORS(long long, longlong)
SIMT_VECTORS(unsigned long long, ulonglong)
SIMT_VECTORS(float, float)
SIMT_VECTORS(double, double)
SIMT_VECTOR3(int, int)
SIMT_VECTOR3(float, float)
SIMT_VECTOR3(double, double)
SIMT_INLINE uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }

SIMT_INLINE int __float_as_int(float value) {
  int bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

SIMT_INLINE float __int_as_float(int bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

SIMT_INLINE unsigned __float_as_uint(float value) {
  unsigned bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

SIMT_INLINE float __uint_as_float(unsigned bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

