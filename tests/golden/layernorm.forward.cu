#include "normgen/l2_hints.cuh"
#include "normgen/programmatic.cuh"
#include "normgen/realigned.cuh"
#include "normgen/statistics.cuh"

// A launch sets:
//   THREADS, MIN_BLOCKS, CLUSTER_DIMS, TEAM, TEAMS, VEC, ITEMS, LENGTH, UNTAGGED, REALIGNED, BACKWARDS, LATE,
//   PROGRAMMATIC, index_t, offset_t, size_D, x_t, w_t, b_t, mu_t, rstd_t, y_t, HAS_W, HAS_B, WANT_MU,
//   WANT_RSTD, WANT_Y

[[maybe_unused]] constexpr bool READ_W = HAS_W && WANT_Y;
[[maybe_unused]] constexpr bool READ_B = HAS_B && WANT_Y;
// save mu[...]: f32 = sum[D](x) / size[D]
// save rstd[...]: f32 = rsqrt(sum[D]((x - mu)^2) / size[D] + eps)
// output y[..., D]: like x = w * (x - mu) * rstd + b
//
// One-shot kernel: a thread group (TEAM threads) owns a row and holds it in registers, packed; the grid
// covers all rows at once.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) CLUSTER_DIMS layernorm_forward_registers(
    const x_t* x_ptr,
    const w_t* w_ptr,
    const b_t* b_ptr,
    mu_t* __restrict__ mu_ptr,
    rstd_t* __restrict__ rstd_ptr,
    y_t* __restrict__ y_ptr,
    index_t x_stride_rest,
    index_t mu_stride_rest,
    index_t rstd_stride_rest,
    index_t y_stride_rest,
    float eps,
    index_t rows) {
    __shared__ Exchange<TEAM, THREADS, 3> exchange;
    int side = 0;
    using Layout = RowLayout<TEAM, THREADS, VEC, ITEMS, LENGTH, REALIGNED>;
    const int lane = lane_of_team<TEAM, THREADS>();
    [[maybe_unused]] index_t row = team_of_thread<TEAM, THREADS, BACKWARDS, index_t>();
    const bool live = TEAMS == 1 || row < rows;
    // thread groups beyond the last row read its scalars, but none of its elements, which an in-place result
    // may be overwriting, and store nothing
    if (!live) row = rows - 1;
    open_exchange(exchange);
    programmatic_wait<PROGRAMMATIC>();
    static_assert(UNTAGGED == 0 || !BACKWARDS, "earlier blocks have earlier rows");
    const L2Hints<UNTAGGED, TEAM, THREADS> hints;

    // what this thread reads of its row
    Vector<x_t, VEC, REALIGNED> x_words[ITEMS];
    Vector<w_t, VEC> w_words[ITEMS];
    Vector<b_t, VEC> b_words[ITEMS];
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int column = Layout::column(item, lane);
        if (Layout::has(item, lane, column)) {
            if (live)
                x_words[item] =
                    Layout::load_vector(x_ptr + row_offset<offset_t>(row, x_stride_rest), item, lane, hints);
        }
    }
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int column = Layout::column(item, lane);
        if (Layout::has(item, lane, column)) {
            if constexpr (READ_W && !LATE) w_words[item] = Layout::load_aligned(w_ptr, item, lane);
        }
    }
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int column = Layout::column(item, lane);
        if (Layout::has(item, lane, column)) {
            if constexpr (READ_B && !LATE) b_words[item] = Layout::load_aligned(b_ptr, item, lane);
        }
    }
    if (live) Layout::load_ends(x_words, x_ptr + row_offset<offset_t>(row, x_stride_rest), lane);
    Layout::cut_out(x_words, x_ptr + row_offset<offset_t>(row, x_stride_rest));
    if (hints.last) {  // what earlier blocks read may leave the cache again
        const index_t earlier = row - index_t(UNTAGGED) * TEAMS;
        hints.demote<LENGTH>(x_ptr + row_offset<offset_t>(earlier, x_stride_rest), lane);
    }
    join_exchange<TEAM, THREADS>();

    // exchange 1: sum[D](x), sum[D](minus(x, mu)^2), sum[D](minus(x, mu))
    const auto each = [&](auto visit) {
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) {
            const int column = Layout::column(item, lane);
            if (Layout::has(item, lane, column)) {
                float x[VEC];
                unpack(x_words[item], x);
#pragma unroll
                for (int i = 0; i < VEC; ++i) {
                    if (Layout::beyond(item, column + i)) continue;
                    visit(x[i]);
                }
            }
        }
    };
    const Moments moments = team_moments<Layout>(exchange, side, each);
    const float mu = moments.mean;  // layernorm.norm:9
    const float sum_x_minus_mu = moments.centred;
    const float sum_x_minus_mu_squared = moments.squares;
    const float row_1 = eps
        + maximum(sum_x_minus_mu_squared - square(sum_x_minus_mu) * (1.f / float(size_D)), 0.f)
        * (1.f / float(size_D));
    const float rstd = rsqrtf(row_1);  // layernorm.norm:10
    const float neg_mean_x_minus_mu_rstd = -sum_x_minus_mu * (1.f / float(size_D)) * rstd;

    // in-place results: a thread's words hold elements of its neighbour
    if constexpr (REALIGNED && TEAM <= 32) __syncwarp();
    // results
    Vector<y_t, VEC> y_packed[REALIGNED ? ITEMS : 1];
    // no load may pass a store: what rows share is loaded for some vectors together
    constexpr int TOGETHER = LATE
        ? vectors_together<THREADS, MIN_BLOCKS, VEC, ITEMS>(ITEMS * (int(sizeof(x_t))),
        READ_B * int(sizeof(b_t)) + READ_W * int(sizeof(w_t))) : ITEMS;
