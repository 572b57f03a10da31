// Two pairs of warps, each with a barrier of its own.
extern "C" __global__ void pairs(const float* x, float* y) {
  __shared__ float tile[128];
  const int pair = threadIdx.x / 64, place = threadIdx.x % 64;
  tile[threadIdx.x] = x[threadIdx.x];
  normgen_named_barrier(pair + 1, 64);  // B0
  y[threadIdx.x] = tile[pair * 64 + 63 - place];
}
