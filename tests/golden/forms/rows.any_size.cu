#include "normgen/programmatic.cuh"
#include "normgen/rows/any_size.cuh"

// A launch sets:
//   THREADS, MIN_BLOCKS, CLUSTER_DIMS, MEMBERS, VEC, ITEMS, REALIGNED, BACKWARDS, PROGRAMMATIC, index_t,
//   offset_t, x_t, w_t, b_t, mu_t, rstd_t, y_t, HAS_W, HAS_B, WANT_MU, WANT_RSTD, WANT_Y

[[maybe_unused]] constexpr bool READ_W = HAS_W && WANT_Y;
[[maybe_unused]] constexpr bool READ_B = HAS_B && WANT_Y;
// save mu[B, C]: f32 = sum[...](x) / size[...]
// save rstd[B, C]: f32 = rsqrt(sum[...]((x - mu)^2) / size[...] + eps)
// output y[B, C, ...]: like x = w * (x - mu) * rstd + b
//
// Rows whose length is an argument: a thread group (team lanes of a warp, or a block, or MEMBERS blocks) owns
// a row and goes over it in rounds of ITEMS vectors per thread; a row of one round stays in registers.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) CLUSTER_DIMS instancenorm_forward_any_size(
    const x_t* x_ptr,
    const w_t* w_ptr,
    const b_t* b_ptr,
    mu_t* __restrict__ mu_ptr,
    rstd_t* __restrict__ rstd_ptr,
    y_t* __restrict__ y_ptr,
    offset_t x_stride_B,
    index_t x_stride_C,
    index_t w_stride_C,
    index_t b_stride_C,
    offset_t mu_stride_B,
    index_t mu_stride_C,
    offset_t rstd_stride_B,
    index_t rstd_stride_C,
    offset_t y_stride_B,
    index_t y_stride_C,
    index_t size_B,
    index_t size_C,
    index_t size_rest,
    float eps,
    index_t rows,
    int team,
    int members) {
    __shared__ AnyExchange<MEMBERS, THREADS, 4> exchange;
    int side = 0;
    const index_t block = block_number<BACKWARDS>() / (unsigned int)members;
    const int member = int(block_number<BACKWARDS>() % (unsigned int)members);
    const int teams = int(blockDim.x) / team;
    [[maybe_unused]] index_t number = block * teams + int(threadIdx.x) / team;
    const bool live = number < rows;
    // thread groups beyond the last row read its scalars, but none of its elements, which an in-place result
    // may be overwriting, and store nothing
    if (!live) number = rows - 1;
    [[maybe_unused]] const index_t row = number;
    const AnyRow<VEC, REALIGNED> place(size_rest, 1, team, members, member, live);
    [[maybe_unused]] const int length = size_rest;
    [[maybe_unused]] const int lane = place.lane;
    const int rounds = place.rounds<ITEMS>();
    [[maybe_unused]] const index_t at_C = row % size_C;
    [[maybe_unused]] const index_t at_B = row / size_C;
    [[maybe_unused]] const int shift =
        REALIGNED ? shift_of(x_ptr + at_B * x_stride_B + row_offset<offset_t>(at_C, x_stride_C)) : 0;
    open_any<MEMBERS, THREADS, 4>(exchange);
    programmatic_wait<PROGRAMMATIC>();

    // what this thread reads of its row in the first round
    Vector<x_t, VEC> x_words[ITEMS];
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        const int item = 0 * ITEMS + k;
        if (!place.has(item)) continue;
        const int column = place.column(item, 0, shift);
        // where a piece begins with a word it takes one less
        if (REALIGNED && column >= place.length) continue;
        x_words[k] = place.load(x_ptr + at_B * x_stride_B + row_offset<offset_t>(at_C, x_stride_C), column);
    }
    const float w = READ_W ? load_scalar(w_ptr + row_offset<offset_t>(at_C, w_stride_C)) : 1.f;
    const float b = READ_B ? load_scalar(b_ptr + row_offset<offset_t>(at_C, b_stride_C)) : 0.f;
    join_any<MEMBERS>();

    // exchange 1: sum[...](x), sum[...](minus(x, mu)^2), sum[...](minus(x, mu))
    AnyMoments<VEC> running;
    for (int round = 0; round < rounds; ++round) {
        if (round > 0) {
#pragma unroll
            for (int k = 0; k < ITEMS; ++k) {
                const int item = round * ITEMS + k;
                if (!place.has(item)) continue;
                const int column = place.column(item, 0, shift);
                // where a piece begins with a word it takes one less
                if (REALIGNED && column >= place.length) continue;
                x_words[k] =
                    place.load(x_ptr + at_B * x_stride_B + row_offset<offset_t>(at_C, x_stride_C), column);
            }
        }
#pragma unroll
        for (int k = 0; k < ITEMS; ++k) {
            const int item = round * ITEMS + k;
            if (!place.has(item)) continue;
            const int column = place.column(item, 0, shift);
            // where a piece begins with a word it takes one less
            if (REALIGNED && column >= place.length) continue;
            float x[VEC];
            unpack(x_words[k], x);
            float passing[VEC];
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                passing[i] = x[i];
            }
            running.add(passing, place, column);
        }
    }
    const Moments moments = running.over_team<MEMBERS, THREADS, 4>(exchange, side, team, length);
    const float mu = moments.mean;  // instancenorm.norm:9
    const float sum_x_minus_mu = moments.centred;
    const float sum_x_minus_mu_squared = moments.squares;
    const float row_1 = eps
        + maximum(sum_x_minus_mu_squared - square(sum_x_minus_mu) * (1.f / float(size_rest)), 0.f)
        * (1.f / float(size_rest));
    const float rstd = rsqrtf(row_1);  // instancenorm.norm:10
    const float row_2 = b - sum_x_minus_mu * (1.f / float(size_rest)) * w * rstd;
    const float w_rstd = w * rstd;

    // results
    for (int round = 0; round < rounds; ++round) {
        if (rounds > 1) {
#pragma unroll
            for (int k = 0; k < ITEMS; ++k) {
                const int item = round * ITEMS + k;
                if (!place.has(item)) continue;
                const int column = place.column(item, 0, shift);
                // where a piece begins with a word it takes one less
                if (REALIGNED && column >= place.length) continue;
                x_words[k] =
                    place.load(x_ptr + at_B * x_stride_B + row_offset<offset_t>(at_C, x_stride_C), column);
            }
        }
#pragma unroll
        for (int k = 0; k < ITEMS; ++k) {
            const int item = round * ITEMS + k;
            if (!place.has(item)) continue;
            const int column = place.column(item, 0, shift);
            // where a piece begins with a word it takes one less
            if (REALIGNED && column >= place.length) continue;
            float x[VEC];
            keep_packed(x_words[k]);
            unpack(x_words[k], x);
            float y_out[VEC];
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                y_out[i] = row_2 + w_rstd * (x[i] - mu);  // instancenorm.norm:11
            }
            if constexpr (WANT_Y) {
                place.store(y_ptr + at_B * y_stride_B + row_offset<offset_t>(at_C, y_stride_C), column,
                    pack<y_t>(y_out));
            }
        }
    }
    if (WANT_MU && live && lane == 0) {
        store_scalar<false>(mu_ptr + at_B * mu_stride_B + row_offset<offset_t>(at_C, mu_stride_C), mu);
    }
    if (WANT_RSTD && live && lane == 0) {
        store_scalar<false>(rstd_ptr + at_B * rstd_stride_B + row_offset<offset_t>(at_C, rstd_stride_C),
            rstd);
    }
    programmatic_launch<PROGRAMMATIC>();
}