#pragma unroll
    for (int first = 0; first < ITEMS; first += TOGETHER) {
        const int end = first + TOGETHER < ITEMS ? first + TOGETHER : ITEMS;
#pragma unroll
        for (int item = first; item < end; ++item) {
            const int column = Layout::column(item, lane);
            if (Layout::has(item, lane, column)) {
                if constexpr (LATE && READ_B) b_words[item] = Layout::load_aligned(b_ptr, item, lane);
                if constexpr (LATE && READ_W) w_words[item] = Layout::load_aligned(w_ptr, item, lane);
            }
        }
#pragma unroll
        for (int item = first; item < end; ++item) {
            const int column = Layout::column(item, lane);
            if (Layout::has(item, lane, column)) {
                float b[VEC];
                if constexpr (READ_B) unpack(b_words[item], b);
                else set_all(b, 0.f);
                float w[VEC];
                if constexpr (READ_W) unpack(w_words[item], w);
                else set_all(w, 1.f);
                float x[VEC];
                keep_packed(x_words[item]);
                unpack(x_words[item], x);
                float y_out[VEC];
#pragma unroll
                for (int i = 0; i < VEC; ++i) {
                    // layernorm.norm:11
                    y_out[i] = b[i] + w[i] * (neg_mean_x_minus_mu_rstd + rstd * (x[i] - mu));
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
    }
    if constexpr (WANT_Y && REALIGNED) {
        Layout::store(y_ptr + row_offset<offset_t>(row, y_stride_rest), y_packed, lane, live);
    }
    if (WANT_MU && live && lane == 0) {
        store_scalar<false>(mu_ptr + row_offset<offset_t>(row, mu_stride_rest), mu);
    }
    if (WANT_RSTD && live && lane == 0) {
        store_scalar<false>(rstd_ptr + row_offset<offset_t>(row, rstd_stride_rest), rstd);
    }
    programmatic_launch<PROGRAMMATIC>();
}

#include "normgen/programmatic.cuh"
#include "normgen/row_pipeline.cuh"
#include "normgen/rows/cluster_l2_hints.cuh"
#include "normgen/statistics.cuh"

// A launch sets:
//   THREADS, MIN_BLOCKS, CLUSTER_DIMS, TEAM, TEAMS, VEC, ITEMS, LENGTH, STAGES, UNTAGGED, REALIGNED, RELOAD,
//   LATE, BULK, PROGRAMMATIC, index_t, offset_t, size_D, x_t, w_t, b_t, mu_t, rstd_t, y_t, HAS_W, HAS_B,
//   WANT_MU, WANT_RSTD, WANT_Y

[[maybe_unused]] constexpr bool READ_W = HAS_W && WANT_Y;
[[maybe_unused]] constexpr bool READ_B = HAS_B && WANT_Y;
// save mu[...]: f32 = sum[D](x) / size[D]
// save rstd[...]: f32 = rsqrt(sum[D]((x - mu)^2) / size[D] + eps)
// output y[..., D]: like x = w * (x - mu) * rstd + b
//
// Persistent blocks walk the rows, strided by the grid, so that all of them read one moving window of memory.
// Later rows are copied into a multistage pipeline in shared memory.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) CLUSTER_DIMS layernorm_forward_pipeline(
    const x_t* x_ptr,
    const w_t* w_ptr,
    const b_t* b_ptr,
    mu_t* __restrict__ mu_ptr,
    rstd_t* __restrict__ rstd_ptr,
    y_t* __restrict__ y_ptr,
    index_t x_stride_rest,
    index_t mu_stride_rest,
    index_t rstd_stride_rest,
    index_t y_stride_rest,
    float eps,
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
    using x_pipeline_t = RowPipeline<x_t, VEC, TEAM, THREADS, ITEMS, LENGTH, BULK, REALIGNED>;
    unsigned char* const x_pipeline = smem;
    index_t ahead = unit * TEAMS;
    const ClusterL2Hints<UNTAGGED> hints;
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
            expect_bytes(&landed[stage], slice * (int(sizeof(x_t))));
            hints.copy(x_pipeline + stage * ITEMS * VEC * THREADS * int(sizeof(x_t)),
                x_ptr + row_offset<offset_t>(row, x_stride_rest) + start, slice * int(sizeof(x_t)),
                &landed[stage], row, rows);
            return bulk_commit();
        }
        if constexpr (REALIGNED) __syncwarp();  // the slot may still be read
        if (first + team < rows) {
            const index_t row = first + team;
            x_pipeline_t::fill(x_pipeline, stage, x_ptr + row_offset<offset_t>(row, x_stride_rest), lane,
                row + 1 == rows);
        } else if (TEAMS > 1 && first < rows) {
            x_pipeline_t::clear(x_pipeline, stage);
        }
        async_commit();
    };
    open_exchange(exchange);
    programmatic_wait<PROGRAMMATIC>();
    programmatic_launch<PROGRAMMATIC>();
