#include "normgen/columns/columns.cuh"
#include "normgen/programmatic.cuh"

// A launch sets:
//   THREADS, MIN_BLOCKS, TEAM, LANES, VEC, ITEMS, LENGTH, AHEAD, COVERS, PROGRAMMATIC, index_t, size_C,
//   HAS_DY, HAS_W, dy_t, x_t, w_t, mu_t, rstd_t, dx_t, WANT_DX, WANT_DW, WANT_DB

[[maybe_unused]] constexpr bool READ_X = WANT_DX || WANT_DW;
[[maybe_unused]] constexpr bool READ_W = HAS_W && WANT_DX;
[[maybe_unused]] constexpr bool READ_MU = WANT_DX || WANT_DW;
[[maybe_unused]] constexpr bool READ_RSTD = WANT_DX || WANT_DW;
// gradient dx[B, C, ...]: like x = rstd * (w * dy - rstd^2 * sum[C](w * dy * (x - mu)) * (x - mu) / size[C] -
//     sum[C](w * dy) / size[C])
// gradient dw[C]: like w = sum[B, ...](rstd * dy * (x - mu))
// gradient db[C]: like b = sum[B, ...](dy)
//
// A thread owns VEC adjacent columns and holds its elements of them in registers, packed. Persistent blocks
// walk the tiles of columns; sums over columns stay in registers, one per element, and leave as one partial
// per block.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) layernorm2d_backward_registers(
    const dy_t* dy_ptr,
    const x_t* x_ptr,
    const w_t* w_ptr,
    const mu_t* mu_ptr,
    const rstd_t* rstd_ptr,
    dx_t* __restrict__ dx_ptr,
    float* dw_sum_partial,
    float* db_sum_partial,
    index_t dy_stride_B,
    index_t dy_stride_C,
    index_t x_stride_B,
    index_t x_stride_C,
    index_t w_stride_C,
    index_t mu_stride_B,
    index_t rstd_stride_B,
    index_t dx_stride_B,
    index_t dx_stride_C,
    index_t chunks_per_group,
    index_t chunks,
    int blocks_per_segment) {
    extern __shared__ __align__(128) unsigned char smem[];
    __shared__ ColumnExchange<LANES, TEAM, VEC, 3> exchange;
    const int lane = threadIdx.x % LANES;
    const int member = threadIdx.x / LANES;
    const index_t block = blockIdx.x;
    const index_t tiles = (chunks + (LANES - 1)) / LANES;
    programmatic_wait<PROGRAMMATIC>();
    programmatic_launch<PROGRAMMATIC>();

    // what all tiles share
    float w[ITEMS];
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int element = item * TEAM + member;
        if (COVERS || element < LENGTH) {
            w[item] = READ_W ? load_scalar(w_ptr + element * w_stride_C) : 1.f;
        }
    }
    float dw_sum[ITEMS] = {};
    float db_sum[ITEMS] = {};

    // AHEAD: the next tile is copied into shared memory while this one is reduced; each thread copies what it
    // reads itself
    using dy_pipeline_t = Pipeline<dy_t, VEC, THREADS>;
    unsigned char* const dy_pipeline = smem;
    using x_pipeline_t = Pipeline<x_t, VEC, THREADS>;
    unsigned char* const x_pipeline = smem + HAS_DY * ITEMS * VEC * THREADS * int(sizeof(dy_t));
    float next_mu[VEC];
    float next_rstd[VEC];
    const auto ask = [&](index_t tile) {
        const index_t candidate = tile * LANES + lane;
        const bool live = candidate < chunks;
        const index_t chunk = live ? candidate : 0;
        const index_t group = chunk / chunks_per_group;
        const index_t column = chunk % chunks_per_group * VEC;
        const dy_t* const dy_column = dy_ptr + group * dy_stride_B + column;
        const x_t* const x_column = x_ptr + group * x_stride_B + column;
        const mu_t* const mu_column = mu_ptr + group * mu_stride_B + column;
        const rstd_t* const rstd_column = rstd_ptr + group * rstd_stride_B + column;
        load_columns<READ_MU>(mu_column, 0.f, next_mu);
        load_columns<READ_RSTD>(rstd_column, 0.f, next_rstd);
        if (live) {
#pragma unroll
            for (int item = 0; item < ITEMS; ++item) {
                const int element = item * TEAM + member;
                if (COVERS || element < LENGTH) {
                    if constexpr (HAS_DY)
                        dy_pipeline_t::fill(dy_pipeline, item, dy_column + element * dy_stride_C);
                }
            }
#pragma unroll
            for (int item = 0; item < ITEMS; ++item) {
                const int element = item * TEAM + member;
                if (COVERS || element < LENGTH) {
                    if constexpr (READ_X)
                        x_pipeline_t::fill(x_pipeline, item, x_column + element * x_stride_C);
                }
            }
        }
        async_commit();
    };
    if constexpr (AHEAD) ask(block);

    for (index_t tile = block; tile < tiles; tile += blocks_per_segment) {
        const index_t candidate = tile * LANES + lane;
        const bool live = candidate < chunks;
        // threads beyond the last chunk read what columns share from the first, but none of its elements,
        // which an in-place result may be overwriting, and store nothing
        const index_t chunk = live ? candidate : 0;
        const index_t group = chunk / chunks_per_group;
        const index_t column = chunk % chunks_per_group * VEC;
        const dy_t* const dy_column = dy_ptr + group * dy_stride_B + column;
        const x_t* const x_column = x_ptr + group * x_stride_B + column;
        const mu_t* const mu_column = mu_ptr + group * mu_stride_B + column;
        const rstd_t* const rstd_column = rstd_ptr + group * rstd_stride_B + column;
        dx_t* const dx_column = dx_ptr + group * dx_stride_B + column;

        // what this thread reads: first the values per column, on which all else depends
        float mu[VEC];
        if constexpr (AHEAD) copy_columns(next_mu, mu);
        else load_columns<READ_MU>(mu_column, 0.f, mu);
        float rstd[VEC];
        if constexpr (AHEAD) copy_columns(next_rstd, rstd);
        else load_columns<READ_RSTD>(rstd_column, 0.f, rstd);
        Vector<dy_t, VEC> dy_words[ITEMS];
        Vector<x_t, VEC> x_words[ITEMS];
        if constexpr (AHEAD) async_wait<0>();
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) {
            const int element = item * TEAM + member;
            if (COVERS || element < LENGTH) {
                if constexpr (HAS_DY) if (live) {
                    dy_words[item] = AHEAD ? dy_pipeline_t::read(dy_pipeline, item)
                        : load_vector<VEC>(dy_column + element * dy_stride_C);
                }
            }
        }
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) {
            const int element = item * TEAM + member;
            if (COVERS || element < LENGTH) {
                if constexpr (READ_X) if (live) {
                    x_words[item] = AHEAD ? x_pipeline_t::read(x_pipeline, item)
                        : load_vector<VEC>(x_column + element * x_stride_C);
                }
            }
        }
        if constexpr (AHEAD) ask(tile + blocks_per_segment);

        // exchange 1: sum[C](w * dy), sum[C](w * dy * minus(x, mu)), sum[C](minus(x, mu))
        float sum_w_dy[VEC] = {};
        float sum_w_dy_x_minus_mu[VEC] = {};
        float sum_x_minus_mu[VEC] = {};
        if constexpr (WANT_DX || WANT_DW) {
#pragma unroll
            for (int item = 0; item < ITEMS; ++item) {
                const int element = item * TEAM + member;
                if (COVERS || element < LENGTH) {
                    float dy[VEC];
                    if constexpr (HAS_DY) unpack(dy_words[item], dy);
                    else set_all(dy, 0.f);
                    float x[VEC];
                    if constexpr (READ_X) unpack(x_words[item], x);
                    else set_all(x, 0.f);
#pragma unroll
                    for (int i = 0; i < VEC; ++i) {
                        const float w_dy = w[item] * dy[i];
                        const float x_minus_mu = x[i] - mu[i];
                        sum_w_dy[i] += w_dy;
                        sum_w_dy_x_minus_mu[i] += w_dy * x_minus_mu;
                        sum_x_minus_mu[i] += x_minus_mu;
                    }
                }
            }
            Columns<Sum, Sum, Sum>::reduce(exchange, sum_w_dy, sum_w_dy_x_minus_mu, sum_x_minus_mu);
        }
        float neg_mean_w_dy_rstd[VEC], row_1[VEC], neg_mean_x_minus_mu[VEC];
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            neg_mean_w_dy_rstd[i] = -sum_w_dy[i] * (1.f / float(size_C)) * rstd[i];
            row_1[i] = (sum_w_dy[i] * if_finite(sum_x_minus_mu[i]) * (1.f / float(size_C))
                - sum_w_dy_x_minus_mu[i]) * (1.f / float(size_C)) * rstd[i] * rstd[i] * rstd[i];
            neg_mean_x_minus_mu[i] = -if_finite(sum_x_minus_mu[i]) * (1.f / float(size_C));
        }

        // results
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) {
            const int element = item * TEAM + member;
            if (COVERS || element < LENGTH) {
                float dy[VEC];
                keep_packed(dy_words[item]);
                if constexpr (HAS_DY) unpack(dy_words[item], dy);
                else set_all(dy, 0.f);
                float x[VEC];
                keep_packed(x_words[item]);
                if constexpr (READ_X) unpack(x_words[item], x);
                else set_all(x, 0.f);
                float dx_out[VEC];
#pragma unroll
                for (int i = 0; i < VEC; ++i) {
                    const float rstd_dy = rstd[i] * dy[i];
                    const float value_1 = neg_mean_x_minus_mu[i] + (x[i] - mu[i]);
                    dx_out[i] = neg_mean_w_dy_rstd[i] + w[item] * rstd_dy + row_1[i] * value_1;
                    if (WANT_DW && live) dw_sum[item] += rstd_dy * value_1;
                    if (WANT_DB && live) db_sum[item] += dy[i];
                }
                if (WANT_DX && live) {
                    store_vector(dx_column + element * dx_stride_C, pack<dx_t>(dx_out));
                }
            }
        }
    }

    // this block's partial of every sum over columns: its lanes are added in a fixed order
    if constexpr (WANT_DW) {
        float* const partial = dw_sum_partial + index_t(blockIdx.x) * LENGTH;
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) {
            const int element = item * TEAM + member;
            const float sum = lanes_total<LANES>(dw_sum[item]);
            if (lane == 0 && element < LENGTH) partial[element] = sum;
        }
    }
    if constexpr (WANT_DB) {
        float* const partial = db_sum_partial + index_t(blockIdx.x) * LENGTH;
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) {
            const int element = item * TEAM + member;
            const float sum = lanes_total<LANES>(db_sum[item]);
            if (lane == 0 && element < LENGTH) partial[element] = sum;
        }
    }
}
