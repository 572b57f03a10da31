#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
using T = @T@;
constexpr int THREADS = @THREADS@, WARPS = THREADS / 32, N = @N@;
constexpr int WIDTH = 16 / int(sizeof(T)), VECTORS = N / WIDTH, EACH = (VECTORS + THREADS - 1) / THREADS;