#pragma unroll
    for (int stage = 0; stage < STAGES; ++stage) fill(stage);
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
    Vector<b_t, VEC> b_words[ITEMS];
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int column = Layout::column(item, lane);
        if (Layout::has(item, lane, column)) {
            if constexpr (READ_B && !LATE) b_words[item] = Layout::load_aligned(b_ptr, item, lane);
        }
    }

    for (index_t first = unit * TEAMS; first < rows; first += step) {
        const bool live = TEAMS == 1 || first + team < rows;
        [[maybe_unused]] const index_t row = live ? first + team : rows - 1;

        if constexpr (!BULK) async_wait<STAGES - 1>();
        else if (slice > 0) bulk_wait<STAGES - 1>(&landed[stage], parity);
        if constexpr (REALIGNED) __syncwarp();  // lanes read what others copied
        Vector<x_t, VEC, REALIGNED> x_words[ITEMS];
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) {
            const int column = Layout::column(item, lane);
            if (Layout::has(item, lane, column)) {
                if constexpr (!RELOAD) x_words[item] = x_pipeline_t::read(x_pipeline, stage, item, lane);
            }
        }
        if constexpr (!RELOAD) Layout::cut_out(x_words, x_ptr + row_offset<offset_t>(row, x_stride_rest));
        if constexpr (!RELOAD && !BULK) fill(stage);

        // exchange 1: sum[D](x), sum[D](minus(x, mu)^2), sum[D](minus(x, mu))
        const auto each = [&](auto visit) {
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
                        visit(x[i]);
                    }
                }
            }
        };
        const Moments moments = team_moments<Layout>(exchange, side, each);
        const float mu = moments.mean;  // layernorm.norm:9
        const float sum_x_minus_mu = moments.centred;
        const float sum_x_minus_mu_squared = moments.squares;
        const float row_1 = eps
            + maximum(sum_x_minus_mu_squared - square(sum_x_minus_mu) * (1.f / float(size_D)), 0.f)
            * (1.f / float(size_D));
        const float rstd = rsqrtf(row_1);  // layernorm.norm:10
        const float neg_mean_x_minus_mu_rstd = -sum_x_minus_mu * (1.f / float(size_D)) * rstd;
        if constexpr (!RELOAD && BULK) {  // every warp has read its part of the row before it contributed
            fill(stage);
        }

        // results
        Vector<y_t, VEC> y_packed[REALIGNED ? ITEMS : 1];
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) {
            const int column = Layout::column(item, lane);
            if (Layout::has(item, lane, column)) {
                float b[VEC];
                if constexpr (LATE && READ_B) b_words[item] = Layout::load_aligned(b_ptr, item, lane);
                if constexpr (READ_B) unpack(b_words[item], b);
                else set_all(b, 0.f);
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
                    // layernorm.norm:11
                    y_out[i] = b[i] + w[i] * (neg_mean_x_minus_mu_rstd + rstd * (x[i] - mu));
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
        if (WANT_MU && live && lane == 0) {
            store_scalar<false>(mu_ptr + row_offset<offset_t>(row, mu_stride_rest), mu);
        }
        if (WANT_RSTD && live && lane == 0) {
            store_scalar<false>(rstd_ptr + row_offset<offset_t>(row, rstd_stride_rest), rstd);
        }
        if constexpr (RELOAD) {
            if constexpr (BULK) __syncthreads();  // every warp has read what it has of the row
            fill(stage);
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        if (stage == 0) parity ^= 1;
    }

    if constexpr (UNTAGGED > 0) {  // what was tagged last may leave the cache like anything else
        for (index_t row = hints.first(unit, step, rows); row < rows - UNTAGGED; row += step) {
            hints.demote<THREADS>(x_ptr + row_offset<offset_t>(row, x_stride_rest) + start, slice);
        }
    }
}

#include "normgen/programmatic.cuh"
#include "normgen/rows/row_tile.cuh"
#include "normgen/statistics.cuh"

// A launch sets:
//   THREADS, MIN_BLOCKS, TEAM, TEAMS, VEC, ITEMS, LENGTH, BACKWARDS, LATE, PROGRAMMATIC, index_t, offset_t,
//   size_D, x_t, w_t, b_t, mu_t, rstd_t, y_t, HAS_W, HAS_B, WANT_MU, WANT_RSTD, WANT_Y

[[maybe_unused]] constexpr bool READ_W = HAS_W && WANT_Y;
[[maybe_unused]] constexpr bool READ_B = HAS_B && WANT_Y;
// save mu[...]: f32 = sum[D](x) / size[D]
// save rstd[...]: f32 = rsqrt(sum[D]((x - mu)^2) / size[D] + eps)
// output y[..., D]: like x = w * (x - mu) * rstd + b
//
// Short misaligned rows that lie side by side. A block moves TEAMS of them by aligned words between memory
// and shared memory, where a thread group reads its row into registers and leaves its results; the grid
// covers all rows at once.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) layernorm_forward_row_tile(
    const x_t* x_ptr,
    const w_t* w_ptr,
    const b_t* b_ptr,
    mu_t* __restrict__ mu_ptr,
    rstd_t* __restrict__ rstd_ptr,
    y_t* __restrict__ y_ptr,
    index_t x_stride_rest,
    index_t mu_stride_rest,
    index_t rstd_stride_rest,
    index_t y_stride_rest,
    float eps,
    index_t rows) {
    extern __shared__ __align__(128) unsigned char smem[];
    __shared__ Exchange<TEAM, THREADS, 3> exchange;
    int side = 0;
    using Layout = RowLayout<TEAM, THREADS, VEC, ITEMS, LENGTH, false>;
    using Rows = RowTile<TEAM, THREADS, TEAMS, LENGTH>;
    const int lane = lane_of_team<TEAM, THREADS>();
    const int team = Rows::row_of_team();
    const index_t first = index_t(block_number<BACKWARDS>()) * TEAMS;
    const int elements = (rows - first < TEAMS ? int(rows - first) : TEAMS) * LENGTH;
    // thread groups beyond the last row read its scalars, but none of its elements, and what they leave in
    // shared memory is not copied
    const bool live = first + team < rows;
    [[maybe_unused]] const index_t row = live ? first + team : rows - 1;
    x_t* const x_row_tile = Rows::at<x_t>(smem, 0);
    y_t* const y_row_tile = Rows::at<y_t>(smem, 0);
    programmatic_wait<PROGRAMMATIC>();
    {
        const index_t row = first;
        Rows::fill(x_row_tile, x_ptr + row_offset<offset_t>(row, x_stride_rest), elements);
    }
    async_commit();

    // what this thread reads beside the staged rows
    Vector<x_t, VEC> x_words[ITEMS];
    Vector<w_t, VEC> w_words[ITEMS];
    Vector<b_t, VEC> b_words[ITEMS];
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int column = Layout::column(item, lane);
        if (Layout::has(item, lane, column)) {
            if constexpr (READ_W && !LATE) w_words[item] = Layout::load_aligned(w_ptr, item, lane);
        }
    }
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int column = Layout::column(item, lane);
        if (Layout::has(item, lane, column)) {
            if constexpr (READ_B && !LATE) b_words[item] = Layout::load_aligned(b_ptr, item, lane);
        }
    }

    async_wait<0>();
    __syncthreads();  // lanes read what others copied
    if (live) {
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) {
            const int column = Layout::column(item, lane);
            if (Layout::has(item, lane, column)) {
                x_words[item] = Rows::read<VEC>(x_row_tile + team * LENGTH + column);
            }
        }
    }

    // exchange 1: sum[D](x), sum[D](minus(x, mu)^2), sum[D](minus(x, mu))
    const auto each = [&](auto visit) {
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) {
            const int column = Layout::column(item, lane);
            if (Layout::has(item, lane, column)) {
                float x[VEC];
                unpack(x_words[item], x);
#pragma unroll
                for (int i = 0; i < VEC; ++i) {
                    if (Layout::beyond(item, column + i)) continue;
                    visit(x[i]);
                }
            }
        }
    };
    const Moments moments = team_moments<Layout>(exchange, side, each);
    const float mu = moments.mean;  // layernorm.norm:9
    const float sum_x_minus_mu = moments.centred;
    const float sum_x_minus_mu_squared = moments.squares;
    const float row_1 = eps
        + maximum(sum_x_minus_mu_squared - square(sum_x_minus_mu) * (1.f / float(size_D)), 0.f)
        * (1.f / float(size_D));
    const float rstd = rsqrtf(row_1);  // layernorm.norm:10
    const float neg_mean_x_minus_mu_rstd = -sum_x_minus_mu * (1.f / float(size_D)) * rstd;

    // results
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int column = Layout::column(item, lane);
        if (Layout::has(item, lane, column)) {
            float b[VEC];
            if constexpr (LATE && READ_B) b_words[item] = Layout::load_aligned(b_ptr, item, lane);
            if constexpr (READ_B) unpack(b_words[item], b);
            else set_all(b, 0.f);
            float w[VEC];
            if constexpr (LATE && READ_W) w_words[item] = Layout::load_aligned(w_ptr, item, lane);
            if constexpr (READ_W) unpack(w_words[item], w);
            else set_all(w, 1.f);
            float x[VEC];
            keep_packed(x_words[item]);
            unpack(x_words[item], x);
            float y_out[VEC];
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                // layernorm.norm:11
                y_out[i] = b[i] + w[i] * (neg_mean_x_minus_mu_rstd + rstd * (x[i] - mu));
            }
            if constexpr (WANT_Y) {
                Rows::write(y_row_tile + team * LENGTH + column, pack<y_t>(y_out));
            }
        }
    }
    if (WANT_MU && live && lane == 0) {
        store_scalar<false>(mu_ptr + row_offset<offset_t>(row, mu_stride_rest), mu);
    }
    if (WANT_RSTD && live && lane == 0) {
        store_scalar<false>(rstd_ptr + row_offset<offset_t>(row, rstd_stride_rest), rstd);
    }

    __syncthreads();  // what lanes left is stored by others
    {
        const index_t row = first;
        if constexpr (WANT_Y)
            Rows::empty(y_ptr + row_offset<offset_t>(row, y_stride_rest), y_row_tile, elements);
    }
    programmatic_launch<PROGRAMMATIC>();
}

