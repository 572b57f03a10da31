extern "C" __global__ void __launch_bounds__(THREADS) backward(
    const T* __restrict__ x, const T* __restrict__ w, const T* __restrict__ dy,
    const float* __restrict__ rstd, T* __restrict__ dx, float* __restrict__ parts, int rows) {
  __shared__ float partials[WARPS];
  float v[EACH][WIDTH], gain[EACH][WIDTH], d[EACH][WIDTH], dw[EACH][WIDTH] = {};
  load_row(gain, w);
  for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
    load_row(v, x + row * N);
    load_row(d, dy + row * N);
    const float r = __ldg(rstd + row);
    float s = 0.f;
#pragma unroll
    for (int i = 0; i < EACH; i++)
#pragma unroll
      for (int j = 0; j < WIDTH; j++) {
        v[i][j] *= r;
        dw[i][j] += d[i][j] * v[i][j];
        d[i][j] *= gain[i][j];
        s += d[i][j] * v[i][j];
      }
    const float mean = block_sum(s, partials) * (1.f / N);
#pragma unroll
    for (int i = 0; i < EACH; i++)
#pragma unroll
      for (int j = 0; j < WIDTH; j++) d[i][j] = r * (d[i][j] - v[i][j] * mean);
    store_row(dx + row * N, d);
  }
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    const int c = i * THREADS + threadIdx.x;
    if (c < VECTORS)
#pragma unroll
      for (int j = 0; j < WIDTH; j += 4)
        *reinterpret_cast<float4*>(parts + (long long)blockIdx.x * N + c * WIDTH + j) =
            make_float4(dw[i][j], dw[i][j + 1], dw[i][j + 2], dw[i][j + 3]);
  }
}
