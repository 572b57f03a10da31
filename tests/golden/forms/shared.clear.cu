#include "normgen/cooperative.cuh"
#include "normgen/programmatic.cuh"

// A launch sets:
//   THREADS, PROGRAMMATIC, index_t

// Clears the flags of all partials.
extern "C" __global__ void __launch_bounds__(THREADS) rmsnorm_forward_clear(
    word_t* words,
    index_t count) {
    const index_t place = index_t(blockIdx.x) * THREADS + threadIdx.x;
    programmatic_wait<PROGRAMMATIC>();
    if (place < count) words[place] = 0;
    programmatic_launch<PROGRAMMATIC>();
}
