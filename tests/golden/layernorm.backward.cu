#include "normgen/programmatic.cuh"
#include "normgen/row_pipeline.cuh"
#include "normgen/team.cuh"

// A launch sets:
//   THREADS, MIN_BLOCKS, CLUSTER_DIMS, TEAM, TEAMS, VEC, ITEMS, LENGTH, STAGES, SLOTS, SPARE, REALIGNED,
//   RELOAD, LATE, BULK, REFILLED, PROGRAMMATIC, index_t, offset_t, size_D, HAS_DY, HAS_W, dy_t, x_t, w_t,
//   mu_t, rstd_t, dx_t, WANT_DX, WANT_DW, WANT_DB

[[maybe_unused]] constexpr bool READ_X = WANT_DX || WANT_DW;
[[maybe_unused]] constexpr bool READ_W = HAS_W && WANT_DX;
[[maybe_unused]] constexpr bool READ_MU = WANT_DX || WANT_DW;
[[maybe_unused]] constexpr bool READ_RSTD = WANT_DX || WANT_DW;
// gradient dx[..., D]: like x = rstd * (w * dy - rstd^2 * sum[D](w * dy * (x - mu)) * (x - mu) / size[D] -
//     sum[D](w * dy) / size[D])
// gradient dw[D]: like w = sum[...](rstd * dy * (x - mu))
// gradient db[D]: like b = sum[...](dy)
//
// Persistent blocks walk the rows, strided by the grid, so that all of them read one moving window of memory.
// Later rows are copied into a multistage pipeline in shared memory; column sums stay in registers, and leave
// as one partial per block.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) CLUSTER_DIMS layernorm_backward_pipeline(
    const dy_t* dy_ptr,
    const x_t* x_ptr,
    const w_t* w_ptr,
    const mu_t* mu_ptr,
    const rstd_t* rstd_ptr,
    dx_t* __restrict__ dx_ptr,
    float* dw_sum_partial,
    float* db_sum_partial,
    index_t dy_stride_rest,
    index_t x_stride_rest,
    index_t mu_stride_rest,
    index_t rstd_stride_rest,
    index_t dx_stride_rest,
    index_t rows,
    int blocks_per_segment) {
    extern __shared__ __align__(128) unsigned char smem[];
    __shared__ Exchange<TEAM, THREADS, 3> exchange;
    int side = 0;
    __shared__ arrival_t landed[BULK ? STAGES : 1];
    using Layout = RowLayout<TEAM, THREADS, VEC, ITEMS, LENGTH, REALIGNED>;
    const int lane = lane_of_team<TEAM, THREADS>();
    const int team = threadIdx.x / TEAM;
    const index_t step = index_t(blocks_per_segment) * TEAMS;
    const index_t unit = unit_of_block<TEAM, THREADS, index_t>();

    // where rows arrive as slices, one per block: this block's slice
    const int start = Layout::column(0, lane - int(threadIdx.x));
    const int slice = LENGTH - start < Layout::SLICE * VEC ? LENGTH - start : Layout::SLICE * VEC;
    int parity = 0;
    if constexpr (BULK) {
        if (threadIdx.x == 0) open_arrivals(landed, STAGES);
    }

    // the pipeline: STAGES rows of every operand that changes from row to row, each thread's vectors in its
    // own slots
    using dy_pipeline_t =
        RowPipeline<dy_t, VEC, TEAM, THREADS, ITEMS, LENGTH, BULK, REALIGNED, REFILLED ? SLOTS : 0>;
    unsigned char* const dy_pipeline = smem;
    using x_pipeline_t =
        RowPipeline<x_t, VEC, TEAM, THREADS, ITEMS, LENGTH, BULK, REALIGNED, REFILLED ? SLOTS : 0>;
    unsigned char* const x_pipeline = smem + HAS_DY * (SLOTS * VEC * THREADS * int(sizeof(dy_t)) + SPARE);
    index_t ahead = unit * TEAMS;
    index_t next = ahead;
    // (thread groups beyond the last row take zeros: results may be in place, so that no row is read by two
    // groups)
    const auto fill = [&](int stage) {
        const index_t first = ahead;
        ahead += step;
        if constexpr (BULK) {
            if (threadIdx.x != 0) return;
            if (first >= rows || slice <= 0) {
                return bulk_commit();
            }
            const index_t row = first;
            expect_bytes(&landed[stage], slice * (HAS_DY * int(sizeof(dy_t)) + READ_X * int(sizeof(x_t))));
            if constexpr (HAS_DY)
                bulk_copy(dy_pipeline + stage * ITEMS * VEC * THREADS * int(sizeof(dy_t)),
                    dy_ptr + row_offset<offset_t>(row, dy_stride_rest) + start, slice * int(sizeof(dy_t)),
                    &landed[stage]);
            if constexpr (READ_X)
                bulk_copy(x_pipeline + stage * ITEMS * VEC * THREADS * int(sizeof(x_t)),
                    x_ptr + row_offset<offset_t>(row, x_stride_rest) + start, slice * int(sizeof(x_t)),
                    &landed[stage]);
            return bulk_commit();
        }
        if constexpr (REALIGNED) __syncwarp();  // the slot may still be read
        if (first + team < rows) {
            const index_t row = first + team;
            if constexpr (HAS_DY)
                dy_pipeline_t::fill(dy_pipeline, stage, dy_ptr + row_offset<offset_t>(row, dy_stride_rest),
                    lane, row + 1 == rows);
            if constexpr (READ_X)
                x_pipeline_t::fill(x_pipeline, stage, x_ptr + row_offset<offset_t>(row, x_stride_rest), lane,
                    row + 1 == rows);
        } else if (TEAMS > 1 && first < rows) {
            if constexpr (HAS_DY) dy_pipeline_t::clear(dy_pipeline, stage);
            if constexpr (READ_X) x_pipeline_t::clear(x_pipeline, stage);
        }
        async_commit();
    };
    // REFILLED: a vector that has been read for the last time is replaced by the one SLOTS vectors later
    const auto ask = [&](int place, index_t row, int item) {
        if (row < rows) {
            if constexpr (HAS_DY)
                Pipeline<dy_t, VEC, THREADS>::fill(dy_pipeline, place,
                    dy_ptr + row_offset<offset_t>(row, dy_stride_rest) + Layout::column(item, lane));
            if constexpr (READ_X)
                Pipeline<x_t, VEC, THREADS>::fill(x_pipeline, place,
                    x_ptr + row_offset<offset_t>(row, x_stride_rest) + Layout::column(item, lane));
        }
        async_commit();
    };
    open_exchange(exchange);
    programmatic_wait<PROGRAMMATIC>();
    programmatic_launch<PROGRAMMATIC>();
    if constexpr (REFILLED) {
#pragma unroll
        for (int place = 0; place < SLOTS; ++place) ask(place, unit + place / ITEMS * step, place % ITEMS);
    } else {
#pragma unroll
        for (int stage = 0; stage < STAGES; ++stage) fill(stage);
    }

    // scalars of the row, read one row ahead
    float next_mu = 0.f;
    float next_rstd = 0.f;
    const auto look_ahead = [&] {
        const index_t first = next;
        next += step;
        if (first >= rows) return;
        const index_t row = TEAMS == 1 || first + team < rows ? first + team : rows - 1;
        next_mu = READ_MU ? load_scalar(mu_ptr + row_offset<offset_t>(row, mu_stride_rest)) : 0.f;
        next_rstd = READ_RSTD ? load_scalar(rstd_ptr + row_offset<offset_t>(row, rstd_stride_rest)) : 0.f;
    };
    look_ahead();
    join_exchange<TEAM, THREADS>();
    int stage = 0;
    // what all rows of this block share
    Vector<w_t, VEC> w_words[ITEMS];
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int column = Layout::column(item, lane);
        if (Layout::has(item, lane, column)) {
            if constexpr (READ_W && !LATE) w_words[item] = Layout::load_aligned(w_ptr, item, lane);
        }
    }
    float dw_sum[ITEMS * VEC] = {};
    float db_sum[ITEMS * VEC] = {};

    for (index_t first = unit * TEAMS; first < rows; first += step) {
        const bool live = TEAMS == 1 || first + team < rows;
        [[maybe_unused]] const index_t row = live ? first + team : rows - 1;
        const float mu = next_mu;
        const float rstd = next_rstd;
        look_ahead();

        if constexpr (REFILLED) async_wait<SLOTS - ITEMS>();
        else if constexpr (!BULK) async_wait<STAGES - 1>();
        else if (slice > 0) bulk_wait<STAGES - 1>(&landed[stage], parity);
        if constexpr (REALIGNED) __syncwarp();  // lanes read what others copied
        Vector<dy_t, VEC, REALIGNED> dy_words[ITEMS];
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) {
            const int column = Layout::column(item, lane);
            if (Layout::has(item, lane, column)) {
                if constexpr (!RELOAD && HAS_DY)
                    dy_words[item] = dy_pipeline_t::read(dy_pipeline, stage, item, lane);
            }
        }
        Vector<x_t, VEC, REALIGNED> x_words[ITEMS];
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) {
            const int column = Layout::column(item, lane);
            if (Layout::has(item, lane, column)) {
                if constexpr (!RELOAD && READ_X)
                    x_words[item] = x_pipeline_t::read(x_pipeline, stage, item, lane);
            }
        }
        if constexpr (!RELOAD && HAS_DY)
            Layout::cut_out(dy_words, dy_ptr + row_offset<offset_t>(row, dy_stride_rest));
        if constexpr (!RELOAD && READ_X)
            Layout::cut_out(x_words, x_ptr + row_offset<offset_t>(row, x_stride_rest));
        if constexpr (!RELOAD && !BULK) fill(stage);

        // exchange 1: sum[D](w * dy), sum[D](w * dy * minus(x, mu)), sum[D](minus(x, mu))
        float sum_w_dy = 0.f;
        float sum_w_dy_x_minus_mu = 0.f;
        float sum_x_minus_mu = 0.f;
        if constexpr (WANT_DX || WANT_DW) {
#pragma unroll
            for (int item = 0; item < ITEMS; ++item) {
                const int column = Layout::column(item, lane);
                if (Layout::has(item, lane, column)) {
                    float w[VEC];
                    if constexpr (LATE && READ_W) w_words[item] = Layout::load_aligned(w_ptr, item, lane);
                    if constexpr (READ_W) unpack(w_words[item], w);
                    else set_all(w, 1.f);
                    float dy[VEC];
                    if constexpr (RELOAD && HAS_DY)
                        dy_words[item] = dy_pipeline_t::read(dy_pipeline, stage, item, lane);
                    if constexpr (RELOAD && HAS_DY)
                        Layout::cut_out(dy_words[item], dy_ptr + row_offset<offset_t>(row, dy_stride_rest));
                    if constexpr (HAS_DY) unpack(dy_words[item], dy);
                    else set_all(dy, 0.f);
                    float x[VEC];
                    if constexpr (RELOAD && READ_X)
                        x_words[item] = x_pipeline_t::read(x_pipeline, stage, item, lane);
                    if constexpr (RELOAD && READ_X)
                        Layout::cut_out(x_words[item], x_ptr + row_offset<offset_t>(row, x_stride_rest));
                    if constexpr (READ_X) unpack(x_words[item], x);
                    else set_all(x, 0.f);
#pragma unroll
                    for (int i = 0; i < VEC; ++i) {
                        if (Layout::beyond(item, column + i)) continue;
                        const float w_dy = w[i] * dy[i];
                        const float x_minus_mu = x[i] - mu;
                        sum_w_dy += w_dy;
                        sum_w_dy_x_minus_mu += w_dy * x_minus_mu;
                        sum_x_minus_mu += x_minus_mu;
                    }
                }
            }
            Team<Sum, Sum, Sum>::reduce(exchange, side, sum_w_dy, sum_w_dy_x_minus_mu, sum_x_minus_mu);
        }
        const float neg_mean_w_dy_rstd = -sum_w_dy * (1.f / float(size_D)) * rstd;
        const float row_1 = (sum_w_dy * if_finite(sum_x_minus_mu) * (1.f / float(size_D))
            - sum_w_dy_x_minus_mu) * (1.f / float(size_D)) * rstd * rstd * rstd;
        const float neg_mean_x_minus_mu = -if_finite(sum_x_minus_mu) * (1.f / float(size_D));
        if constexpr (!RELOAD && BULK) {  // every warp has read its part of the row before it contributed
            constexpr bool gave = WANT_DX || WANT_DW;
            if constexpr (!gave) __syncthreads();
            fill(stage);
        }

        const index_t next_row = row + SLOTS / ITEMS * step, later_row = next_row + step;
        // results
        Vector<dx_t, VEC> dx_packed[REALIGNED ? ITEMS : 1];
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) {
            const int column = Layout::column(item, lane);
            if (Layout::has(item, lane, column)) {
                float dy[VEC];
                if constexpr (RELOAD && HAS_DY)
                    dy_words[item] = dy_pipeline_t::read(dy_pipeline, stage, item, lane);
                if constexpr (RELOAD && HAS_DY)
                    Layout::cut_out(dy_words[item], dy_ptr + row_offset<offset_t>(row, dy_stride_rest));
                keep_packed(dy_words[item]);
                if constexpr (HAS_DY) unpack(dy_words[item], dy);
                else set_all(dy, 0.f);
                float w[VEC];
                if constexpr (LATE && READ_W) w_words[item] = Layout::load_aligned(w_ptr, item, lane);
                if constexpr (READ_W) unpack(w_words[item], w);
                else set_all(w, 1.f);
                float x[VEC];
                if constexpr (RELOAD && READ_X)
                    x_words[item] = x_pipeline_t::read(x_pipeline, stage, item, lane);
                if constexpr (RELOAD && READ_X)
                    Layout::cut_out(x_words[item], x_ptr + row_offset<offset_t>(row, x_stride_rest));
                keep_packed(x_words[item]);
                if constexpr (READ_X) unpack(x_words[item], x);
                else set_all(x, 0.f);
                if constexpr (REFILLED) {
                    ask(wrapped<SLOTS>(stage + item), item + SLOTS % ITEMS < ITEMS ? next_row : later_row,
                        (item + SLOTS) % ITEMS);
                }
                float dx_out[VEC];
#pragma unroll
                for (int i = 0; i < VEC; ++i) {
                    const float rstd_dy = rstd * dy[i];
                    const float value_1 = neg_mean_x_minus_mu + (x[i] - mu);
                    dx_out[i] = neg_mean_w_dy_rstd + w[i] * rstd_dy + row_1 * value_1;
                    if (WANT_DW && live) dw_sum[item * VEC + i] += rstd_dy * value_1;
                    if (WANT_DB && live) db_sum[item * VEC + i] += dy[i];
                }
                if (WANT_DX && live) {
                    const Vector<dx_t, VEC> packed = pack<dx_t>(dx_out);
                    if constexpr (REALIGNED) dx_packed[item] = packed;
                    else
                        Layout::store_vector(dx_ptr + row_offset<offset_t>(row, dx_stride_rest) + column,
                            packed);
                }
            }
        }
        if constexpr (WANT_DX && REALIGNED) {
            Layout::store(dx_ptr + row_offset<offset_t>(row, dx_stride_rest), dx_packed, lane, live);
        }
        if constexpr (REFILLED) {
            stage = wrapped<SLOTS>(stage + ITEMS);
            continue;
        }
        if constexpr (RELOAD) {
            if constexpr (BULK) __syncthreads();  // every warp has read what it has of the row
            fill(stage);
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        if (stage == 0) parity ^= 1;
    }

    // this block's partial of every column sum: its thread groups are added in order
    float* const gather = reinterpret_cast<float*>(smem);
    if constexpr (WANT_DW) {
        float* const partial = dw_sum_partial + unit * LENGTH;
        if constexpr (TEAMS > 1) __syncthreads();  // the pipeline, or the sum before, may still be in use
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) {
            const int column = Layout::column(item, lane);
            if (Layout::has(item, lane, column)) {
#pragma unroll
                for (int i = 0; i < VEC; ++i) {
                    if (Layout::beyond(item, column + i)) continue;
                    if constexpr (TEAMS == 1) partial[column + i] = dw_sum[item * VEC + i];
                    else gather[team * LENGTH + column + i] = dw_sum[item * VEC + i];
                }
            }
        }
        if constexpr (TEAMS > 1) {
            __syncthreads();
            for (int column = threadIdx.x; column < LENGTH; column += THREADS) {
                float sum = 0.f;
                for (int other = 0; other < TEAMS; ++other) {
                    sum += gather[other * LENGTH + column];
                }
                partial[column] = sum;
            }
        }
    }
    if constexpr (WANT_DB) {
        float* const partial = db_sum_partial + unit * LENGTH;
        if constexpr (TEAMS > 1) __syncthreads();  // the pipeline, or the sum before, may still be in use
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) {
            const int column = Layout::column(item, lane);
            if (Layout::has(item, lane, column)) {
#pragma unroll
                for (int i = 0; i < VEC; ++i) {
                    if (Layout::beyond(item, column + i)) continue;
                    if constexpr (TEAMS == 1) partial[column + i] = db_sum[item * VEC + i];
                    else gather[team * LENGTH + column + i] = db_sum[item * VEC + i];
                }
            }
        }
        if constexpr (TEAMS > 1) {
            __syncthreads();
            for (int column = threadIdx.x; column < LENGTH; column += THREADS) {
                float sum = 0.f;
                for (int other = 0; other < TEAMS; ++other) {
                    sum += gather[other * LENGTH + column];
                }
                partial[column] = sum;
            }
        }
    }
}

