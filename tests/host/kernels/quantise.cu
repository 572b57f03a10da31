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
