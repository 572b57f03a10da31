extern "C" __global__ void warp(const float* x, float* y) {
  __shared__ float tile[32];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncwarp();  // S0
  y[threadIdx.x] = tile[31 - threadIdx.x];
}
