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
      Pack loaded;
      loaded.words = *reinterpret_cast<const uint4*>(from + c * WIDTH);
#pragma unroll
      for (int j = 0; j < WIDTH; j++) row[i][j] = float(loaded.items[j]);
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
      Pack loaded;
#pragma unroll
      for (int j = 0; j < WIDTH; j++) loaded.items[j] = T(row[i][j]);
      __stcs(reinterpret_cast<uint4*>(to + c * WIDTH), loaded.words);
    }
  }
}
