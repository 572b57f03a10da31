// Housekeeping around the kernels of a norm: make a strided view contiguous, fill memory with one
// value.
//
// Elements are moved as bits, so `Element` is an unsigned integer of their width. `Index` counts
// elements: 32 bits wide where that is enough, for the divisions below. A preamble defines both,
// and `rank`.

extern "C" __global__ void __launch_bounds__(256) normgen_copy(
    const Element* source, Element* target, long long count,
    long long extent0, long long extent1, long long extent2, long long extent3,
    long long extent4, long long extent5, long long extent6, long long extent7,
    long long stride0, long long stride1, long long stride2, long long stride3,
    long long stride4, long long stride5, long long stride6, long long stride7) {
    const Index extents[8] = {Index(extent0), Index(extent1), Index(extent2), Index(extent3),
                              Index(extent4), Index(extent5), Index(extent6), Index(extent7)};
    const long long strides[8] = {stride0, stride1, stride2, stride3, stride4, stride5, stride6, stride7};
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        Index rest = Index(i);
        long long offset = 0;
#pragma unroll
        for (int axis = rank - 1; axis > 0; --axis) {
            offset += (long long)(rest % extents[axis]) * strides[axis];
            rest /= extents[axis];
        }
        target[i] = source[offset + (long long)rest * strides[0]];
    }
}

extern "C" __global__ void __launch_bounds__(256)
normgen_fill(Element* target, long long count, unsigned int bits) {
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        target[i] = Element(bits);
    }
}
