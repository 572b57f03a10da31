// Every thread fills its own slots of a pipeline, some rows ahead, and reads what it copied itself.
constexpr int THREADS = 64, STAGES = 3;
extern "C" __global__ void pipeline(const float4* __restrict__ x, float4* __restrict__ y, int rows) {
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
