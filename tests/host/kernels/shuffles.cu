extern "C" __global__ void shuffles(int* out) {
  const int lane = threadIdx.x;
  out[lane] = __shfl_sync(0xffffffffu, lane, 3, 8);
  out[32 + lane] = __shfl_xor_sync(0xffffffffu, lane, 5, 16);
  out[64 + lane] = __shfl_down_sync(0xffffffffu, lane, 3, 8);
  out[96 + lane] = __shfl_up_sync(0xffffffffu, lane, 3, 8);
}