#include "normgen/programmatic.cuh"
#include "normgen/row_pipeline.cuh"
#include "normgen/team.cuh"

// A launch sets:
//   THREADS, MIN_BLOCKS, CLUSTER_DIMS, TEAM, TEAMS, VEC, ITEMS, LENGTH, STAGES, SLOTS, REALIGNED, RELOAD,
//   LATE, BULK, PROGRAMMATIC, index_t, offset_t, size_D, HAS_DY, HAS_W, dy_t, x_t, w_t, mu_t, rstd_t, dx_t,
//   WANT_DX, WANT_DW, WANT_DB

[[maybe_unused]] constexpr bool READ_X = WANT_DX || WANT_DW;
[[maybe_unused]] constexpr bool READ_W = HAS_W && WANT_DX;
[[maybe_unused]] constexpr bool READ_MU = WANT_DX || WANT_DW;
[[maybe_unused]] constexpr bool READ_RSTD = WANT_DX || WANT_DW;
// gradient dx[..., D]: like x = rstd * (w * dy - rstd^2 * sum[D](w * dy * (x - mu)) * (x - mu) / size[D] -
//     sum[D](w * dy) / size[D])
// gradient dw[D]: like w = sum[...](rstd * dy * (x - mu))
// gradient db[D]: like b = sum[...](dy)
//
// Software-pipelined cluster exchange: persistent clusters walk the rows, which bulk copies bring into a
// multistage pipeline in shared memory and which are read there twice. The exchange of a row overlaps the
// results of the row before it. Column sums stay in registers, and leave as one partial per cluster.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) CLUSTER_DIMS layernorm_backward_overlapped(
    const dy_t* dy_ptr,
    const x_t* x_ptr,
    const w_t* w_ptr,
    const mu_t* mu_ptr,
    const rstd_t* rstd_ptr,
    dx_t* __restrict__ dx_ptr,
    float* dw_sum_partial,
    float* db_sum_partial,
    index_t dy_stride_rest,
    index_t x_stride_rest,
    index_t mu_stride_rest,
    index_t rstd_stride_rest,
    index_t dx_stride_rest,
    index_t rows,
    int blocks_per_segment) {
    extern __shared__ __align__(128) unsigned char smem[];
    __shared__ Exchange<TEAM, THREADS, 3, 4> exchange;
    int given = 0, side = 0;  // parts of the exchange: that of the row to come, and of the row before
    __shared__ arrival_t landed[STAGES];
    using Layout = RowLayout<TEAM, THREADS, VEC, ITEMS, LENGTH, REALIGNED>;
    constexpr bool live = true;
    constexpr int team = 0;
    const int lane = lane_of_team<TEAM, THREADS>();
    const index_t step = blocks_per_segment;
    const index_t unit = unit_of_block<TEAM, THREADS, index_t>();

    // this block's slice of a row
    const int start = Layout::column(0, lane - int(threadIdx.x));
    const int slice = LENGTH - start < Layout::SLICE * VEC ? LENGTH - start : Layout::SLICE * VEC;
    if (threadIdx.x == 0) open_arrivals(landed, STAGES);

    // the pipeline: STAGES slices of every operand that changes from row to row
    using dy_pipeline_t = RowPipeline<dy_t, VEC, TEAM, THREADS, ITEMS, LENGTH, BULK, REALIGNED>;
    unsigned char* const dy_pipeline = smem;
    using x_pipeline_t = RowPipeline<x_t, VEC, TEAM, THREADS, ITEMS, LENGTH, BULK, REALIGNED>;
    unsigned char* const x_pipeline = smem + HAS_DY * SLOTS * VEC * THREADS * int(sizeof(dy_t));
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
        expect_bytes(&landed[stage], slice * (HAS_DY * int(sizeof(dy_t)) + READ_X * int(sizeof(x_t))));
        if constexpr (HAS_DY)
            bulk_copy(dy_pipeline + stage * ITEMS * VEC * THREADS * int(sizeof(dy_t)),
                dy_ptr + row_offset<offset_t>(row, dy_stride_rest) + start, slice * int(sizeof(dy_t)),
                &landed[stage]);
        if constexpr (READ_X)
            bulk_copy(x_pipeline + stage * ITEMS * VEC * THREADS * int(sizeof(x_t)),
                x_ptr + row_offset<offset_t>(row, x_stride_rest) + start, slice * int(sizeof(x_t)),
                &landed[stage]);
        bulk_commit();
    };
    open_exchange(exchange);
    programmatic_wait<PROGRAMMATIC>();
    programmatic_launch<PROGRAMMATIC>();
