#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void __cluster_dims__(4, 1, 1) __launch_bounds__(128) cluster(
    const float* __restrict__ x, float* __restrict__ y, int n, float eps) {
  __shared__ float partials[4], sum;
  cg::cluster_group team = cg::this_cluster();
  const int rank = team.block_rank(), blocks = team.num_blocks(), length = n / blocks;
  const long long row = blockIdx.x / blocks;
  const float* slice = x + row * n + rank * length;
  float s = 0.f;
  for (int c = threadIdx.x; c < length; c += 128) s += slice[c] * slice[c];
  for (int bits = 16; bits; bits >>= 1) s += __shfl_xor_sync(0xffffffffu, s, bits);
  if ((threadIdx.x & 31) == 0) partials[threadIdx.x >> 5] = s;
  __syncthreads();  // B0
  if (threadIdx.x == 0) sum = partials[0] + partials[1] + partials[2] + partials[3];
  team.sync();  // C0
  s = 0.f;
  for (int k = 0; k < blocks; k++) s += *team.map_shared_rank(&sum, k);
  team.sync();  // C1
  const float r = rsqrtf(s / n + eps);
  for (int c = threadIdx.x; c < length; c += 128) y[row * n + rank * length + c] = slice[c] * r;
}
