#include "normgen/columns/columns.cuh"
#include "normgen/programmatic.cuh"

// A launch sets:
//   THREADS, MIN_BLOCKS, TEAM, LANES, VEC, ITEMS, LENGTH, COVERS, PROGRAMMATIC, index_t, size_C, x_t, w_t,
//   b_t, mu_t, rstd_t, y_t, HAS_W, HAS_B, WANT_MU, WANT_RSTD, WANT_Y

[[maybe_unused]] constexpr bool READ_W = HAS_W && WANT_Y;
[[maybe_unused]] constexpr bool READ_B = HAS_B && WANT_Y;
// save mu[B, ...]: f32 = sum[C](x) / size[C]
// save rstd[B, ...]: f32 = rsqrt(sum[C]((x - mu)^2) / size[C] + eps)
// output y[B, C, ...]: like x = w * (x - mu) * rstd + b
//
// A thread owns VEC adjacent columns, holds its elements of them in registers, packed, and reads them once.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) layernorm2d_forward_registers(
    const x_t* x_ptr,
    const w_t* w_ptr,
    const b_t* b_ptr,
    mu_t* __restrict__ mu_ptr,
    rstd_t* __restrict__ rstd_ptr,
    y_t* __restrict__ y_ptr,
    index_t x_stride_B,
    index_t x_stride_C,
    index_t w_stride_C,
    index_t b_stride_C,
    index_t mu_stride_B,
    index_t rstd_stride_B,
    index_t y_stride_B,
    index_t y_stride_C,
    float eps,
    index_t chunks_per_group,
    index_t chunks) {
    __shared__ ColumnExchange<LANES, TEAM, VEC, 3> exchange;
    const int lane = threadIdx.x % LANES;
    const int member = threadIdx.x / LANES;
    programmatic_wait<PROGRAMMATIC>();
    const index_t candidate = index_t(blockIdx.x) * LANES + lane;
    const bool live = candidate < chunks;
    // threads beyond the last chunk read what columns share from the first, but none of its elements, which
    // an in-place result may be overwriting, and store nothing
    const index_t chunk = live ? candidate : 0;
    const index_t group = chunk / chunks_per_group;
    const index_t column = chunk % chunks_per_group * VEC;
    const x_t* const x_column = x_ptr + group * x_stride_B + column;
    mu_t* const mu_column = mu_ptr + group * mu_stride_B + column;
    rstd_t* const rstd_column = rstd_ptr + group * rstd_stride_B + column;
    y_t* const y_column = y_ptr + group * y_stride_B + column;

    // what this thread reads
    Vector<x_t, VEC> x_words[ITEMS];
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int element = item * TEAM + member;
        if (COVERS || element < LENGTH) {
            if (live) {
                x_words[item] = load_vector<VEC>(x_column + element * x_stride_C);
            }
        }
    }
    float w[ITEMS];
    float b[ITEMS];
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int element = item * TEAM + member;
        if (COVERS || element < LENGTH) {
            w[item] = READ_W ? load_scalar(w_ptr + element * w_stride_C) : 1.f;
        }
    }
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int element = item * TEAM + member;
        if (COVERS || element < LENGTH) {
            b[item] = READ_B ? load_scalar(b_ptr + element * b_stride_C) : 0.f;
        }
    }

    // exchange 1: sum[C](x), sum[C](minus(x, mu)^2), sum[C](minus(x, mu))
    const auto each = [&](auto visit) {
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) {
            const int element = item * TEAM + member;
            if (COVERS || element < LENGTH) {
                float x[VEC];
                keep_packed(x_words[item]);
                unpack(x_words[item], x);
#pragma unroll
                for (int i = 0; i < VEC; ++i) {
                    visit(i, x[i]);
                }
            }
        }
    };
    const VectorMoments<VEC> moments = column_moments<LENGTH>(exchange, each);
    const float(&mu)[VEC] = moments.mean;  // layernorm2d.norm:9
    const float(&sum_x_minus_mu)[VEC] = moments.centred;
    const float(&sum_x_minus_mu_squared)[VEC] = moments.squares;
    float row_1[VEC], rstd[VEC], neg_mean_x_minus_mu_rstd[VEC];
#pragma unroll
    for (int i = 0; i < VEC; ++i) {
        row_1[i] = eps
            + maximum(sum_x_minus_mu_squared[i] - square(sum_x_minus_mu[i]) * (1.f / float(size_C)), 0.f)
            * (1.f / float(size_C));
        rstd[i] = rsqrtf(row_1[i]);  // layernorm2d.norm:10
        neg_mean_x_minus_mu_rstd[i] = -sum_x_minus_mu[i] * (1.f / float(size_C)) * rstd[i];
    }

    // results
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int element = item * TEAM + member;
        if (COVERS || element < LENGTH) {
            float x[VEC];
            keep_packed(x_words[item]);
            unpack(x_words[item], x);
            float y_out[VEC];
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                // layernorm2d.norm:11
                y_out[i] = b[item] + w[item] * (neg_mean_x_minus_mu_rstd[i] + rstd[i] * (x[i] - mu[i]));
            }
            if (WANT_Y && live) {
                store_vector(y_column + element * y_stride_C, pack<y_t>(y_out));
            }
        }
    }

    if (WANT_MU && live && member == 0) {
        store_vector(mu_column, pack<mu_t>(mu));
    }
    if (WANT_RSTD && live && member == 0) {
        store_vector(rstd_column, pack<rstd_t>(rstd));
    }
    programmatic_launch<PROGRAMMATIC>();
}

