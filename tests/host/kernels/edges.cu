// Vectors up to the very end of each kind of memory: what is one element further on straddles the end.
struct Odd { float values[33]; };
struct Both { float values[66]; };
extern "C" __global__ void edges(const float* x, float* y) {
  extern __shared__ float smem[];  // 33 floats
  __shared__ Odd first;
  __shared__ Odd second;
  if (threadIdx.x > 0) return;
  for (int i = 0; i < 33; i++) first.values[i] = second.values[i] = smem[i] = x[i];
  const int last = 30;
  const float2 of_x = *(const float2*)(x + last), of_first = *(const float2*)(first.values + last),
               of_second = *(const float2*)(second.values + last), of_smem = *(const float2*)(smem + last);
  const float2 sum = {of_x.x + of_first.x + of_second.x + of_smem.x, of_x.y};
  *(Odd*)y = first;
  *(float2*)(y + last) = sum;
}