#pragma unroll
    for (int stage = 0; stage < STAGES - 2; ++stage) fill();

    index_t next = unit;
    // scalars of the row, read one row ahead
    float next_mu = 0.f;
    float next_rstd = 0.f;
    const auto look_ahead = [&] {
        const index_t first = next;
        next += step;
        if (first >= rows) return;
        const index_t row = TEAMS == 1 || first + team < rows ? first + team : rows - 1;
        next_mu = READ_MU ? load_scalar(mu_ptr + row_offset<offset_t>(row, mu_stride_rest)) : 0.f;
        next_rstd = READ_RSTD ? load_scalar(rstd_ptr + row_offset<offset_t>(row, rstd_stride_rest)) : 0.f;
    };
    look_ahead();
    float last_mu = 0.f;
    float last_rstd = 0.f;
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
    float dw_sum[ITEMS * VEC] = {};
    float db_sum[ITEMS * VEC] = {};

    int arriving = 0, leaving = 0, parity = 0;
    for (index_t coming = unit, last = rows; coming < rows || last < rows; last = coming, coming += step) {
        const float this_mu = next_mu;
        const float this_rstd = next_rstd;
        if (coming < rows) {  // what is exchanged of it
            const index_t row = coming;
            const int stage = arriving;
            const float mu = this_mu;
            const float rstd = this_rstd;
            Vector<dy_t, VEC> dy_words[ITEMS];
            Vector<x_t, VEC> x_words[ITEMS];
            look_ahead();
            if (slice > 0) bulk_wait<STAGES - 4>(&landed[stage], parity);

            // exchange 1: sum[D](w * dy), sum[D](w * dy * minus(x, mu)), sum[D](minus(x, mu))
            float sum_w_dy = 0.f;
            float sum_w_dy_x_minus_mu = 0.f;
            float sum_x_minus_mu = 0.f;
#pragma unroll
            for (int item = 0; item < ITEMS; ++item) {
                const int column = Layout::column(item, lane);
                if (Layout::has(item, lane, column)) {
                    float w[VEC];
                    if constexpr (LATE && READ_W) w_words[item] = Layout::load_aligned(w_ptr, item, lane);
                    if constexpr (READ_W) unpack(w_words[item], w);
                    else set_all(w, 1.f);
                    float dy[VEC];
                    if constexpr (RELOAD && HAS_DY)
                        dy_words[item] = dy_pipeline_t::read(dy_pipeline, stage, item, lane);
                    if constexpr (RELOAD && HAS_DY)
                        Layout::cut_out(dy_words[item], dy_ptr + row_offset<offset_t>(row, dy_stride_rest));
                    if constexpr (HAS_DY) unpack(dy_words[item], dy);
                    else set_all(dy, 0.f);
                    float x[VEC];
                    if constexpr (RELOAD && READ_X)
                        x_words[item] = x_pipeline_t::read(x_pipeline, stage, item, lane);
                    if constexpr (RELOAD && READ_X)
                        Layout::cut_out(x_words[item], x_ptr + row_offset<offset_t>(row, x_stride_rest));
                    if constexpr (READ_X) unpack(x_words[item], x);
                    else set_all(x, 0.f);
#pragma unroll
                    for (int i = 0; i < VEC; ++i) {
                        if (Layout::beyond(item, column + i)) continue;
                        const float w_dy = w[i] * dy[i];
                        const float x_minus_mu = x[i] - mu;
                        sum_w_dy += w_dy;
                        sum_w_dy_x_minus_mu += w_dy * x_minus_mu;
                        sum_x_minus_mu += x_minus_mu;
                    }
                }
            }
            Team<Sum, Sum, Sum>::give(exchange, given, sum_w_dy, sum_w_dy_x_minus_mu, sum_x_minus_mu);
            given = (given + 1) % 8;
            arriving = arriving + 1 == STAGES ? 0 : arriving + 1;
            if (arriving == 0) parity ^= 1;
        }
        if (last < rows) {  // what depends on that
            const index_t row = last;
            const int stage = leaving;
            const float mu = last_mu;
            const float rstd = last_rstd;
            Vector<dy_t, VEC> dy_words[ITEMS];
            Vector<x_t, VEC> x_words[ITEMS];

            float sum_w_dy, sum_w_dy_x_minus_mu, sum_x_minus_mu;
            Team<Sum, Sum, Sum>::take(exchange, side, sum_w_dy, sum_w_dy_x_minus_mu, sum_x_minus_mu);
            const float neg_mean_w_dy_rstd = -sum_w_dy * (1.f / float(size_D)) * rstd;
            const float row_1 = (sum_w_dy * if_finite(sum_x_minus_mu) * (1.f / float(size_D))
                - sum_w_dy_x_minus_mu) * (1.f / float(size_D)) * rstd * rstd * rstd;
            const float neg_mean_x_minus_mu = -if_finite(sum_x_minus_mu) * (1.f / float(size_D));
            fill();  // into the stage of the row before: all warps have read it before they contributed
            // results
            Vector<dx_t, VEC> dx_packed[REALIGNED ? ITEMS : 1];
#pragma unroll
            for (int item = 0; item < ITEMS; ++item) {
                const int column = Layout::column(item, lane);
                if (Layout::has(item, lane, column)) {
                    float dy[VEC];
                    if constexpr (RELOAD && HAS_DY)
                        dy_words[item] = dy_pipeline_t::read(dy_pipeline, stage, item, lane);
                    if constexpr (RELOAD && HAS_DY)
                        Layout::cut_out(dy_words[item], dy_ptr + row_offset<offset_t>(row, dy_stride_rest));
                    keep_packed(dy_words[item]);
                    if constexpr (HAS_DY) unpack(dy_words[item], dy);
                    else set_all(dy, 0.f);
                    float w[VEC];
                    if constexpr (LATE && READ_W) w_words[item] = Layout::load_aligned(w_ptr, item, lane);
                    if constexpr (READ_W) unpack(w_words[item], w);
                    else set_all(w, 1.f);
                    float x[VEC];
                    if constexpr (RELOAD && READ_X)
                        x_words[item] = x_pipeline_t::read(x_pipeline, stage, item, lane);
                    if constexpr (RELOAD && READ_X)
                        Layout::cut_out(x_words[item], x_ptr + row_offset<offset_t>(row, x_stride_rest));
                    keep_packed(x_words[item]);
                    if constexpr (READ_X) unpack(x_words[item], x);
                    else set_all(x, 0.f);
                    float dx_out[VEC];
#pragma unroll
                    for (int i = 0; i < VEC; ++i) {
                        const float rstd_dy = rstd * dy[i];
                        const float value_1 = neg_mean_x_minus_mu + (x[i] - mu);
                        dx_out[i] = neg_mean_w_dy_rstd + w[i] * rstd_dy + row_1 * value_1;
                        if (WANT_DW && live) dw_sum[item * VEC + i] += rstd_dy * value_1;
                        if (WANT_DB && live) db_sum[item * VEC + i] += dy[i];
                    }
                    if (WANT_DX && live) {
                        const Vector<dx_t, VEC> packed = pack<dx_t>(dx_out);
                        if constexpr (REALIGNED) dx_packed[item] = packed;
                        else
                            Layout::store_vector(dx_ptr + row_offset<offset_t>(row, dx_stride_rest) + column,
                                packed);
                    }
                }
            }
            if constexpr (WANT_DX && REALIGNED) {
                Layout::store(dx_ptr + row_offset<offset_t>(row, dx_stride_rest), dx_packed, lane, live);
            }
            leaving = leaving + 1 == STAGES ? 0 : leaving + 1;
        }
        last_mu = this_mu;
        last_rstd = this_rstd;
    }

    // this block's partial of every column sum: its thread groups are added in order
    float* const gather = reinterpret_cast<float*>(smem);
    if constexpr (WANT_DW) {
        float* const partial = dw_sum_partial + unit * LENGTH;
        if constexpr (TEAMS > 1) __syncthreads();  // the pipeline, or the sum before, may still be in use
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) {
            const int column = Layout::column(item, lane);
            if (Layout::has(item, lane, column)) {
#pragma unroll
                for (int i = 0; i < VEC; ++i) {
                    if (Layout::beyond(item, column + i)) continue;
                    if constexpr (TEAMS == 1) partial[column + i] = dw_sum[item * VEC + i];
                    else gather[team * LENGTH + column + i] = dw_sum[item * VEC + i];
                }
            }
        }
        if constexpr (TEAMS > 1) {
            __syncthreads();
            for (int column = threadIdx.x; column < LENGTH; column += THREADS) {
                float sum = 0.f;
                for (int other = 0; other < TEAMS; ++other) {
                    sum += gather[other * LENGTH + column];
                }
                partial[column] = sum;
            }
        }
    }
    if constexpr (WANT_DB) {
        float* const partial = db_sum_partial + unit * LENGTH;
        if constexpr (TEAMS > 1) __syncthreads();  // the pipeline, or the sum before, may still be in use
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) {
            const int column = Layout::column(item, lane);
            if (Layout::has(item, lane, column)) {
#pragma unroll
                for (int i = 0; i < VEC; ++i) {
                    if (Layout::beyond(item, column + i)) continue;
                    if constexpr (TEAMS == 1) partial[column + i] = db_sum[item * VEC + i];
                    else gather[team * LENGTH + column + i] = db_sum[item * VEC + i];
                }
            }
        }
        if constexpr (TEAMS > 1) {
            __syncthreads();
            for (int column = threadIdx.x; column < LENGTH; column += THREADS) {
                float sum = 0.f;
                for (int other = 0; other < TEAMS; ++other) {
                    sum += gather[other * LENGTH + column];
                }
                partial[column] = sum;
            }
        }
    }
}

