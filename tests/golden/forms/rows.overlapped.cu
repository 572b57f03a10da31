#include "normgen/programmatic.cuh"
#include "normgen/row_pipeline.cuh"
#include "normgen/rows/cluster_l2_hints.cuh"
#include "normgen/team.cuh"

// A launch sets:
//   THREADS, MIN_BLOCKS, CLUSTER_DIMS, TEAM, VEC, ITEMS, LENGTH, STAGES, UNTAGGED, REALIGNED, RELOAD, LATE,
//   BULK, PROGRAMMATIC, index_t, offset_t, size_D, x_t, w_t, rstd_t, y_t, HAS_W, WANT_RSTD, WANT_Y

[[maybe_unused]] constexpr bool READ_W = HAS_W && WANT_Y;
// save rstd[...]: f32 = rsqrt(sum[D](x^2) / size[D] + eps)
// output y[..., D]: like x = w * x * rstd
//
// Software-pipelined cluster exchange: persistent clusters walk the rows, which bulk copies bring into a
// multistage pipeline in shared memory and which are read there twice. The exchange of a row overlaps the
// results of the row before it.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) CLUSTER_DIMS rmsnorm_forward_overlapped(
    const x_t* x_ptr,
    const w_t* w_ptr,
    rstd_t* __restrict__ rstd_ptr,
    y_t* __restrict__ y_ptr,
    index_t x_stride_rest,
    index_t rstd_stride_rest,
    index_t y_stride_rest,
    float eps,
    index_t rows,
    int blocks_per_segment) {
    extern __shared__ __align__(128) unsigned char smem[];
    __shared__ Exchange<TEAM, THREADS, 1, 4> exchange;
    int given = 0, side = 0;  // parts of the exchange: that of the row to come, and of the row before
    __shared__ arrival_t landed[STAGES];
    using Layout = RowLayout<TEAM, THREADS, VEC, ITEMS, LENGTH, REALIGNED>;
    constexpr bool live = true;
    [[maybe_unused]] constexpr int team = 0;
    const int lane = lane_of_team<TEAM, THREADS>();
    const index_t step = blocks_per_segment;
    const index_t unit = unit_of_block<TEAM, THREADS, index_t>();

    // this block's slice of a row
    const int start = Layout::column(0, lane - int(threadIdx.x));
    const int slice = LENGTH - start < Layout::SLICE * VEC ? LENGTH - start : Layout::SLICE * VEC;
    if (threadIdx.x == 0) open_arrivals(landed, STAGES);

    // the pipeline: STAGES slices of every operand that changes from row to row
    using x_pipeline_t = RowPipeline<x_t, VEC, TEAM, THREADS, ITEMS, LENGTH, BULK, REALIGNED>;
    unsigned char* const x_pipeline = smem;
    const ClusterL2Hints<UNTAGGED> hints;
    index_t ahead = unit;
    int filled = 0;
    const auto fill = [&] {
        const index_t first = ahead;
        ahead += step;
        const int stage = filled;
        filled = filled + 1 == STAGES ? 0 : filled + 1;
        if (threadIdx.x != 0) return;
        if (first >= rows || slice <= 0) return bulk_commit();
        const index_t row = first;
        expect_bytes(&landed[stage], slice * (int(sizeof(x_t))));
        hints.copy(x_pipeline + stage * ITEMS * VEC * THREADS * int(sizeof(x_t)),
            x_ptr + row_offset<offset_t>(row, x_stride_rest) + start, slice * int(sizeof(x_t)),
            &landed[stage], row, rows);
        bulk_commit();
    };
    open_exchange(exchange);
    programmatic_wait<PROGRAMMATIC>();
    programmatic_launch<PROGRAMMATIC>();
#pragma unroll
    for (int stage = 0; stage < STAGES - 2; ++stage) fill();
    join_exchange<TEAM, THREADS>();

    // what all rows share
    Vector<w_t, VEC> w_words[ITEMS];
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int column = Layout::column(item, lane);
        if (Layout::has(item, lane, column)) {
            if constexpr (READ_W && !LATE) w_words[item] = Layout::load_aligned(w_ptr, item, lane);
        }
    }

    int arriving = 0, leaving = 0, parity = 0;
    for (index_t coming = unit, last = rows; coming < rows || last < rows; last = coming, coming += step) {
        if (coming < rows) {  // what is exchanged of it
            const index_t row = coming;
            const int stage = arriving;
            Vector<x_t, VEC> x_words[ITEMS];
            if (slice > 0) bulk_wait<STAGES - 4>(&landed[stage], parity);

            // exchange 1: sum[D](x^2)
            float sum_x2 = 0.f;
#pragma unroll
            for (int item = 0; item < ITEMS; ++item) {
                const int column = Layout::column(item, lane);
                if (Layout::has(item, lane, column)) {
                    float x[VEC];
                    if constexpr (RELOAD) x_words[item] = x_pipeline_t::read(x_pipeline, stage, item, lane);
                    if constexpr (RELOAD)
                        Layout::cut_out(x_words[item], x_ptr + row_offset<offset_t>(row, x_stride_rest));
                    unpack(x_words[item], x);
#pragma unroll
                    for (int i = 0; i < VEC; ++i) {
                        if (Layout::beyond(item, column + i)) continue;
                        sum_x2 += square(x[i]);
                    }
                }
            }
            Team<Sum>::give(exchange, given, sum_x2);
            given = (given + 1) % 8;
            arriving = arriving + 1 == STAGES ? 0 : arriving + 1;
            if (arriving == 0) parity ^= 1;
        }
        if (last < rows) {  // what depends on that
            const index_t row = last;
            const int stage = leaving;
            Vector<x_t, VEC> x_words[ITEMS];

            float sum_x2;
            Team<Sum>::take(exchange, side, sum_x2);
            const float mean_x2_plus_eps = eps + sum_x2 * (1.f / float(size_D));
            const float rstd = rsqrtf(mean_x2_plus_eps);  // rmsnorm.norm:8
            fill();  // into the stage of the row before: all warps have read it before they contributed
            // results
            Vector<y_t, VEC> y_packed[REALIGNED ? ITEMS : 1];
#pragma unroll
            for (int item = 0; item < ITEMS; ++item) {
                const int column = Layout::column(item, lane);
                if (Layout::has(item, lane, column)) {
                    float w[VEC];
                    if constexpr (LATE && READ_W) w_words[item] = Layout::load_aligned(w_ptr, item, lane);
                    if constexpr (READ_W) unpack(w_words[item], w);
                    else set_all(w, 1.f);
                    float x[VEC];
                    if constexpr (RELOAD) x_words[item] = x_pipeline_t::read(x_pipeline, stage, item, lane);
                    if constexpr (RELOAD)
                        Layout::cut_out(x_words[item], x_ptr + row_offset<offset_t>(row, x_stride_rest));
                    keep_packed(x_words[item]);
                    unpack(x_words[item], x);
                    float y_out[VEC];
#pragma unroll
                    for (int i = 0; i < VEC; ++i) {
                        y_out[i] = rstd * w[i] * x[i];  // rmsnorm.norm:9
                    }
                    if (WANT_Y && live) {
                        const Vector<y_t, VEC> packed = pack<y_t>(y_out);
                        if constexpr (REALIGNED) y_packed[item] = packed;
                        else
                            Layout::store_vector(y_ptr + row_offset<offset_t>(row, y_stride_rest) + column,
                                packed);
                    }
                }
            }
            if constexpr (WANT_Y && REALIGNED) {
                Layout::store(y_ptr + row_offset<offset_t>(row, y_stride_rest), y_packed, lane, live);
            }
            if (WANT_RSTD && live && lane == 0) {
                store_scalar<false>(rstd_ptr + row_offset<offset_t>(row, rstd_stride_rest), rstd);
            }
            leaving = leaving + 1 == STAGES ? 0 : leaving + 1;
        }
    }

    if constexpr (UNTAGGED > 0) {  // what was tagged last may leave the cache like anything else
        for (index_t row = hints.first(unit, step, rows); row < rows - UNTAGGED; row += step) {
            hints.demote<THREADS>(x_ptr + row_offset<offset_t>(row, x_stride_rest) + start, slice);
        }
    }
}
