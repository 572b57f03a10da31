// A tile copied by each thread and read by another: needs the wait, then the barrier, and one before reuse.
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
