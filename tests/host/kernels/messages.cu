// Two blocks step warps send each of them a number, six times, through two halves in turn.
extern "C" __global__ void messages(const float* x, float* y) {
  __shared__ float place[2][4];
  __shared__ unsigned long long arrival[2];
  const int lane = threadIdx.x % 32, rank = int(normgen_cluster_rank());
  if (threadIdx.x == 0) {
    normgen_open_arrivals(arrival, 2);
    normgen_arrivals_fence();
    normgen_expect(arrival);
    normgen_expect(arrival + 1);
  }
  normgen_cluster_arrive();
  normgen_cluster_wait();
  for (int step = 0; step < 6; step++) {
    const int half = step % 2;
    float* const mine = &place[half][rank * 2 + threadIdx.x / 32];
    __syncwarp();
    if (lane < 2) {
      *normgen_remote_shared(mine, lane) = x[step * 4 + rank * 2 + threadIdx.x / 32];
      normgen_sent();
    }
    normgen_await_sent(arrival + half, step / 2 % 2);
    if (threadIdx.x == 0) normgen_expect(arrival + half);  // E0
    float sum = 0.f;
    for (int from = 0; from < 4; from++) sum += place[half][from];
    y[(step * 2 + rank) * 64 + threadIdx.x] = sum;
  }
}
