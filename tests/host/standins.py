"""Kernels written by hand for the tests of the host executor. B0, B1, ... name the barriers to take out."""

from __future__ import annotations

_TYPES = r"""
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
using T = @T@;
constexpr int THREADS = @THREADS@, WARPS = THREADS / 32, N = @N@;
constexpr int WIDTH = 16 / int(sizeof(T)), VECTORS = N / WIDTH, EACH = (VECTORS + THREADS - 1) / THREADS;
"""

_ROWS = r"""
union Pack {
  uint4 words;
  T items[WIDTH];
  __device__ Pack() {}
};

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int bits = 16; bits > 0; bits >>= 1) v += __shfl_xor_sync(0xffffffffu, v, bits);
  return v;
}

__device__ __forceinline__ float block_sum(float v, float* partials) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  v = warp_sum(v);
  if (lane == 0) partials[warp] = v;
  __syncthreads();  // B0
  v = warp_sum(lane < WARPS ? partials[lane] : 0.f);
  __syncthreads();  // B1
  return v;
}

__device__ __forceinline__ void load_row(float (&row)[EACH][WIDTH], const T* __restrict__ from) {
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    const int c = i * THREADS + threadIdx.x;
    if (c < VECTORS) {
      Pack pack;
      pack.words = *reinterpret_cast<const uint4*>(from + c * WIDTH);
#pragma unroll
      for (int j = 0; j < WIDTH; j++) row[i][j] = float(pack.items[j]);
    } else {
#pragma unroll
      for (int j = 0; j < WIDTH; j++) row[i][j] = 0.f;
    }
  }
}

__device__ __forceinline__ void store_row(T* __restrict__ to, const float (&row)[EACH][WIDTH]) {
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    const int c = i * THREADS + threadIdx.x;
    if (c < VECTORS) {
      Pack pack;
#pragma unroll
      for (int j = 0; j < WIDTH; j++) pack.items[j] = T(row[i][j]);
      __stcs(reinterpret_cast<uint4*>(to + c * WIDTH), pack.words);
    }
  }
}
"""

_FORWARD = r"""
extern "C" __global__ void __launch_bounds__(THREADS) forward(
    const T* __restrict__ x, const T* __restrict__ w, const T* __restrict__ b, T* __restrict__ y,
    float* __restrict__ mu, float* __restrict__ rstd, int rows, float eps) {
  __shared__ float partials[WARPS];
  const long long row = blockIdx.x;
  if (row >= rows) return;
  float v[EACH][WIDTH], gain[EACH][WIDTH], bias[EACH][WIDTH];
  load_row(v, x + row * N);
  float s = 0.f;
#pragma unroll
  for (int i = 0; i < EACH; i++)
#pragma unroll
    for (int j = 0; j < WIDTH; j++) s += v[i][j];
  const float mean = block_sum(s, partials) * (1.f / N);
  s = 0.f;
#pragma unroll
  for (int i = 0; i < EACH; i++)
    if (i * THREADS + int(threadIdx.x) < VECTORS)
#pragma unroll
      for (int j = 0; j < WIDTH; j++) s += (v[i][j] - mean) * (v[i][j] - mean);
  const float r = rsqrtf(block_sum(s, partials) * (1.f / N) + eps);
  load_row(gain, w);
  load_row(bias, b);
#pragma unroll
  for (int i = 0; i < EACH; i++)
#pragma unroll
    for (int j = 0; j < WIDTH; j++) v[i][j] = (v[i][j] - mean) * r * gain[i][j] + bias[i][j];
  store_row(y + row * N, v);
  if (threadIdx.x == 0) { mu[row] = mean; rstd[row] = r; }
}
"""