#include "normgen/cooperative.cuh"
#include "normgen/programmatic.cuh"
#include "normgen/realigned.cuh"

// A launch sets:
//   THREADS, MIN_BLOCKS, TEAM, MEMBERS, VEC, ITEMS, LENGTH, SLOTS, REALIGNED, BACKWARDS, PROGRAMMATIC,
//   index_t, offset_t, size_D, x_t, w_t, b_t, mu_t, rstd_t, y_t, HAS_W, HAS_B, WANT_MU, WANT_RSTD, WANT_Y

[[maybe_unused]] constexpr bool READ_W = HAS_W && WANT_Y;
[[maybe_unused]] constexpr bool READ_B = HAS_B && WANT_Y;
// save mu[...]: f32 = sum[D](x) / size[D]
// save rstd[...]: f32 = rsqrt(sum[D]((x - mu)^2) / size[D] + eps)
// output y[..., D]: like x = w * (x - mu) * rstd + b
//
// Rows split over MEMBERS blocks, each with a slice in registers and shared memory, which exchange through
// memory; the grid covers all rows at once. A block has more than one side only where others, which it would
// wait for, do not run.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) layernorm_forward_cooperative(
    const x_t* x_ptr,
    const w_t* w_ptr,
    const b_t* b_ptr,
    mu_t* __restrict__ mu_ptr,
    rstd_t* __restrict__ rstd_ptr,
    y_t* __restrict__ y_ptr,
    index_t x_stride_rest,
    index_t mu_stride_rest,
    index_t rstd_stride_rest,
    index_t y_stride_rest,
    float eps,
    index_t rows,
    word_t* words,
    float* published) {
    extern __shared__ __align__(128) unsigned char smem[];
    __shared__ CooperativeScratch<THREADS, 3> scratch;
    using Layout = RowLayout<TEAM, THREADS, VEC, ITEMS, LENGTH, REALIGNED>;
    const index_t row = index_t(block_number<BACKWARDS>()) / MEMBERS;
    const int home = int(block_number<BACKWARDS>() % MEMBERS);
    CooperativeRow<MEMBERS, THREADS, 3> exchange(scratch, words, published, row, home);
    int side = 0;
    constexpr bool LATE = true;  // what rows share is loaded when it is used
    constexpr int TURN = 8;  // moments in one pass: what lies in shared memory is read once less
    constexpr int HELD = ITEMS - SLOTS;  // of a thread's vectors, in registers; the others in shared memory
    using x_pipeline_t = Pipeline<x_t, VEC, THREADS>;
    unsigned char* const x_pipeline = smem;
    programmatic_wait<PROGRAMMATIC>();

    do {
        const int lane = exchange.lane();
        const bool live = exchange.slice == home;  // another block's slice is added up, nothing more
        exchange.begin();

        // what this thread reads of the slice
        Vector<x_t, VEC> x_words[ITEMS];
        Vector<w_t, VEC> w_words[ITEMS];
        Vector<b_t, VEC> b_words[ITEMS];
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) {
            const int column = Layout::column(item, lane);
            if (Layout::has(item, lane, column)) {
                if (item < HELD)
                    x_words[item] =
                        Layout::load_vector(x_ptr + row_offset<offset_t>(row, x_stride_rest), item, lane);
                else {
                    x_pipeline_t::fill(x_pipeline, item - HELD,
                        x_ptr + row_offset<offset_t>(row, x_stride_rest) + column);
                }
            }
        }
        async_commit();
        async_wait<0>();

        // exchange 1: sum[D](x), sum[D](minus(x, mu)^2), sum[D](minus(x, mu))
        const auto each = [&](auto visit) {
#pragma unroll
            for (int item = 0; item < ITEMS; ++item) {
                const int column = Layout::column(item, lane);
                if (Layout::has(item, lane, column)) {
                    float x[VEC];
                    if (item >= HELD) {
                        x_words[item] = x_pipeline_t::read(x_pipeline, item - HELD);
                    }
                    unpack(x_words[item], x);
#pragma unroll
                    for (int i = 0; i < VEC; ++i) {
                        if (Layout::beyond(item, column + i)) continue;
                        visit(x[i], item * VEC + i);
                    }
                }
            }
        };
        const Moments moments = team_moments<Layout, TURN>(exchange, side, each);
        const float mu = moments.mean;  // layernorm.norm:9
        const float sum_x_minus_mu = moments.centred;
        const float sum_x_minus_mu_squared = moments.squares;
        const float row_1 = eps
            + maximum(sum_x_minus_mu_squared - square(sum_x_minus_mu) * (1.f / float(size_D)), 0.f)
            * (1.f / float(size_D));
        const float rstd = rsqrtf(row_1);  // layernorm.norm:10
        const float neg_mean_x_minus_mu_rstd = -sum_x_minus_mu * (1.f / float(size_D)) * rstd;
        if (exchange.away) continue;
        exchange.clear(exchange.depart());

        // the places of many vectors are computed again: kept, they would take as many registers as the
        // vectors
        const int again = ITEMS >= 16 ? forgotten(lane) : lane;
        {
            const int lane = again;
            // results
            Vector<y_t, VEC> y_packed[REALIGNED ? ITEMS : 1];
            // no load may pass a store: what rows share is loaded for some vectors together
            constexpr int TOGETHER = LATE
                ? vectors_together<THREADS, MIN_BLOCKS, VEC, ITEMS>(HELD * (int(sizeof(x_t))),
                READ_B * int(sizeof(b_t)) + READ_W * int(sizeof(w_t))) : ITEMS;
#pragma unroll
            for (int first = 0; first < ITEMS; first += TOGETHER) {
                const int end = first + TOGETHER < ITEMS ? first + TOGETHER : ITEMS;
#pragma unroll
                for (int item = first; item < end; ++item) {
                    const int column = Layout::column(item, lane);
                    if (Layout::has(item, lane, column)) {
                        if constexpr (LATE && READ_B) b_words[item] = Layout::load_aligned(b_ptr, item, lane);
                        if constexpr (LATE && READ_W) w_words[item] = Layout::load_aligned(w_ptr, item, lane);
                    }
                }
#pragma unroll
                for (int item = first; item < end; ++item) {
                    const int column = Layout::column(item, lane);
                    if (Layout::has(item, lane, column)) {
                        float b[VEC];
                        if constexpr (READ_B) unpack(b_words[item], b);
                        else set_all(b, 0.f);
                        float w[VEC];
                        if constexpr (READ_W) unpack(w_words[item], w);
                        else set_all(w, 1.f);
                        float x[VEC];
                        if (item >= HELD) {
                            x_words[item] = x_pipeline_t::read(x_pipeline, item - HELD);
                        }
                        keep_packed(x_words[item]);
                        unpack(x_words[item], x);
                        float y_out[VEC];
#pragma unroll
                        for (int i = 0; i < VEC; ++i) {
                            // layernorm.norm:11
                            y_out[i] = b[i] + w[i] * (neg_mean_x_minus_mu_rstd + rstd * (x[i] - mu));
                        }
                        if (WANT_Y && live) {
                            const Vector<y_t, VEC> packed = pack<y_t>(y_out);
                            if constexpr (REALIGNED) y_packed[item] = packed;
                            else
                                Layout::store_vector(
                                    y_ptr + row_offset<offset_t>(row, y_stride_rest) + column, packed);
                        }
                    }
                }
            }
            if constexpr (WANT_Y && REALIGNED) {
                Layout::store(y_ptr + row_offset<offset_t>(row, y_stride_rest), y_packed, lane, live);
            }
            if (WANT_MU && live && lane == 0) {
                store_scalar<false>(mu_ptr + row_offset<offset_t>(row, mu_stride_rest), mu);
            }
            if (WANT_RSTD && live && lane == 0) {
                store_scalar<false>(rstd_ptr + row_offset<offset_t>(row, rstd_stride_rest), rstd);
            }
        }
    } while (exchange.away);
    programmatic_launch<PROGRAMMATIC>();
}

