constexpr int THREADS = 256;  // threads of a block
using index_t = int;  // types of row numbers and strides, and of where rows begin

// Clears the flags of all partials.
extern "C" __global__ void __launch_bounds__(THREADS) rmsnorm_forward_clear(
    word_t* words,
    index_t count) {
    const index_t place = index_t(blockIdx.x) * THREADS + threadIdx.x;
    if (place < count) words[place] = 0;
}
