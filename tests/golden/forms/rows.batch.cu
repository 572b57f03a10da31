constexpr int THREADS = 256;  // threads of a block
constexpr int MIN_BLOCKS = 5;  // blocks per multiprocessor that registers are to be there for
constexpr int TEAM = 1;  // threads of a thread group
constexpr int TEAMS = 256;  // thread groups of a block
constexpr int VEC = 1;  // elements of a vector
constexpr int ITEMS = 1;  // vectors of a thread
constexpr int BATCH = 8;  // rows or vectors that a thread has under way together
constexpr int LENGTH = 1;  // elements of a row
// types of row numbers and strides, and of where rows begin
using index_t = int;
using offset_t = long long;
// type of this operand's elements
using x_t = __nv_bfloat16;
using alpha_t = __nv_bfloat16;
using w_t = __nv_bfloat16;
using b_t = __nv_bfloat16;
using y_t = __nv_bfloat16;

// output y[..., D]: like x = w * tanh(alpha * x) + b
//
// A thread group (TEAM threads) has a row, and BATCH rows in flight; what rows share is loaded once. For rows
// without reductions.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) dyt_forward_batch(
    const x_t* x_ptr,
    const alpha_t* alpha_ptr,
    const w_t* w_ptr,
    const b_t* b_ptr,
    y_t* __restrict__ y_ptr,
    index_t x_stride_rest,
    index_t y_stride_rest,
    index_t rows,
    int blocks_per_segment) {
    using Layout = RowPlaces<TEAM, VEC, ITEMS, LENGTH>;
    constexpr bool live = true;
    const int lane = threadIdx.x % TEAM;
    const int team = threadIdx.x / TEAM;
    const index_t block = blockIdx.x;

    // what this thread reads of its rows
    Vector<x_t, VEC> x_batch[BATCH][ITEMS];
    const auto fetch = [&](index_t first) {
#pragma unroll
        for (int slot = 0; slot < BATCH; ++slot) {
            const index_t row = first + slot * TEAMS + team;
            if (row < rows) {
#pragma unroll
                for (int item = 0; item < ITEMS; ++item) {
                    const int column = Layout::column(item, lane);
                    x_batch[slot][item] =
                        load_vector<VEC>(x_ptr + row_offset<offset_t>(row, x_stride_rest) + column);
                }
            }
        }
    };
    fetch(block * (TEAMS * BATCH));

    // what rows share
    Vector<w_t, VEC> w_words[ITEMS];
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int column = Layout::column(item, lane);
        w_words[item] = load_vector<VEC>(w_ptr + column);
    }
    Vector<b_t, VEC> b_words[ITEMS];
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int column = Layout::column(item, lane);
        b_words[item] = load_vector<VEC>(b_ptr + column);
    }
    const float alpha = load_scalar(alpha_ptr);

    for (index_t first = block * (TEAMS * BATCH); first < rows;
            first += index_t(blocks_per_segment) * (TEAMS * BATCH)) {
#pragma unroll
        for (int slot = 0; slot < BATCH; ++slot) {
            const index_t row = first + slot * TEAMS + team;
            if (row < rows) {
                Vector<x_t, VEC>(&x_words)[ITEMS] = x_batch[slot];
                // results
#pragma unroll
                for (int item = 0; item < ITEMS; ++item) {
                    const int column = Layout::column(item, lane);
                    float b[VEC];
                    unpack(b_words[item], b);
                    float w[VEC];
                    unpack(w_words[item], w);
                    float x[VEC];
                    unpack(x_words[item], x);
                    float y_out[VEC];
#pragma unroll
                    for (int i = 0; i < VEC; ++i) {
                        y_out[i] = b[i] + w[i] * tanhf(alpha * x[i]);  // dyt.norm:8
                    }
                    if (live) {
                        const Vector<y_t, VEC> packed = pack<y_t>(y_out);
                        store_vector(y_ptr + row_offset<offset_t>(row, y_stride_rest) + column, packed);
                    }
                }
            }
        }
        fetch(first + index_t(blocks_per_segment) * (TEAMS * BATCH));
    }
}