#include "normgen/programmatic.cuh"
#include "normgen/rows/word_aligned.cuh"
#include "normgen/team.cuh"

// A launch sets:
//   THREADS, MIN_BLOCKS, TEAM, TEAMS, VEC, ITEMS, LENGTH, STAGES, SLOTS, SPARE, REALIGNED, PROGRAMMATIC,
//   index_t, offset_t, size_D, HAS_DY, HAS_W, dy_t, x_t, w_t, mu_t, rstd_t, dx_t, WANT_DX, WANT_DW, WANT_DB

[[maybe_unused]] constexpr bool READ_X = WANT_DX || WANT_DW;
[[maybe_unused]] constexpr bool READ_W = HAS_W && WANT_DX;
[[maybe_unused]] constexpr bool READ_MU = WANT_DX || WANT_DW;
[[maybe_unused]] constexpr bool READ_RSTD = WANT_DX || WANT_DW;
// gradient dx[..., D]: like x = rstd * (w * dy - rstd^2 * sum[D](w * dy * (x - mu)) * (x - mu) / size[D] -
//     sum[D](w * dy) / size[D])
// gradient dw[D]: like w = sum[...](rstd * dy * (x - mu))
// gradient db[D]: like b = sum[...](dy)
//
// Word-aligned stores: persistent blocks walk misaligned rows; those of a thread group all begin at the same
// element of a word. Later rows are copied into a multistage pipeline in shared memory. A row is summed by
// its vectors; results and column sums go by aligned words.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) layernorm_backward_word_aligned(
    const dy_t* dy_ptr,
    const x_t* x_ptr,
    const w_t* w_ptr,
    const mu_t* mu_ptr,
    const rstd_t* rstd_ptr,
    dx_t* __restrict__ dx_ptr,
    float* dw_sum_partial,
    float* db_sum_partial,
    index_t dy_stride_rest,
    index_t x_stride_rest,
    index_t mu_stride_rest,
    index_t rstd_stride_rest,
    index_t dx_stride_rest,
    index_t rows,
    int blocks_per_segment) {
    extern __shared__ __align__(128) unsigned char smem[];
    __shared__ Exchange<TEAM, THREADS, 3> exchange;
    int side = 0;
    // EVEN: the slices of warps have one length
    using Layout = RowLayout<TEAM, THREADS, VEC, ITEMS, LENGTH, REALIGNED, true>;
    using WordAligned = WordAlignedLayout<TEAM, THREADS, VEC, ITEMS, LENGTH>;
    const int lane = lane_of_team<TEAM, THREADS>();
    const int team = threadIdx.x / TEAM;
    const index_t step = index_t(blocks_per_segment) * TEAMS;
    const index_t unit = unit_of_block<TEAM, THREADS, index_t>();

    // the pipeline: STAGES rows of every operand that changes from row to row, word by word
    using dy_pipeline_t = WordAlignedPipeline<dy_t, TEAM, THREADS, ITEMS, LENGTH, STAGES>;
    unsigned char* const dy_pipeline = smem;
    using x_pipeline_t = WordAlignedPipeline<x_t, TEAM, THREADS, ITEMS, LENGTH, STAGES>;
    unsigned char* const x_pipeline = smem + HAS_DY * (SLOTS * VEC * THREADS * int(sizeof(dy_t)) + SPARE);

    index_t ahead = unit * TEAMS;
    index_t next = ahead;
    // (thread groups beyond the last row take zeros: results may be in place, so that no row is read by two
    // groups)
    const auto fill = [&](int stage) {
        const index_t first = ahead;
        ahead += step;
        __syncwarp();  // the slot may still be read
        if (first + team < rows) {
            const index_t row = first + team;
            if constexpr (HAS_DY)
                dy_pipeline_t::fill(dy_pipeline, stage, dy_ptr + row_offset<offset_t>(row, dy_stride_rest),
                    lane, row + 1 == rows);
            if constexpr (READ_X)
                x_pipeline_t::fill(x_pipeline, stage, x_ptr + row_offset<offset_t>(row, x_stride_rest), lane,
                    row + 1 == rows);
        } else if (TEAMS > 1 && first < rows) {
            if constexpr (HAS_DY) dy_pipeline_t::clear(dy_pipeline, stage);
            if constexpr (READ_X) x_pipeline_t::clear(x_pipeline, stage);
        }
        async_commit();
    };
    open_exchange(exchange);
    programmatic_wait<PROGRAMMATIC>();
    programmatic_launch<PROGRAMMATIC>();
#pragma unroll
    for (int stage = 0; stage < STAGES; ++stage) fill(stage);

    // scalars of the row, read one row ahead
    float next_mu = 0.f;
    float next_rstd = 0.f;
    const auto look_ahead = [&] {
        const index_t first = next;
        next += step;
        if (first >= rows) return;
        const index_t row = TEAMS == 1 || first + team < rows ? first + team : rows - 1;
        next_mu = READ_MU ? load_scalar(mu_ptr + row_offset<offset_t>(row, mu_stride_rest)) : 0.f;
        next_rstd = READ_RSTD ? load_scalar(rstd_ptr + row_offset<offset_t>(row, rstd_stride_rest)) : 0.f;
    };
    look_ahead();
    join_exchange<TEAM, THREADS>();

    // the element of a word at which the rows of this group begin, and what rows share: by vectors, and by
    // words
    const auto misalignment_of = [&](index_t row) {
        return shift_of(dy_ptr + row_offset<offset_t>(row, dy_stride_rest));
    };
    const int misalignment = misalignment_of(unit * TEAMS + team < rows ? unit * TEAMS + team : rows - 1);
    const unsigned int misalignment_bits = misalignment * int(sizeof(dy_t)) % 4 * 8;
    Vector<w_t, VEC> w_words[ITEMS], w_word_aligned[ITEMS];
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int column = Layout::column(item, lane);
        if (Layout::has(item, lane, column)) {
            if constexpr (READ_W) w_words[item] = Layout::load_aligned(w_ptr, item, lane);
            if constexpr (READ_W) w_word_aligned[item] = WordAligned::load(w_ptr, item, lane, misalignment);
        }
    }
    float dw_sum[ITEMS * VEC] = {};
    float db_sum[ITEMS * VEC] = {};

    int stage = 0;
    for (index_t first = unit * TEAMS; first < rows; first += step) {
        const bool live = TEAMS == 1 || first + team < rows;
        [[maybe_unused]] const index_t row = live ? first + team : rows - 1;
        const float mu = next_mu;
        const float rstd = next_rstd;
        look_ahead();
        async_wait<STAGES - 1>();
        __syncwarp();  // lanes read what others copied

        // exchange 1: sum[D](w * dy), sum[D](w * dy * minus(x, mu)), sum[D](minus(x, mu))
        float sum_w_dy = 0.f;
        float sum_w_dy_x_minus_mu = 0.f;
        float sum_x_minus_mu = 0.f;
        const auto add_up = [&](auto whole) {
            constexpr int PARTS = decltype(whole)::PARTS;
#pragma unroll
            for (int item = 0; item < ITEMS; ++item) {
                const int column = Layout::column(item, lane);
                if (Layout::has(item, lane, column)) {
                    float w[VEC];
                    if constexpr (READ_W) unpack(w_words[item], w);
                    else set_all(w, 1.f);
                    float dy[VEC];
                    if constexpr (HAS_DY)
                        unpack(dy_pipeline_t::template cut<PARTS>(dy_pipeline, stage, item, lane,
                            misalignment_bits), dy);
                    else set_all(dy, 0.f);
                    float x[VEC];
                    if constexpr (READ_X)
                        unpack(x_pipeline_t::template cut<PARTS>(x_pipeline, stage, item, lane,
                            misalignment_bits), x);
                    else set_all(x, 0.f);
#pragma unroll
                    for (int i = 0; i < VEC; ++i) {
                        if (Layout::beyond(item, column + i)) continue;
                        const float w_dy = w[i] * dy[i];
                        const float x_minus_mu = x[i] - mu;
                        sum_w_dy += w_dy;
                        sum_w_dy_x_minus_mu += w_dy * x_minus_mu;
                        sum_x_minus_mu += x_minus_mu;
                    }
                }
            }
        };
        if constexpr (WANT_DX || WANT_DW) by_whole_parts(misalignment * int(sizeof(dy_t)), add_up);
        if constexpr (WANT_DX || WANT_DW)
            Team<Sum, Sum, Sum>::reduce(exchange, side, sum_w_dy, sum_w_dy_x_minus_mu, sum_x_minus_mu);
        const float neg_mean_w_dy_rstd = -sum_w_dy * (1.f / float(size_D)) * rstd;
        const float row_1 = (sum_w_dy * if_finite(sum_x_minus_mu) * (1.f / float(size_D))
            - sum_w_dy_x_minus_mu) * (1.f / float(size_D)) * rstd * rstd * rstd;
        const float neg_mean_x_minus_mu = -if_finite(sum_x_minus_mu) * (1.f / float(size_D));

        // results
        if constexpr (TEAM <= 32) {
            // all vectors are cut out of the row's first word; in larger groups the exchange ensures it
            __syncwarp();
        }
        if constexpr (HAS_DY) dy_pipeline_t::join(dy_pipeline, stage, lane, misalignment);
        if constexpr (READ_X) x_pipeline_t::join(x_pipeline, stage, lane, misalignment);
        __syncwarp();
        // the first thread's word with both ends of the row
        Vector<dx_t, VEC> dx_packed = {};
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) {
            const int column = Layout::column(item, lane);
            if (Layout::has(item, lane, column)) {
                float dy[VEC];
                if constexpr (HAS_DY) unpack(dy_pipeline_t::read(dy_pipeline, stage, item, lane), dy);
                else set_all(dy, 0.f);
                float w[VEC];
                if constexpr (READ_W) unpack(w_word_aligned[item], w);
                else set_all(w, 1.f);
                float x[VEC];
                if constexpr (READ_X) unpack(x_pipeline_t::read(x_pipeline, stage, item, lane), x);
                else set_all(x, 0.f);
                float dx_out[VEC];
#pragma unroll
                for (int i = 0; i < VEC; ++i) {
                    const float rstd_dy = rstd * dy[i];
                    const float value_1 = neg_mean_x_minus_mu + (x[i] - mu);
                    dx_out[i] = neg_mean_w_dy_rstd + w[i] * rstd_dy + row_1 * value_1;
                    if (WANT_DW && live) dw_sum[item * VEC + i] += rstd_dy * value_1;
                    if (WANT_DB && live) db_sum[item * VEC + i] += dy[i];
                }
                if (WANT_DX && live) {
                    const Vector<dx_t, VEC> packed = pack<dx_t>(dx_out);
                    if (item == 0) dx_packed = packed;
                    WordAligned::store(dx_ptr + row_offset<offset_t>(row, dx_stride_rest), packed, item,
                        lane, misalignment);
                }
            }
        }
        if constexpr (WANT_DX) {
            WordAligned::store_ends(dx_ptr + row_offset<offset_t>(row, dx_stride_rest), dx_packed,
                dy_pipeline_t::first_word(dy_pipeline, stage), lane, misalignment, live);
        }
        fill(stage);
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }

    // this block's partial of every column sum: its thread groups are added in order
    float* const gather = reinterpret_cast<float*>(smem);
    if constexpr (WANT_DW) {
        float* const partial = dw_sum_partial + unit * LENGTH;
        if constexpr (TEAMS > 1) __syncthreads();  // the pipeline, or the sum before, may still be in use
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) {
            const int column = Layout::column(item, lane);
            if (Layout::has(item, lane, column)) {
#pragma unroll
                for (int i = 0; i < VEC; ++i) {
                    const int at = WordAligned::column(item, lane, i, misalignment);
                    if (at >= LENGTH) continue;
                    if constexpr (TEAMS == 1) partial[at] = dw_sum[item * VEC + i];
                    else gather[team * LENGTH + at] = dw_sum[item * VEC + i];
                }
            }
        }
        if constexpr (TEAMS > 1) {
            __syncthreads();
            for (int column = threadIdx.x; column < LENGTH; column += THREADS) {
                float sum = 0.f;
                for (int other = 0; other < TEAMS; ++other) {
                    sum += gather[other * LENGTH + column];
                }
                partial[column] = sum;
            }
        }
    }
    if constexpr (WANT_DB) {
        float* const partial = db_sum_partial + unit * LENGTH;
        if constexpr (TEAMS > 1) __syncthreads();  // the pipeline, or the sum before, may still be in use
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) {
            const int column = Layout::column(item, lane);
            if (Layout::has(item, lane, column)) {
#pragma unroll
                for (int i = 0; i < VEC; ++i) {
                    const int at = WordAligned::column(item, lane, i, misalignment);
                    if (at >= LENGTH) continue;
                    if constexpr (TEAMS == 1) partial[at] = db_sum[item * VEC + i];
                    else gather[team * LENGTH + at] = db_sum[item * VEC + i];
                }
            }
        }
        if constexpr (TEAMS > 1) {
            __syncthreads();
            for (int column = threadIdx.x; column < LENGTH; column += THREADS) {
                float sum = 0.f;
                for (int other = 0; other < TEAMS; ++other) {
                    sum += gather[other * LENGTH + column];
                }
                partial[column] = sum;
            }
        }
    }
}

