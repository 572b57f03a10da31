extern "C" __global__ void __launch_bounds__(THREADS) forward(
    const T* __restrict__ x, const T* __restrict__ w, const T* __restrict__ b, T* __restrict__ y,
    float* __restrict__ mu, float* __restrict__ rstd, int rows, float eps) {
  __shared__ float partials[WARPS];
  const long long row = blockIdx.x;
  if (row >= rows) return;
  float v[EACH][WIDTH], gain[EACH][WIDTH], bias[EACH][WIDTH];
  load_row(v, x + row * N);
  float s = 0.f;
#pragma unroll
  for (int i = 0; i < EACH; i++)
#pragma unroll
    for (int j = 0; j < WIDTH; j++) s += v[i][j];
  const float mean = block_sum(s, partials) * (1.f / N);
  s = 0.f;
#pragma unroll
  for (int i = 0; i < EACH; i++)
    if (i * THREADS + int(threadIdx.x) < VECTORS)
#pragma unroll
      for (int j = 0; j < WIDTH; j++) s += (v[i][j] - mean) * (v[i][j] - mean);
  const float r = rsqrtf(block_sum(s, partials) * (1.f / N) + eps);
  load_row(gain, w);
  load_row(bias, b);
#pragma unroll
  for (int i = 0; i < EACH; i++)
#pragma unroll
    for (int j = 0; j < WIDTH; j++) v[i][j] = (v[i][j] - mean) * r * gain[i][j] + bias[i][j];
  store_row(y + row * N, v);
  if (threadIdx.x == 0) { mu[row] = mean; rstd[row] = r; }
}
