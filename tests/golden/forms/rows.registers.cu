constexpr int THREADS = 128;  // threads of a block
constexpr int MIN_BLOCKS = 1;  // blocks per multiprocessor that registers are to be there for
constexpr int TEAM = 1;  // threads of a thread group
constexpr int TEAMS = 128;  // thread groups of a block
constexpr int VEC = 1;  // elements of a vector
constexpr int ITEMS = 1;  // vectors of a thread
constexpr int LENGTH = 1;  // elements of a row
// types of row numbers and strides, and of where rows begin
using index_t = int;
using offset_t = long long;
constexpr int size_D = 1;  // length of D
// type of this operand's elements
using x_t = __nv_bfloat16;
using w_t = __nv_bfloat16;
using rstd_t = float;
using y_t = __nv_bfloat16;

// save rstd[...]: f32 = rsqrt(sum[D](x^2) / size[D] + eps)
// output y[..., D]: like x = w * x * rstd
//
// One-shot kernel: a thread group (TEAM threads) owns a row and holds it in registers, packed; the grid
// covers all rows at once.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) rmsnorm_forward_registers(
    const x_t* x_ptr,
    const w_t* w_ptr,
    rstd_t* __restrict__ rstd_ptr,
    y_t* __restrict__ y_ptr,
    index_t x_stride_rest,
    index_t rstd_stride_rest,
    index_t y_stride_rest,
    float eps,
    index_t rows) {
    __shared__ Exchange<TEAM, THREADS, 1> exchange;
    int side = 0;
    using Layout = RowPlaces<TEAM, VEC, ITEMS, LENGTH>;
    const int lane = int(threadIdx.x) % TEAM;
    [[maybe_unused]] index_t row = index_t(blockIdx.x) * TEAMS + threadIdx.x / TEAM;
    const bool live = row < rows;
    // thread groups beyond the last row read its scalars, but none of its elements, which an in-place result
    // may be overwriting, and store nothing
    if (!live) row = rows - 1;

    // what this thread reads of its row
    Vector<x_t, VEC> x_words[ITEMS];
    Vector<w_t, VEC> w_words[ITEMS];
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int column = Layout::column(item, lane);
        if (live) x_words[item] = load_vector<VEC>(x_ptr + row_offset<offset_t>(row, x_stride_rest) + column);
    }
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int column = Layout::column(item, lane);
        w_words[item] = load_vector<VEC>(w_ptr + column);
    }

    // exchange 1: sum[D](x^2)
    float sum_x2 = 0.f;
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        float x[VEC];
        unpack(x_words[item], x);
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            sum_x2 += square(x[i]);
        }
    }
    Team<Sum>::reduce(exchange, side, sum_x2);
    const float mean_x2_plus_eps = eps + sum_x2 * (1.f / float(size_D));
    const float rstd = rsqrtf(mean_x2_plus_eps);  // rmsnorm.norm:8

    // results
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int column = Layout::column(item, lane);
        float w[VEC];
        unpack(w_words[item], w);
        float x[VEC];
        keep_packed(x_words[item]);
        unpack(x_words[item], x);
        float y_out[VEC];
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            y_out[i] = rstd * w[i] * x[i];  // rmsnorm.norm:9
        }
        if (live) {
            const Vector<y_t, VEC> packed = pack<y_t>(y_out);
            store_vector(y_ptr + row_offset<offset_t>(row, y_stride_rest) + column, packed);
        }
    }
    if (live && lane == 0) {
        store_scalar<false>(rstd_ptr + row_offset<offset_t>(row, rstd_stride_rest), rstd);
    }
}
