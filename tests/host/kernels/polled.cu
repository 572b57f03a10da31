// Blocks add to a sum and look at it meanwhile.
extern "C" __global__ void polled(const float* x, float* y) {
  if (threadIdx.x > 0) return;
  if (normgen_atomic_load(y) == 1e30f) return;
  atomicAdd(y, x[blockIdx.x]);
}