#include "normgen/columns/columns.cuh"
#include "normgen/programmatic.cuh"

// A launch sets:
//   THREADS, MIN_BLOCKS, TEAM, LANES, VEC, LENGTH, PROGRAMMATIC, index_t, size_C, x_t, w_t, b_t, mu_t,
//   rstd_t, y_t, HAS_W, HAS_B, WANT_MU, WANT_RSTD, WANT_Y

[[maybe_unused]] constexpr bool READ_W = HAS_W && WANT_Y;
[[maybe_unused]] constexpr bool READ_B = HAS_B && WANT_Y;
// save mu[B, ...]: f32 = sum[C](x) / size[C]
// save rstd[B, ...]: f32 = rsqrt(sum[C]((x - mu)^2) / size[C] + eps)
// output y[B, C, ...]: like x = w * (x - mu) * rstd + b
//
// Multi-pass streaming: a thread owns VEC adjacent columns and passes over its elements of them once per
// dependency level.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) layernorm2d_forward_multipass(
    const x_t* x_ptr,
    const w_t* w_ptr,
    const b_t* b_ptr,
    mu_t* __restrict__ mu_ptr,
    rstd_t* __restrict__ rstd_ptr,
    y_t* __restrict__ y_ptr,
    index_t x_stride_B,
    index_t x_stride_C,
    index_t w_stride_C,
    index_t b_stride_C,
    index_t mu_stride_B,
    index_t rstd_stride_B,
    index_t y_stride_B,
    index_t y_stride_C,
    float eps,
    index_t chunks_per_group,
    index_t chunks) {
    __shared__ ColumnExchange<LANES, TEAM, VEC, 3> exchange;
    const int lane = threadIdx.x % LANES;
    const int member = threadIdx.x / LANES;
    programmatic_wait<PROGRAMMATIC>();
    const index_t candidate = index_t(blockIdx.x) * LANES + lane;
    const bool live = candidate < chunks;
    // threads beyond the last chunk read what columns share from the first, but none of its elements, which
    // an in-place result may be overwriting, and store nothing
    const index_t chunk = live ? candidate : 0;
    const index_t group = chunk / chunks_per_group;
    const index_t column = chunk % chunks_per_group * VEC;
    const x_t* const x_column = x_ptr + group * x_stride_B + column;
    mu_t* const mu_column = mu_ptr + group * mu_stride_B + column;
    rstd_t* const rstd_column = rstd_ptr + group * rstd_stride_B + column;
    y_t* const y_column = y_ptr + group * y_stride_B + column;

    // exchange 1: sum[C](x), sum[C](minus(x, mu)^2), sum[C](minus(x, mu))
    RunningColumnMoments<VEC> running;
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
    const VectorMoments<VEC> moments = running.over_team<LENGTH>(exchange);
    const float(&mu)[VEC] = moments.mean;  // layernorm2d.norm:9
    const float(&sum_x_minus_mu)[VEC] = moments.centred;
    const float(&sum_x_minus_mu_squared)[VEC] = moments.squares;
    float row_1[VEC], rstd[VEC], neg_mean_x_minus_mu_rstd[VEC];
#pragma unroll
    for (int i = 0; i < VEC; ++i) {
        row_1[i] = eps
            + maximum(sum_x_minus_mu_squared[i] - square(sum_x_minus_mu[i]) * (1.f / float(size_C)), 0.f)
            * (1.f / float(size_C));
        rstd[i] = rsqrtf(row_1[i]);  // layernorm2d.norm:10
        neg_mean_x_minus_mu_rstd[i] = -sum_x_minus_mu[i] * (1.f / float(size_C)) * rstd[i];
    }

    // results
#pragma unroll 4
    for (int element = member; element < LENGTH; element += TEAM) {
        if (live) {
            float x[VEC];
            unpack(load_vector<VEC>(x_column + element * x_stride_C), x);
            const float w = READ_W ? load_scalar(w_ptr + element * w_stride_C) : 1.f;
            const float b = READ_B ? load_scalar(b_ptr + element * b_stride_C) : 0.f;
            float y_out[VEC];
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                // layernorm2d.norm:11
                y_out[i] = b + w * (neg_mean_x_minus_mu_rstd[i] + rstd[i] * (x[i] - mu[i]));
            }
            if (WANT_Y && live) {
                store_vector(y_column + element * y_stride_C, pack<y_t>(y_out));
            }
        }
    }

    if (WANT_MU && live && member == 0) {
        store_vector(mu_column, pack<mu_t>(mu));
    }
    if (WANT_RSTD && live && member == 0) {
        store_vector(rstd_column, pack<rstd_t>(rstd));
    }
    programmatic_launch<PROGRAMMATIC>();
}