#include "normgen/programmatic.cuh"
#include "normgen/row_pipeline.cuh"
#include "normgen/rows/cluster_l2_hints.cuh"
#include "normgen/statistics.cuh"

// A launch sets:
//   THREADS, MIN_BLOCKS, CLUSTER_DIMS, TEAM, VEC, ITEMS, LENGTH, STAGES, UNTAGGED, REALIGNED, RELOAD, LATE,
//   BULK, PROGRAMMATIC, index_t, offset_t, size_D, x_t, w_t, b_t, mu_t, rstd_t, y_t, HAS_W, HAS_B, WANT_MU,
//   WANT_RSTD, WANT_Y

[[maybe_unused]] constexpr bool READ_W = HAS_W && WANT_Y;
[[maybe_unused]] constexpr bool READ_B = HAS_B && WANT_Y;
// save mu[...]: f32 = sum[D](x) / size[D]
// save rstd[...]: f32 = rsqrt(sum[D]((x - mu)^2) / size[D] + eps)
// output y[..., D]: like x = w * (x - mu) * rstd + b
//
// Software-pipelined cluster exchange: persistent clusters walk the rows, which bulk copies bring into a
// multistage pipeline in shared memory and which are read there twice. The exchange of a row overlaps the
// results of the row before it.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) CLUSTER_DIMS layernorm_forward_overlapped(
    const x_t* x_ptr,
    const w_t* w_ptr,
    const b_t* b_ptr,
    mu_t* __restrict__ mu_ptr,
    rstd_t* __restrict__ rstd_ptr,
    y_t* __restrict__ y_ptr,
    index_t x_stride_rest,
    index_t mu_stride_rest,
    index_t rstd_stride_rest,
    index_t y_stride_rest,
    float eps,
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
    Vector<b_t, VEC> b_words[ITEMS];
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int column = Layout::column(item, lane);
        if (Layout::has(item, lane, column)) {
            if constexpr (READ_B && !LATE) b_words[item] = Layout::load_aligned(b_ptr, item, lane);
        }
    }

    int arriving = 0, leaving = 0, parity = 0;
    for (index_t coming = unit, last = rows; coming < rows || last < rows; last = coming, coming += step) {
        if (coming < rows) {  // what is exchanged of it
            const index_t row = coming;
            const int stage = arriving;
            Vector<x_t, VEC> x_words[ITEMS];
            if (slice > 0) bulk_wait<STAGES - 4>(&landed[stage], parity);

            // exchange 1: sum[D](x), sum[D](minus(x, mu)^2), sum[D](minus(x, mu))
            const auto each = [&](auto visit) {
#pragma unroll
                for (int item = 0; item < ITEMS; ++item) {
                    const int column = Layout::column(item, lane);
                    if (Layout::has(item, lane, column)) {
                        float x[VEC];
                        if constexpr (RELOAD)
                            x_words[item] = x_pipeline_t::read(x_pipeline, stage, item, lane);
                        if constexpr (RELOAD)
                            Layout::cut_out(x_words[item], x_ptr + row_offset<offset_t>(row, x_stride_rest));
                        unpack(x_words[item], x);
#pragma unroll
                        for (int i = 0; i < VEC; ++i) {
                            if (Layout::beyond(item, column + i)) continue;
                            visit(x[i]);
                        }
                    }
                }
            };
            give_moments<Layout>(exchange, given, each);
            given = (given + 1) % 8;
            arriving = arriving + 1 == STAGES ? 0 : arriving + 1;
            if (arriving == 0) parity ^= 1;
        }
        if (last < rows) {  // what depends on that
            const index_t row = last;
            const int stage = leaving;
            Vector<x_t, VEC> x_words[ITEMS];

            const Moments moments = merge_warps<Layout>(exchange, side);
            const float mu = moments.mean;  // layernorm.norm:9
            const float sum_x_minus_mu = moments.centred;
            const float sum_x_minus_mu_squared = moments.squares;
            const float row_1 = eps
                + maximum(sum_x_minus_mu_squared - square(sum_x_minus_mu) * (1.f / float(size_D)), 0.f)
                * (1.f / float(size_D));
            const float rstd = rsqrtf(row_1);  // layernorm.norm:10
            const float neg_mean_x_minus_mu_rstd = -sum_x_minus_mu * (1.f / float(size_D)) * rstd;
            fill();  // into the stage of the row before: all warps have read it before they contributed
            // results
            Vector<y_t, VEC> y_packed[REALIGNED ? ITEMS : 1];
#pragma unroll
            for (int item = 0; item < ITEMS; ++item) {
                const int column = Layout::column(item, lane);
                if (Layout::has(item, lane, column)) {
                    float b[VEC];
                    if constexpr (LATE && READ_B) b_words[item] = Layout::load_aligned(b_ptr, item, lane);
                    if constexpr (READ_B) unpack(b_words[item], b);
                    else set_all(b, 0.f);
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
                        // layernorm.norm:11
                        y_out[i] = b[i] + w[i] * (neg_mean_x_minus_mu_rstd + rstd * (x[i] - mu));
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
            if (WANT_MU && live && lane == 0) {
                store_scalar<false>(mu_ptr + row_offset<offset_t>(row, mu_stride_rest), mu);
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

#include "normgen/programmatic.cuh"
#include "normgen/running.cuh"

// A launch sets:
//   THREADS, MIN_BLOCKS, TEAM, VEC, LENGTH, BACKWARDS, STAGED, PROGRAMMATIC, index_t, offset_t, size_D, x_t,
//   w_t, b_t, mu_t, rstd_t, y_t, HAS_W, HAS_B, WANT_MU, WANT_RSTD, WANT_Y

[[maybe_unused]] constexpr bool READ_W = HAS_W && WANT_Y;
[[maybe_unused]] constexpr bool READ_B = HAS_B && WANT_Y;
// save mu[...]: f32 = sum[D](x) / size[D]
// save rstd[...]: f32 = rsqrt(sum[D]((x - mu)^2) / size[D] + eps)
// output y[..., D]: like x = w * (x - mu) * rstd + b
//
// Multi-pass streaming: a block owns a row and passes over it once per dependency level: from memory, or from
// its copy in shared memory (STAGED).
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) layernorm_forward_multipass(
    const x_t* x_ptr,
    const w_t* w_ptr,
    const b_t* b_ptr,
    mu_t* __restrict__ mu_ptr,
    rstd_t* __restrict__ rstd_ptr,
    y_t* __restrict__ y_ptr,
    index_t x_stride_rest,
    index_t mu_stride_rest,
    index_t rstd_stride_rest,
    index_t y_stride_rest,
    float eps,
    index_t rows,
    int blocks_per_segment) {
    extern __shared__ __align__(128) unsigned char smem[];
    __shared__ Exchange<TEAM, THREADS, 3> exchange;
    int side = 0;
    const int lane = threadIdx.x;
    const index_t block = block_number<BACKWARDS>();
    unsigned char* const x_pipeline = smem;
    programmatic_wait<PROGRAMMATIC>();
    programmatic_launch<PROGRAMMATIC>();
    for (index_t row = block; row < rows; row += blocks_per_segment) {
        constexpr bool live = true;

        // exchange 1: sum[D](x), sum[D](minus(x, mu)^2), sum[D](minus(x, mu))
        RunningMoments running;
#pragma unroll 4
        for (int item = 0, column = lane * VEC; column < LENGTH; ++item, column += TEAM * VEC) {
            Vector<x_t, VEC> x_words;
            x_words = load_vector<VEC>(x_ptr + row_offset<offset_t>(row, x_stride_rest) + column);
            if constexpr (STAGED) {
                Pipeline<x_t, VEC, THREADS>::write(x_pipeline, item, x_words);
            }
            float x[VEC];
            unpack(x_words, x);
            float passing[VEC];
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                passing[i] = x[i];
            }
            running.add(passing);
        }
        const Moments moments = running.over_team<TEAM, VEC, LENGTH>(exchange, side);
        const float mu = moments.mean;  // layernorm.norm:9
        const float sum_x_minus_mu = moments.centred;
        const float sum_x_minus_mu_squared = moments.squares;
        const float row_1 = eps
            + maximum(sum_x_minus_mu_squared - square(sum_x_minus_mu) * (1.f / float(size_D)), 0.f)
            * (1.f / float(size_D));
        const float rstd = rsqrtf(row_1);  // layernorm.norm:10
        const float neg_mean_x_minus_mu_rstd = -sum_x_minus_mu * (1.f / float(size_D)) * rstd;

        // results
        constexpr int TOGETHER = vectors_together<THREADS, MIN_BLOCKS, VEC, 4>(0,
            READ_B * int(sizeof(b_t)) + READ_W * int(sizeof(w_t)) + int(sizeof(x_t)));
#pragma unroll 1
        for (int first = 0; (first * TEAM + lane) * VEC < LENGTH; first += TOGETHER) {
            Vector<b_t, VEC> b_words[TOGETHER];
            Vector<w_t, VEC> w_words[TOGETHER];
            Vector<x_t, VEC> x_words[TOGETHER];
#pragma unroll
            for (int k = 0; k < TOGETHER; ++k) {
                const int item = first + k, column = (item * TEAM + lane) * VEC;
                if (column >= LENGTH) continue;
                if constexpr (READ_B) {
                    b_words[k] = load_vector<VEC>(b_ptr + column);
                }
                if constexpr (READ_W) {
                    w_words[k] = load_vector<VEC>(w_ptr + column);
                }
                if constexpr (STAGED) {
                    x_words[k] = Pipeline<x_t, VEC, THREADS>::read(x_pipeline, item);
                } else {
                    x_words[k] = load_vector<VEC>(x_ptr + row_offset<offset_t>(row, x_stride_rest) + column);
                }
            }
#pragma unroll
            for (int k = 0; k < TOGETHER; ++k) {
                const int item = first + k, column = (item * TEAM + lane) * VEC;
                if (column >= LENGTH) continue;
                float b[VEC];
                if constexpr (READ_B) unpack(b_words[k], b);
                else set_all(b, 0.f);
                float w[VEC];
                if constexpr (READ_W) unpack(w_words[k], w);
                else set_all(w, 1.f);
                float x[VEC];
                unpack(x_words[k], x);
                float y_out[VEC];
#pragma unroll
                for (int i = 0; i < VEC; ++i) {
                    // layernorm.norm:11
                    y_out[i] = b[i] + w[i] * (neg_mean_x_minus_mu_rstd + rstd * (x[i] - mu));
                }
                if (WANT_Y && live) {
                    store_vector(y_ptr + row_offset<offset_t>(row, y_stride_rest) + column, pack<y_t>(y_out));
                }
            }
        }
        if (WANT_MU && live && lane == 0) {
            store_scalar<false>(mu_ptr + row_offset<offset_t>(row, mu_stride_rest), mu);
        }
        if (WANT_RSTD && live && lane == 0) {
            store_scalar<false>(rstd_ptr + row_offset<offset_t>(row, rstd_stride_rest), rstd);
        }
    }
}

#include "normgen/cooperative.cuh"
#include "normgen/programmatic.cuh"

// A launch sets:
//   THREADS, PROGRAMMATIC, index_t

// Clears the flags of all partials.
extern "C" __global__ void __launch_bounds__(THREADS) layernorm_forward_clear(
    word_t* words,
    index_t count) {
    const index_t place = index_t(blockIdx.x) * THREADS + threadIdx.x;
    programmatic_wait<PROGRAMMATIC>();
    if (place < count) words[place] = 0;
    programmatic_launch<PROGRAMMATIC>();
}