_BACKWARD = r"""
extern "C" __global__ void __launch_bounds__(THREADS) backward(
    const T* __restrict__ x, const T* __restrict__ w, const T* __restrict__ dy,
    const float* __restrict__ rstd, T* __restrict__ dx, float* __restrict__ parts, int rows) {
  __shared__ float partials[WARPS];
  float v[EACH][WIDTH], gain[EACH][WIDTH], d[EACH][WIDTH], dw[EACH][WIDTH] = {};
  load_row(gain, w);
  for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
    load_row(v, x + row * N);
    load_row(d, dy + row * N);
    const float r = __ldg(rstd + row);
    float s = 0.f;
#pragma unroll
    for (int i = 0; i < EACH; i++)
#pragma unroll
      for (int j = 0; j < WIDTH; j++) {
        v[i][j] *= r;
        dw[i][j] += d[i][j] * v[i][j];
        d[i][j] *= gain[i][j];
        s += d[i][j] * v[i][j];
      }
    const float mean = block_sum(s, partials) * (1.f / N);
#pragma unroll
    for (int i = 0; i < EACH; i++)
#pragma unroll
      for (int j = 0; j < WIDTH; j++) d[i][j] = r * (d[i][j] - v[i][j] * mean);
    store_row(dx + row * N, d);
  }
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    const int c = i * THREADS + threadIdx.x;
    if (c < VECTORS)
#pragma unroll
      for (int j = 0; j < WIDTH; j += 4)
        *reinterpret_cast<float4*>(parts + (long long)blockIdx.x * N + c * WIDTH + j) =
            make_float4(dw[i][j], dw[i][j + 1], dw[i][j + 2], dw[i][j + 3]);
  }
}
"""

# Adds partial rows in fixed order, through a tile of dynamic shared memory.
_FINALISE = r"""
extern "C" __global__ void __launch_bounds__(256) finalise(
    const float* __restrict__ parts, T* __restrict__ dw, int count) {
  extern __shared__ __align__(16) unsigned char smem[];
  float* tile = reinterpret_cast<float*>(smem);  // 8 rows of 33
  const int column = blockIdx.x * 32 + (threadIdx.x & 31), part = threadIdx.x >> 5;
  float s = 0.f;
  if (column < N)
    for (int r = part; r < count; r += 8) s += parts[(long long)r * N + column];
  tile[part * 33 + (threadIdx.x & 31)] = s;
  __syncthreads();  // B2
  if (part == 0 && column < N) {
    s = 0.f;
#pragma unroll
    for (int k = 0; k < 8; k++) s += tile[k * 33 + (threadIdx.x & 31)];
    dw[column] = T(s);
  }
}
"""
TILE_BYTES = 8 * 33 * 4

_QUANTISE = r"""
extern "C" __global__ void __launch_bounds__(THREADS) quantise(
    const T* __restrict__ x, __nv_fp8_e4m3* __restrict__ y, float* __restrict__ largest, float scale) {
  const long long row = blockIdx.x;
  float m = 0.f;
  for (int c = threadIdx.x; c < N; c += THREADS) {
    const float v = float(x[row * N + c]);
    y[row * N + c] = __nv_fp8_e4m3(v * scale);
    m = fmaxf(m, fabsf(v));
  }
  for (int bits = 16; bits > 0; bits >>= 1) m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, bits));
  if ((threadIdx.x & 31) == 0) atomicMax(reinterpret_cast<int*>(largest), __float_as_int(m));
}
"""

# Every thread fills its own slots of a ring, some rows ahead, and reads what it copied itself.
RING = r"""
constexpr int THREADS = 64, STAGES = 3;
extern "C" __global__ void ring(const float4* __restrict__ x, float4* __restrict__ y, int rows) {
  extern __shared__ float4 smem[];
  for (int stage = 0; stage < STAGES - 1; stage++) {
    const int row = blockIdx.x + stage * gridDim.x;
    if (row < rows)
      normgen_async_copy(&smem[stage * THREADS + threadIdx.x], x + row * THREADS + threadIdx.x, 16);
    normgen_async_commit();
  }
  int slot = 0;
  for (int row = blockIdx.x; row < rows; row += gridDim.x) {
    const int ahead = row + (STAGES - 1) * gridDim.x, free_slot = (slot + STAGES - 1) % STAGES;
    if (ahead < rows)
      normgen_async_copy(&smem[free_slot * THREADS + threadIdx.x], x + ahead * THREADS + threadIdx.x, 16);
    normgen_async_commit();
    normgen_async_wait(STAGES - 1);  // W0
    const float4 v = smem[slot * THREADS + threadIdx.x];
    y[row * THREADS + threadIdx.x] = make_float4(2 * v.x, 2 * v.y, 2 * v.z, 2 * v.w);
    slot = (slot + 1) % STAGES;
  }
}
"""
RING_BYTES = 3 * 64 * 16

# A tile copied by each thread and read by another: needs the wait, then the barrier, and one before reuse.
EXCHANGE = r"""
extern "C" __global__ void exchange(const float* __restrict__ x, float* __restrict__ y, int rows) {
  extern __shared__ float smem[];
  for (int row = 0; row < rows; row++) {
    normgen_async_copy(&smem[threadIdx.x], x + row * 64 + threadIdx.x, 4);
    normgen_async_commit();
    normgen_async_wait(0);  // W0
    __syncthreads();  // B0
    y[row * 64 + threadIdx.x] = smem[63 - threadIdx.x];
    __syncthreads();  // B1
  }
}
"""