#include "normgen/programmatic.cuh"
#include "normgen/team.cuh"

// A launch sets:
//   THREADS, MIN_BLOCKS, TEAM, VEC, LENGTH, SLOTS, BACKWARDS, STAGED, PROGRAMMATIC, index_t, offset_t,
//   size_D, HAS_DY, HAS_W, dy_t, x_t, w_t, mu_t, rstd_t, dx_t, WANT_DX, WANT_DW, WANT_DB

[[maybe_unused]] constexpr bool READ_X = WANT_DX || WANT_DW;
[[maybe_unused]] constexpr bool READ_W = HAS_W && WANT_DX;
[[maybe_unused]] constexpr bool READ_MU = WANT_DX || WANT_DW;
[[maybe_unused]] constexpr bool READ_RSTD = WANT_DX || WANT_DW;
// gradient dx[..., D]: like x = rstd * (w * dy - rstd^2 * sum[D](w * dy * (x - mu)) * (x - mu) / size[D] -
//     sum[D](w * dy) / size[D])
// gradient dw[D]: like w = sum[...](rstd * dy * (x - mu))
// gradient db[D]: like b = sum[...](dy)
//
// Multi-pass streaming: a block owns a row and passes over it once per dependency level: from memory, or from
// its copy in shared memory (STAGED).
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) layernorm_backward_multipass(
    const dy_t* dy_ptr,
    const x_t* x_ptr,
    const w_t* w_ptr,
    const mu_t* mu_ptr,
    const rstd_t* rstd_ptr,
    dx_t* __restrict__ dx_ptr,
    float* dw_sum_partial,
    float* db_sum_partial,
    index_t dy_stride_rest,
    index_t x_stride_rest,
    index_t mu_stride_rest,
    index_t rstd_stride_rest,
    index_t dx_stride_rest,
    index_t rows,
    int blocks_per_segment) {
    extern __shared__ __align__(128) unsigned char smem[];
    __shared__ Exchange<TEAM, THREADS, 3> exchange;
    int side = 0;
    const int lane = threadIdx.x;
    const index_t block = block_number<BACKWARDS>();
    unsigned char* const dy_pipeline = smem;
    unsigned char* const x_pipeline = smem + HAS_DY * SLOTS * VEC * THREADS * int(sizeof(dy_t));
    programmatic_wait<PROGRAMMATIC>();
    programmatic_launch<PROGRAMMATIC>();
    float* const dw_sum = dw_sum_partial + index_t(blockIdx.x) * LENGTH;
    float* const db_sum = db_sum_partial + index_t(blockIdx.x) * LENGTH;
    for (index_t row = block; row < rows; row += blocks_per_segment) {
        constexpr bool live = true;
        const float mu = READ_MU ? load_scalar(mu_ptr + row_offset<offset_t>(row, mu_stride_rest)) : 0.f;
        const float rstd =
            READ_RSTD ? load_scalar(rstd_ptr + row_offset<offset_t>(row, rstd_stride_rest)) : 0.f;

        // exchange 1: sum[D](w * dy), sum[D](w * dy * minus(x, mu)), sum[D](minus(x, mu))
        float sum_w_dy = 0.f;
        float sum_w_dy_x_minus_mu = 0.f;
        float sum_x_minus_mu = 0.f;
        if constexpr (WANT_DX || WANT_DW) {
#pragma unroll 4
            for (int item = 0, column = lane * VEC; column < LENGTH; ++item, column += TEAM * VEC) {
                Vector<w_t, VEC> w_words;
                if constexpr (READ_W) {
                    w_words = load_vector<VEC>(w_ptr + column);
                }
                float w[VEC];
                if constexpr (READ_W) unpack(w_words, w);
                else set_all(w, 1.f);
                Vector<dy_t, VEC> dy_words;
                if constexpr (HAS_DY) {
                    dy_words = load_vector<VEC>(dy_ptr + row_offset<offset_t>(row, dy_stride_rest) + column);
                    if constexpr (STAGED) {
                        Pipeline<dy_t, VEC, THREADS>::write(dy_pipeline, item, dy_words);
                    }
                }
                float dy[VEC];
                if constexpr (HAS_DY) unpack(dy_words, dy);
                else set_all(dy, 0.f);
                Vector<x_t, VEC> x_words;
                if constexpr (READ_X) {
                    x_words = load_vector<VEC>(x_ptr + row_offset<offset_t>(row, x_stride_rest) + column);
                    if constexpr (STAGED) {
                        Pipeline<x_t, VEC, THREADS>::write(x_pipeline, item, x_words);
                    }
                }
                float x[VEC];
                if constexpr (READ_X) unpack(x_words, x);
                else set_all(x, 0.f);
#pragma unroll
                for (int i = 0; i < VEC; ++i) {
                    const float w_dy = w[i] * dy[i];
                    const float x_minus_mu = x[i] - mu;
                    sum_w_dy += w_dy;
                    sum_w_dy_x_minus_mu += w_dy * x_minus_mu;
                    sum_x_minus_mu += x_minus_mu;
                }
            }
            Team<Sum, Sum, Sum>::reduce(exchange, side, sum_w_dy, sum_w_dy_x_minus_mu, sum_x_minus_mu);
        }
        const float neg_mean_w_dy_rstd = -sum_w_dy * (1.f / float(size_D)) * rstd;
        const float row_1 = (sum_w_dy * if_finite(sum_x_minus_mu) * (1.f / float(size_D))
            - sum_w_dy_x_minus_mu) * (1.f / float(size_D)) * rstd * rstd * rstd;
        const float neg_mean_x_minus_mu = -if_finite(sum_x_minus_mu) * (1.f / float(size_D));

        // results
        const bool first = row == block;
#pragma unroll 4
        for (int item = 0, column = lane * VEC; column < LENGTH; ++item, column += TEAM * VEC) {
            Vector<dy_t, VEC> dy_words;
            if constexpr (HAS_DY) {
                if constexpr (STAGED && (WANT_DX || WANT_DW)) {
                    dy_words = Pipeline<dy_t, VEC, THREADS>::read(dy_pipeline, item);
                } else {
                    dy_words = load_vector<VEC>(dy_ptr + row_offset<offset_t>(row, dy_stride_rest) + column);
                    if constexpr (STAGED) {
                        Pipeline<dy_t, VEC, THREADS>::write(dy_pipeline, item, dy_words);
                    }
                }
            }
            float dy[VEC];
            if constexpr (HAS_DY) unpack(dy_words, dy);
            else set_all(dy, 0.f);
            Vector<w_t, VEC> w_words;
            if constexpr (READ_W) {
                w_words = load_vector<VEC>(w_ptr + column);
            }
            float w[VEC];
            if constexpr (READ_W) unpack(w_words, w);
            else set_all(w, 1.f);
            Vector<x_t, VEC> x_words;
            if constexpr (READ_X) {
                if constexpr (STAGED && (WANT_DX || WANT_DW)) {
                    x_words = Pipeline<x_t, VEC, THREADS>::read(x_pipeline, item);
                } else {
                    x_words = load_vector<VEC>(x_ptr + row_offset<offset_t>(row, x_stride_rest) + column);
                    if constexpr (STAGED) {
                        Pipeline<x_t, VEC, THREADS>::write(x_pipeline, item, x_words);
                    }
                }
            }
            float x[VEC];
            if constexpr (READ_X) unpack(x_words, x);
            else set_all(x, 0.f);
            float dx_out[VEC];
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                const float rstd_dy = rstd * dy[i];
                const float value_1 = neg_mean_x_minus_mu + (x[i] - mu);
                dx_out[i] = neg_mean_w_dy_rstd + w[i] * rstd_dy + row_1 * value_1;
                if (WANT_DW && live)
                    dw_sum[column + i] = first ? rstd_dy * value_1 : dw_sum[column + i] + rstd_dy * value_1;
                if (WANT_DB && live) db_sum[column + i] = first ? dy[i] : db_sum[column + i] + dy[i];
            }
            if (WANT_DX && live) {
                store_vector(dx_ptr + row_offset<offset_t>(row, dx_stride_rest) + column, pack<dx_t>(dx_out));
            }
        }
    }
}

