#include "normgen/programmatic.cuh"
#include "normgen/team.cuh"

// A launch sets:
//   THREADS, MIN_BLOCKS, VEC, BATCH, LENGTH, BACKWARDS, PROGRAMMATIC, index_t, offset_t, x_t, alpha_t, w_t,
//   b_t, y_t, HAS_W, HAS_B, WANT_Y

// output y[..., D]: like x = w * tanh(alpha * x) + b
//
// Blocks share a row, for rows that are long or few: a block takes `split` columns of every so many-th row.
// For rows without reductions. A thread has BATCH vectors in flight.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) dyt_forward_split(
    const x_t* x_ptr,
    const alpha_t* alpha_ptr,
    const w_t* w_ptr,
    const b_t* b_ptr,
    y_t* __restrict__ y_ptr,
    index_t x_stride_rest,
    index_t y_stride_rest,
    index_t rows,
    index_t split,
    int blocks_per_segment) {
    constexpr bool live = true;
    const int lane = threadIdx.x;
    const int splits = int((LENGTH + split - 1) / split);
    const int begin = int(block_number<BACKWARDS>() % splits * split);
    const int end = LENGTH - begin < split ? LENGTH : begin + int(split);
    const index_t block = block_number<BACKWARDS>() / splits;
    programmatic_wait<PROGRAMMATIC>();
    programmatic_launch<PROGRAMMATIC>();
    for (index_t row = block; row < rows; row += blocks_per_segment / splits) {
        const float alpha = load_scalar(alpha_ptr);
        for (int start = begin + lane * VEC; start < end; start += BATCH * THREADS * VEC) {
            Vector<b_t, VEC> b_words[BATCH];
            Vector<w_t, VEC> w_words[BATCH];
            Vector<x_t, VEC> x_words[BATCH];
#pragma unroll
            for (int item = 0; item < BATCH; ++item) {
                const int column = start + item * THREADS * VEC;
                if (column < end) {
                    if constexpr (HAS_B) b_words[item] = load_vector<VEC>(b_ptr + column);
                    if constexpr (HAS_W) w_words[item] = load_vector<VEC>(w_ptr + column);
                    x_words[item] =
                        load_vector<VEC>(x_ptr + row_offset<offset_t>(row, x_stride_rest) + column);
                }
            }
#pragma unroll
            for (int item = 0; item < BATCH; ++item) {
                const int column = start + item * THREADS * VEC;
                if (column < end) {
                    float b[VEC];
                    if constexpr (HAS_B) unpack(b_words[item], b);
                    else set_all(b, 0.f);
                    float w[VEC];
                    if constexpr (HAS_W) unpack(w_words[item], w);
                    else set_all(w, 1.f);
                    float x[VEC];
                    unpack(x_words[item], x);
                    float y_out[VEC];
#pragma unroll
                    for (int i = 0; i < VEC; ++i) {
                        y_out[i] = b[i] + w[i] * tanhf(alpha * x[i]);  // dyt.norm:8
                    }
                    if (WANT_Y && live) {
                        store_vector(y_ptr + row_offset<offset_t>(row, y_stride_rest) + column,
                            pack<y_t>(y_out));
                    }
                }
            }
        }
    }
}