# The block that comes last adds the partial sums of all.
LAST_BLOCK = r"""
extern "C" __global__ void last_block(
    const float* __restrict__ x, float* parts, float* out, unsigned* counter, int rows, int n) {
  __shared__ bool last;
  const int c = threadIdx.x;
  float s = 0.f;
  for (int r = blockIdx.x; r < rows; r += gridDim.x) s += x[(long long)r * n + c];
  parts[(long long)blockIdx.x * n + c] = s;
  __threadfence();  // F0
  __syncthreads();  // B0
  if (threadIdx.x == 0) last = atomicInc(counter, gridDim.x - 1) == gridDim.x - 1;
  __syncthreads();  // B1
  if (last) {
    s = 0.f;
    for (int g = 0; g < int(gridDim.x); g++) s += parts[(long long)g * n + c];
    out[c] = s;
  }
}
"""

CLUSTER = r"""
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void __cluster_dims__(4, 1, 1) __launch_bounds__(128) cluster(
    const float* __restrict__ x, float* __restrict__ y, int n, float eps) {
  __shared__ float partials[4], sum;
  cg::cluster_group team = cg::this_cluster();
  const int rank = team.block_rank(), blocks = team.num_blocks(), length = n / blocks;
  const long long row = blockIdx.x / blocks;
  const float* slice = x + row * n + rank * length;
  float s = 0.f;
  for (int c = threadIdx.x; c < length; c += 128) s += slice[c] * slice[c];
  for (int bits = 16; bits; bits >>= 1) s += __shfl_xor_sync(0xffffffffu, s, bits);
  if ((threadIdx.x & 31) == 0) partials[threadIdx.x >> 5] = s;
  __syncthreads();  // B0
  if (threadIdx.x == 0) sum = partials[0] + partials[1] + partials[2] + partials[3];
  team.sync();  // C0
  s = 0.f;
  for (int k = 0; k < blocks; k++) s += *team.map_shared_rank(&sum, k);
  team.sync();  // C1
  const float r = rsqrtf(s / n + eps);
  for (int c = threadIdx.x; c < length; c += 128) y[row * n + rank * length + c] = slice[c] * r;
}
"""

# Two pairs of warps, each with a barrier of its own.
PAIRS = r"""
extern "C" __global__ void pairs(const float* x, float* y) {
  __shared__ float tile[128];
  const int pair = threadIdx.x / 64, place = threadIdx.x % 64;
  tile[threadIdx.x] = x[threadIdx.x];
  normgen_named_barrier(pair + 1, 64);  // B0
  y[threadIdx.x] = tile[pair * 64 + 63 - place];
}
"""

WARP = r"""
extern "C" __global__ void warp(const float* x, float* y) {
  __shared__ float tile[32];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncwarp();  // S0
  y[threadIdx.x] = tile[31 - threadIdx.x];
}
"""

ACCUMULATE = r"""
extern "C" __global__ void accumulate(const float* x, float* y) {
  atomicAdd(y, x[blockIdx.x * 32 + threadIdx.x]);
}
"""

# Each block waits for its turn, in the order of block numbers.
LOCK = r"""
extern "C" __global__ void lock(int* turn, float* y) {
  const int me = blockIdx.x;
  if (threadIdx.x == 0) {
    while (atomicCAS(turn, me, me) != me) {
    }
    *y += 1.f;
    __threadfence();  // F0
    atomicExch(turn, me + 1);
  }
}
"""


def _fill(text: str, element: str, n: int, threads: int) -> str:
    return text.replace("@T@", element).replace("@THREADS@", str(threads)).replace("@N@", str(n))


def forward(element: str, n: int, threads: int) -> str:
    return _fill(_TYPES + _ROWS + _FORWARD, element, n, threads)


def backward(element: str, n: int, threads: int) -> str:
    return _fill(_TYPES + _ROWS + _BACKWARD, element, n, threads)


def finalise(element: str, n: int) -> str:
    return _fill(_TYPES + _FINALISE, element, n, 256)


def quantise(element: str, n: int, threads: int) -> str:
    return _fill(_TYPES + _QUANTISE, element, n, threads)
