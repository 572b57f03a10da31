// Rows that one thread copies ahead, and that all threads await.
extern "C" __global__ void bulk(const float* x, float* y, int rows) {
  extern __shared__ __align__(16) float smem[];
  __shared__ unsigned long long landed[2];
  const auto request = [&](int row) {
    if (threadIdx.x != 0) return;
    if (row < rows) normgen_expect(landed + row % 2);
    for (int at = 0; row < rows && at < 64; at += 4)
      normgen_async_copy(smem + row % 2 * 64 + at, x + row * 64 + at, 16);
    normgen_async_commit();
  };
  if (threadIdx.x == 0) {
    normgen_open_arrivals(landed, 2);
    normgen_arrivals_fence();
  }
  __syncthreads();
  request(0);
  for (int row = 0; row < rows; row++) {
    request(row + 1);
    normgen_bulk_wait(1, landed + row % 2, row / 2 % 2);  // W0
    y[row * 64 + threadIdx.x] = smem[row % 2 * 64 + 63 - threadIdx.x];
    __syncthreads();  // B0
  }
}
