constexpr int THREADS = 64;  // threads of a block
constexpr int VEC = 1;  // elements of a vector
constexpr int HALO = 2;  // places that a window reaches to either side of a block's own
using index_t = int;  // types of row numbers and strides, and of where rows begin
// type of this operand's elements
using x_t = __nv_bfloat16;
using d_t = float;
using y_t = __nv_bfloat16;

// save d[B, ..., C]: f32 = alpha * sum[C: -2..2](x^2) + k
// output y[B, ..., C]: like x = x * d^-beta
//
// A thread owns VEC adjacent elements of an image whose neighbours lie next to each other, and reads those
// around them too, which L1 holds.
extern "C" __global__ void __launch_bounds__(THREADS) windowed_forward_span(
    const x_t* x_ptr,
    d_t* __restrict__ d_ptr,
    y_t* __restrict__ y_ptr,
    index_t x_stride_B,
    index_t x_stride_rest,
    index_t d_stride_B,
    index_t d_stride_rest,
    index_t y_stride_B,
    index_t y_stride_rest,
    index_t size_rest,
    float alpha,
    float beta,
    float k,
    index_t images,
    index_t lanes,
    index_t size) {
    constexpr int REACH = 1;
    constexpr int SPAN = VEC + 2 * HALO;
    static_assert(HALO >= 2 * REACH, "what the windows of all levels reach has to be loaded");
    const index_t thread = index_t(blockIdx.x) * THREADS + threadIdx.x;
    const index_t at = thread % lanes * VEC;
    const index_t image = thread / lanes;
    if (image >= images) return;
    [[maybe_unused]] const index_t at_rest = image % size_rest;
    [[maybe_unused]] const index_t at_B = image / size_rest;
    const float neg_beta = -beta;
    Span<x_t, VEC, HALO> x_words;
    x_words.load(x_ptr + at_B * x_stride_B + at_rest * x_stride_rest, at, size);
    float sum_x2[SPAN];

    // sum[C: -2..2](x^2)
    {
        float x[SPAN];
        unpack_span<true>(x_words, 0.f, x);
        float sum_x2_terms[SPAN];

#pragma unroll
        for (int i = -2 * REACH; i < VEC + 2 * REACH; ++i) {
            sum_x2_terms[HALO + i] = square(x[HALO + i]);
        }
        keep_inside<VEC, HALO, 2 * REACH>(sum_x2_terms, at, size);
        add_window<-2, 2, VEC, HALO, 0>(sum_x2, sum_x2_terms);
    }

    // results
    float x[SPAN];
    unpack_span<true>(x_words, 0.f, x);
    float d_out[VEC];
    float y_out[VEC];
    float power_1[SPAN];
#pragma unroll
    for (int i = 0; i < VEC; ++i) {
        power_1[HALO + i] = k + sum_x2[HALO + i] * alpha;
    }
    raise_all<HALO + 0, HALO + VEC>(power_1, neg_beta);
#pragma unroll
    for (int i = 0; i < VEC; ++i) {
        d_out[i] = k + sum_x2[HALO + i] * alpha;  // spec.norm:6
        y_out[i] = x[HALO + i] * power_1[HALO + i];  // spec.norm:7
    }
    {
        store_vector(d_ptr + at_B * d_stride_B + at_rest * d_stride_rest + at, pack<d_t>(d_out));
    }
    {
        store_vector(y_ptr + at_B * y_stride_B + at_rest * y_stride_rest + at, pack<y_t>(y_out));
    }
}
