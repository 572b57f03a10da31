/* RMSNorm on a GPU from C, by a header that normgen generates: forward, backward, and a check on the host.
 *
 * Build and run, on a machine with a GPU of compute capability 9.0 (for others, change --arch and the name of
 * the header; `nvidia-smi --query-gpu=compute_cap --format=csv` says which it is):
 *
 *     normgen compile rmsnorm --emit header --size D=4096 --dtype f32 --arch sm_90 -o .
 *     cc -O2 rmsnorm.c -I. -I/usr/local/cuda/include -lcuda -lm -o rmsnorm
 *     ./rmsnorm
 *
 * The program needs the CUDA driver and nothing else: neither Python nor normgen nor the CUDA toolkit.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "rmsnorm.f32.D4096.sm_90.h"

enum { ROWS = 500, D = 4096 };
static const float EPS = 1e-6f;

/* Every call of the driver, and every function of the header, returns a code. */
static void check(CUresult code, const char *what) {
    const char *said = "unknown";
    if (code == CUDA_SUCCESS) return;
    cuGetErrorString(code, &said);
    fprintf(stderr, "%s: %s\n", what, said);
    exit(1);
}

static CUdeviceptr on_device(const float *values, size_t count) {
    CUdeviceptr memory = 0;
    check(cuMemAlloc(&memory, count * sizeof(float)), "cuMemAlloc");
    if (values) check(cuMemcpyHtoD(memory, values, count * sizeof(float)), "cuMemcpyHtoD");
    return memory;
}

static float *on_host(CUdeviceptr memory, size_t count) {
    float *values = (float *)malloc(count * sizeof(float));
    if (!values) exit(1);
    if (memory) check(cuMemcpyDtoH(values, memory, count * sizeof(float)), "cuMemcpyDtoH");
    return values;
}

/* The largest difference between results and what float64 on the host makes of the same values. */
static double largest_error(const float *x, const float *w, const float *dy, const float *y, const float *dx) {
    double largest = 0;
    int i, row;
    for (row = 0; row < ROWS; row++) {
        const float *a = x + (size_t)row * D, *da = dy + (size_t)row * D;
        double squares = 0, dot = 0, rstd;
        for (i = 0; i < D; i++) squares += (double)a[i] * a[i];
        rstd = 1 / sqrt(squares / D + EPS);
        for (i = 0; i < D; i++) dot += (double)da[i] * w[i] * a[i];
        for (i = 0; i < D; i++) {
            const double expected_y = a[i] * rstd * w[i];
            const double expected_dx = rstd * da[i] * w[i] - a[i] * dot * rstd * rstd * rstd / D;
            largest = fmax(largest, fabs(y[(size_t)row * D + i] - expected_y));
            largest = fmax(largest, fabs(dx[(size_t)row * D + i] - expected_dx));
        }
    }
    return largest;
}

int main(void) {
    const size_t count = (size_t)ROWS * D;
    const size_t scratch_bytes = rmsnorm_f32_D4096_backward_scratch(ROWS);
    float *x = on_host(0, count), *dy = on_host(0, count), *w = on_host(0, D), *y, *dx;
    CUdeviceptr x_, w_, dy_, y_, rstd_, dx_, dw_, scratch = 0;
    rmsnorm_f32_D4096 norm;
    CUdevice device;
    CUcontext context;
    CUstream stream;
    double error;
    size_t i;

    for (i = 0; i < count; i++) x[i] = sinf(0.37f * (float)i), dy[i] = cosf(0.11f * (float)i);
    for (i = 0; i < D; i++) w[i] = 1 + 0.5f * sinf((float)i);

    check(cuInit(0), "cuInit");
    check(cuDeviceGet(&device, 0), "cuDeviceGet");
    check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    check(cuStreamCreate(&stream, CU_STREAM_DEFAULT), "cuStreamCreate");
    check(rmsnorm_f32_D4096_load(&norm), "rmsnorm_f32_D4096_load");

    x_ = on_device(x, count), w_ = on_device(w, D), dy_ = on_device(dy, count);
    y_ = on_device(NULL, count), rstd_ = on_device(NULL, ROWS);
    dx_ = on_device(NULL, count), dw_ = on_device(NULL, D);
    check(cuMemAlloc(&scratch, scratch_bytes), "cuMemAlloc");

    check(rmsnorm_f32_D4096_forward(&norm, stream, x_, w_, y_, rstd_, ROWS, EPS), "forward");
    check(
        rmsnorm_f32_D4096_backward(&norm, stream, dy_, x_, w_, rstd_, dx_, dw_, scratch, scratch_bytes, ROWS),
        "backward");
    check(cuStreamSynchronize(stream), "cuStreamSynchronize");

    y = on_host(y_, count), dx = on_host(dx_, count);
    error = largest_error(x, w, dy, y, dx);
    printf("largest error of y and dx: %.1e\n", error);
    check(rmsnorm_f32_D4096_unload(&norm), "rmsnorm_f32_D4096_unload");
    return error < 1e-4 ? 0 : 2;
}
