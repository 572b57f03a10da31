#include "normgen/columns/columns.cuh"
#include "normgen/programmatic.cuh"

// A launch sets:
//   THREADS, MIN_BLOCKS, TEAM, LANES, VEC, ACCUMULATE, PROGRAMMATIC, index_t, rstd_t, t1_t, t2_t, t7_t, dw_t,
//   db_t, WANT_DW, WANT_DB

[[maybe_unused]] constexpr bool READ_RSTD = WANT_DW;
[[maybe_unused]] constexpr bool READ_T2 = WANT_DW;
[[maybe_unused]] constexpr bool READ_T7 = WANT_DW;
// gradient dx[B, (G C), ...]: like x = rstd * (w * dy - rstd^2 * sum[C, ...](w * dy * (x - mu)) * (x - mu) /
//     (size[...] * size[C]) - sum[C, ...](w * dy) / (size[...] * size[C]))
// gradient dw[(G C)]: like w = sum[B, ...](rstd * dy * (x - mu))
// gradient db[(G C)]: like b = sum[B, ...](dy)
//
// Columns whose length is an argument: a thread owns VEC adjacent columns and passes over its elements of
// them once per dependency level.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) groupnorm_backward_apply_2_any_size(
    const rstd_t* rstd_ptr,
    const t1_t* t1_ptr,
    const t2_t* t2_ptr,
    const t7_t* t7_ptr,
    dw_t* __restrict__ dw_ptr,
    db_t* __restrict__ db_ptr,
    index_t rstd_stride_G,
    index_t rstd_stride_B,
    index_t t1_stride_B,
    index_t t2_stride_B,
    index_t t7_stride_G,
    index_t t7_stride_B,
    index_t size_G,
    index_t size_C,
    index_t size_B,
    index_t size_rest,
    index_t chunks) {
    __shared__ ColumnExchange<LANES, TEAM, VEC, 2> exchange;
    const int lane = threadIdx.x % LANES;
    const int member = threadIdx.x / LANES;
    const int length = size_B;
    programmatic_wait<PROGRAMMATIC>();
    const index_t candidate = index_t(blockIdx.x) * LANES + lane;
    const bool live = candidate < chunks;
    // threads beyond the last chunk read what columns share from the first, but none of its elements, which
    // an in-place result may be overwriting, and store nothing
    const index_t chunk = live ? candidate : 0;
    const index_t column = chunk * VEC;
    const t1_t* const t1_column = t1_ptr + column;
    const t2_t* const t2_column = t2_ptr + column;
    dw_t* const dw_column = dw_ptr + column;
    db_t* const db_column = db_ptr + column;
    const float inv_size = (1.f / float(size_rest)) * (1.f / float(size_C));

    // exchange 1: sum[B](rstd * t7 * t1 * inv_size - rstd * t2), sum[B](t1)
    float sum_rstd_t7_t1_minus_rstd_t2[VEC] = {};
    float sum_t1[VEC] = {};
#pragma unroll 4
    for (int element = member; element < length; element += TEAM) {
        if (live) {
            float t1[VEC];
            unpack(load_vector<VEC>(t1_column + element * t1_stride_B), t1);
            float t2[VEC];
            if constexpr (READ_T2) {
                unpack(load_vector<VEC>(t2_column + element * t2_stride_B), t2);
            } else set_all(t2, 0.f);
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                const float rstd = READ_RSTD
                    ? load_scalar(rstd_ptr + element * rstd_stride_B
                    + index_t((column + i) / size_C) * rstd_stride_G) : 0.f;
                const float t7 = READ_T7
                    ? load_scalar(
                    t7_ptr + element * t7_stride_B + index_t((column + i) / size_C) * t7_stride_G) : 0.f;
                sum_rstd_t7_t1_minus_rstd_t2[i] += inv_size * rstd * t7 * t1[i] - rstd * t2[i];
                sum_t1[i] += t1[i];
            }
        }
    }
    Columns<Sum, Sum>::reduce(exchange, sum_rstd_t7_t1_minus_rstd_t2, sum_t1);
    float row_1[VEC];
#pragma unroll
    for (int i = 0; i < VEC; ++i) {
        row_1[i] = -sum_rstd_t7_t1_minus_rstd_t2[i];
    }

    // results

    if (WANT_DW && live && member == 0) {
        float dw_out[VEC];
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            dw_out[i] = row_1[i];
        }
        if constexpr (ACCUMULATE) add_stored(dw_column, dw_out);
        store_vector(dw_column, pack<dw_t>(dw_out));
    }
    if (WANT_DB && live && member == 0) {
        float db_out[VEC];
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            db_out[i] = sum_t1[i];
        }
        if constexpr (ACCUMULATE) add_stored(db_column, db_out);
        store_vector(db_column, pack<db_t>(db_out));
    }
    programmatic_launch<PROGRAMMATIC>();
}
