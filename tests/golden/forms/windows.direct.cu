constexpr int THREADS = 64;  // threads of a block
constexpr int VEC = 1;  // elements of a vector
using index_t = int;  // types of row numbers and strides, and of where rows begin
// type of this operand's elements
using x_t = __nv_bfloat16;
using d_t = float;
using y_t = __nv_bfloat16;

// save d[B, C, ...]: f32 = alpha * sum[C: -2..2](x^2) / 5 + k
// output y[B, C, ...]: like x = x * d^-beta
//
// A thread owns VEC adjacent elements and reads every neighbour of each, which the caches hold.
extern "C" __global__ void __launch_bounds__(THREADS) local_response_norm_forward_direct(
    const x_t* x_ptr,
    d_t* __restrict__ d_ptr,
    y_t* __restrict__ y_ptr,
    index_t x_stride_B,
    index_t x_stride_C,
    index_t d_stride_B,
    index_t d_stride_C,
    index_t y_stride_B,
    index_t y_stride_C,
    index_t size_C,
    index_t size_rest,
    float alpha,
    float beta,
    float k,
    index_t elements) {
    const index_t element = (index_t(blockIdx.x) * THREADS + threadIdx.x) * VEC;
    if (element >= elements) return;
    [[maybe_unused]] const index_t at_rest = element % size_rest;
    [[maybe_unused]] const index_t at_C = element / size_rest % size_C;
    [[maybe_unused]] const index_t at_B = element / size_rest / size_C;
    const float alpha_ = alpha * 0.2f;
    const float neg_beta = -beta;

    // sum[C: -2..2](x^2)
    const auto add_up_sum_x2 = [&](index_t from_C, float (&sum)[VEC]) {
#pragma unroll
        for (int i = 0; i < VEC; ++i) sum[i] = 0.f;
        for (index_t at_C = first_inside(from_C - 2); at_C <= last_inside(from_C + 2, size_C); ++at_C) {
            float x[VEC];
            fetch<true>(x, x_ptr + at_B * x_stride_B + at_C * x_stride_C + at_rest, 0.f);

#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                sum[i] = __fadd_rn(sum[i], square(x[i]));
            }
        }
    };

    // results
    float x[VEC];
    fetch<true>(x, x_ptr + at_B * x_stride_B + at_C * x_stride_C + at_rest, 0.f);
    float sum_x2[VEC];
    add_up_sum_x2(at_C, sum_x2);
    float d_out[VEC];
    float y_out[VEC];
    float power_1[VEC];
#pragma unroll
    for (int i = 0; i < VEC; ++i) {
        power_1[i] = k + sum_x2[i] * alpha_;
    }
    raise_all<0, VEC>(power_1, neg_beta);
#pragma unroll
    for (int i = 0; i < VEC; ++i) {
        d_out[i] = k + sum_x2[i] * alpha_;  // local_response_norm.norm:10
        y_out[i] = x[i] * power_1[i];  // local_response_norm.norm:11
    }
    {
        store_vector(d_ptr + at_B * d_stride_B + at_C * d_stride_C + at_rest, pack<d_t>(d_out));
    }
    {
        store_vector(y_ptr + at_B * y_stride_B + at_C * y_stride_C + at_rest, pack<y_t>(y_out));
    }
}
