// Adds partial rows in fixed order, through a tile of dynamic shared memory.
extern "C" __global__ void __launch_bounds__(256) second_stage(
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
