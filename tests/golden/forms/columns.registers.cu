constexpr int THREADS = 32;  // threads of a block
constexpr int MIN_BLOCKS = 20;  // blocks per multiprocessor that registers are to be there for
constexpr int TEAM = 1;  // threads of a thread group
constexpr int LANES = 32;  // threads of a block along neighbouring columns
constexpr int VEC = 4;  // elements of a vector
constexpr int ITEMS = 7;  // elements along a column of a thread
constexpr int LENGTH = 7;  // elements along a column
constexpr bool REALIGNED = true;  // whether rows begin anywhere in a word of memory
constexpr bool COVERS = true;  // whether the threads of a group have all elements of a column
using index_t = int;  // types of row numbers and strides, and of where rows begin
// type of this operand's elements
using x_t = __nv_bfloat16;
using y_t = __nv_bfloat16;

// let e = exp(x - stop(max[C](x)))
// save output y[B, C, H, W]: like x = e / sum[C](e)
//
// A thread owns VEC adjacent columns, holds its elements of them in registers, packed, and reads them once.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) softmax2d_forward_registers(
    const x_t* x_ptr,
    y_t* __restrict__ y_ptr,
    index_t x_stride_B,
    index_t x_stride_C,
    index_t y_stride_B,
    index_t y_stride_C,
    index_t size_H,
    index_t size_W,
    index_t chunks_per_group,
    index_t chunks) {
    __shared__ ColumnExchange<LANES, TEAM, VEC, 1> exchange;
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
    const ColumnSpan span = span_of<REALIGNED, VEC, LANES>(column, index_t(size_H * size_W), live);

    // what this thread reads
    Vector<x_t, VEC> x_words[ITEMS];
    Vector<x_t, VEC, true> x_around[ITEMS];
    if (span.inside) {
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) {
            const int element = item * TEAM + member;
            if (COVERS || element < LENGTH) {
                load_around(x_around[item], x_column + element * x_stride_C);
            }
        }
    } else {
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) {
            const int element = item * TEAM + member;
            if (COVERS || element < LENGTH) {
                load_near_end(x_around[item], x_column + element * x_stride_C, span.count);
            }
        }
    }
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int element = item * TEAM + member;
        if (COVERS || element < LENGTH) {
            x_words[item] = cut_columns(x_around[item], x_column + element * x_stride_C);
        }
    }

    float exp_x_minus_max_x_2[ITEMS * VEC];

    // exchange 1: max[C](x)
    float max_x[VEC];
    fill_columns(max_x, -INFINITY);
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int element = item * TEAM + member;
        if (COVERS || element < LENGTH) {
            float x[VEC];
            unpack(x_words[item], x);
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                max_x[i] = maximum(max_x[i], x[i]);
            }
        }
    }
    Columns<Max>::reduce(exchange, max_x);
    float max_x_2[VEC];
#pragma unroll
    for (int i = 0; i < VEC; ++i) {
        max_x_2[i] = max_x[i];
    }

    // exchange 2: sum[C](exp(x - max_x_2))
    float sum_e[VEC] = {};
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int element = item * TEAM + member;
        if (COVERS || element < LENGTH) {
            float x[VEC];
            keep_packed(x_words[item]);
            unpack(x_words[item], x);
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                exp_x_minus_max_x_2[item * VEC + i] = expf(x[i] - max_x_2[i]);  // softmax2d.norm:5
                sum_e[i] += exp_x_minus_max_x_2[item * VEC + i];
            }
        }
    }
    Columns<Sum>::reduce(exchange, sum_e);
    float inv_sum_e[VEC];
#pragma unroll
    for (int i = 0; i < VEC; ++i) {
        inv_sum_e[i] = 1.f / sum_e[i];
    }

    // results
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int element = item * TEAM + member;
        if (COVERS || element < LENGTH) {
            float y_out[VEC];
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                y_out[i] = inv_sum_e[i] * exp_x_minus_max_x_2[item * VEC + i];  // softmax2d.norm:6
            }
            store_misaligned<LANES>(y_column + element * y_stride_C, pack<y_t>(y_out), span);
        }
    }
}
