constexpr int THREADS = 64;  // threads of a block
constexpr int MIN_BLOCKS = 20;  // blocks per multiprocessor that registers are to be there for
constexpr int TEAM = 1;  // threads of a thread group
constexpr int LANES = 64;  // threads of a block along neighbouring columns
constexpr int VEC = 1;  // elements of a vector
constexpr int LENGTH = 7;  // elements along a column
using index_t = int;  // types of row numbers and strides, and of where rows begin
// type of this operand's elements
using x_t = __nv_bfloat16;
using y_t = __nv_bfloat16;

// let e = exp(x - stop(max[C](x)))
// save output y[B, C, H, W]: like x = e / sum[C](e)
//
// Multi-pass streaming: a thread owns VEC adjacent columns and passes over its elements of them once per
// dependency level.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) softmax2d_forward_multipass(
    const x_t* x_ptr,
    y_t* __restrict__ y_ptr,
    index_t x_stride_B,
    index_t x_stride_C,
    index_t y_stride_B,
    index_t y_stride_C,
    index_t chunks_per_group,
    index_t chunks) {
    __shared__ ColumnExchange<LANES, TEAM, VEC, 2> exchange;
    const int lane = threadIdx.x % LANES;
    const int member = threadIdx.x / LANES;
    const index_t candidate = index_t(blockIdx.x) * LANES + lane;
    const bool live = candidate < chunks;
    // threads beyond the last chunk read what columns share from the first, but none of its elements, which
    // an in-place result may be overwriting, and store nothing
    const index_t chunk = live ? candidate : 0;
    const index_t group = chunk / chunks_per_group;
    const index_t column = chunk % chunks_per_group * VEC;
    const x_t* const x_column = x_ptr + group * x_stride_B + column;
    y_t* const y_column = y_ptr + group * y_stride_B + column;

    // exchange 1: max[C](x), sum[C](exp(x - max_x_2))
    RunningColumnExponentials<VEC> running;
#pragma unroll 4
    for (int element = member; element < LENGTH; element += TEAM) {
        if (live) {
            float x[VEC];
            unpack(load_vector<VEC>(x_column + element * x_stride_C), x);
            float passing[VEC];
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                passing[i] = x[i];
            }
            running.add(passing);
        }
    }
    running.over_team(exchange);
    const float(&max_x)[VEC] = running.top;
    const float(&sum_e)[VEC] = running.total;
    float inv_sum_e[VEC], max_x_2[VEC];
#pragma unroll
    for (int i = 0; i < VEC; ++i) {
        inv_sum_e[i] = 1.f / sum_e[i];
        max_x_2[i] = max_x[i];
    }

    // results
#pragma unroll 4
    for (int element = member; element < LENGTH; element += TEAM) {
        if (live) {
            float x[VEC];
            unpack(load_vector<VEC>(x_column + element * x_stride_C), x);
            float y_out[VEC];
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                const float e = expf(x[i] - max_x_2[i]);  // softmax2d.norm:5
                y_out[i] = inv_sum_e[i] * e;  // softmax2d.norm:6
            }
            if (live) {
                store_vector(y_column + element * y_stride_C, pack<y_t>(y_out));
            }
        }
    }
}