#include "normgen/programmatic.cuh"
#include "normgen/second_stage.cuh"

// A launch sets:
//   THREADS, LENGTH, TILE, SHARES, ACCUMULATE, PROGRAMMATIC, index_t, WANT_DW, WANT_DB, dw_t, db_t

// gradient dw[D]: like w = sum[...](rstd * dy * (x - mu))
// gradient db[D]: like b = sum[...](dy)
//
// Adds the partials that the blocks of the row kernel left, TILE columns in SHARES warps. blockIdx.y is the
// result.
extern "C" __global__ void __launch_bounds__(THREADS) layernorm_backward_second_stage(
    dw_t* __restrict__ dw_ptr,
    db_t* __restrict__ db_ptr,
    float* dw_sum_partial,
    float* db_sum_partial,
    int blocks_per_segment) {
    __shared__ float scratch[THREADS / 32][TILE];
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const index_t tile = index_t(blockIdx.x) * (THREADS / 32 / SHARES) + warp / SHARES;
    programmatic_wait<PROGRAMMATIC>();

    // dw
    if (blockIdx.y == 0) {
        if constexpr (WANT_DW) {
            constexpr int WIDTH = LENGTH;
            constexpr int TILES = (WIDTH + TILE - 1) / TILE;
            const index_t outer = tile / TILES;
            // nothing beyond the last
            const int column = (outer < 1 ? int(tile % TILES) * TILE : WIDTH) + lane % TILE;
            const auto row_of = [&](index_t k) -> index_t {
                return k;
            };
            const float dw_sum = add_partials<TILE, SHARES, WIDTH>(scratch, dw_sum_partial, column,
                index_t(blocks_per_segment), row_of);
            if (warp % SHARES == 0 && lane < TILE && column < WIDTH) {
                store_scalar<ACCUMULATE>(dw_ptr + column, dw_sum);
            }
        }
    }

    // db
    if (blockIdx.y == 1) {
        if constexpr (WANT_DB) {
            constexpr int WIDTH = LENGTH;
            constexpr int TILES = (WIDTH + TILE - 1) / TILE;
            const index_t outer = tile / TILES;
            // nothing beyond the last
            const int column = (outer < 1 ? int(tile % TILES) * TILE : WIDTH) + lane % TILE;
            const auto row_of = [&](index_t k) -> index_t {
                return k;
            };
            const float db_sum = add_partials<TILE, SHARES, WIDTH>(scratch, db_sum_partial, column,
                index_t(blocks_per_segment), row_of);
            if (warp % SHARES == 0 && lane < TILE && column < WIDTH) {
                store_scalar<ACCUMULATE>(db_ptr + column, db_sum);
            }
        }
    }
    programmatic_launch<PROGRAMMATIC>();
}
