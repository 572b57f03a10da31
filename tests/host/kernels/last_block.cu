// The block that comes last adds the partial sums of all.
extern "C" __global__ void last_block(
    const float* __restrict__ x, float* parts, float* out, unsigned* counter, int rows, int n) {
  __shared__ bool last;
  const int c = threadIdx.x;
  float s = 0.f;
  for (int r = blockIdx.x; r < rows; r += gridDim.x) s += x[(long long)r * n + c];
  parts[(long long)blockIdx.x * n + c] = s;
  __threadfence();  // F0
  __syncthreads();  // B0
  if (threadIdx.x == 0) {
    last = atomicInc(counter, gridDim.x - 1) == gridDim.x - 1;
    __threadfence();  // F1
  }
  __syncthreads();  // B1
  if (last) {
    s = 0.f;
    for (int g = 0; g < int(gridDim.x); g++) s += parts[(long long)g * n + c];
    out[c] = s;
  }
}
