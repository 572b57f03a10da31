// The dynamic shared memory, linked into every kernel library so that it lies in that library's
// thread-local segment. A translation unit of its own: kernels declare `smem` with an element type of their
// choice.
#include "simt_launch.h"

extern "C" {
alignas(1024) __attribute__((visibility("hidden"))) thread_local char smem[SIMT_DYNAMIC_SHARED];
__attribute__((visibility("default"))) char* simt_shared_memory() { return smem; }
}
