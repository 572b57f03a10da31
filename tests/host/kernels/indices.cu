extern "C" __global__ void indices(int* out) {
  __shared__ int total;
  if (threadIdx.x + threadIdx.y + threadIdx.z == 0) total = 0;
  __syncthreads();
  const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const int size = blockDim.x * blockDim.y * blockDim.z;
  atomicAdd(&total, 1);
  const int even = __syncthreads_count(thread % 2 == 0);
  const int any = __syncthreads_or(thread == size - 1), all = __syncthreads_and(thread >= 0);
  const unsigned low = __ballot_sync(0xffffffffu, thread % 32 < 3);
  const bool good = total == size && even == (size + 1) / 2 && any && all && __popc(low) == 3;
  out[block * size + thread] = good ? block * size + thread : -1;
}
