#include "normgen/programmatic.cuh"
#include "normgen/realigned.cuh"
#include "normgen/rows/runs.cuh"
#include "normgen/team.cuh"

// A launch sets:
//   THREADS, MIN_BLOCKS, CLUSTER_DIMS, TEAM, TEAMS, VEC, ITEMS, LENGTH, RUN, REALIGNED, BACKWARDS,
//   PROGRAMMATIC, index_t, offset_t, size_C, size_rest, HAS_DY, HAS_W, dy_t, x_t, w_t, mu_t, rstd_t, dx_t,
//   WANT_DX, WANT_DW, WANT_DB

[[maybe_unused]] constexpr bool READ_X = WANT_DX || WANT_DW;
[[maybe_unused]] constexpr bool READ_W = HAS_W && WANT_DX;
[[maybe_unused]] constexpr bool READ_MU = WANT_DX || WANT_DW;
[[maybe_unused]] constexpr bool READ_RSTD = WANT_DX || WANT_DW;
[[maybe_unused]] constexpr bool ONE_W = size_rest % VEC == 0;
// gradient dx[B, (G C), ...]: like x = rstd * (w * dy - rstd^2 * sum[C, ...](w * dy * (x - mu)) * (x - mu) /
//     (size[...] * size[C]) - sum[C, ...](w * dy) / (size[...] * size[C]))
// gradient dw[(G C)]: like w = sum[B, ...](rstd * dy * (x - mu))
// gradient db[(G C)]: like b = sum[B, ...](dy)
//
// One-shot kernel: a thread group (TEAM threads) owns a row and holds it in registers, packed; the grid
// covers all rows at once.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) CLUSTER_DIMS groupnorm_backward_registers(
    const dy_t* dy_ptr,
    const x_t* x_ptr,
    const w_t* w_ptr,
    const mu_t* mu_ptr,
    const rstd_t* rstd_ptr,
    dx_t* __restrict__ dx_ptr,
    float* dw_sum_partial,
    float* db_sum_partial,
    offset_t dy_stride_B,
    index_t dy_stride_G,
    offset_t x_stride_B,
    index_t x_stride_G,
    index_t w_stride_G,
    index_t w_stride_C,
    offset_t mu_stride_B,
    index_t mu_stride_G,
    offset_t rstd_stride_B,
    index_t rstd_stride_G,
    offset_t dx_stride_B,
    index_t dx_stride_G,
    index_t size_B,
    index_t size_G,
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
    [[maybe_unused]] const index_t at_G = row % size_G;
    [[maybe_unused]] const index_t at_B = row / size_G;
    open_exchange(exchange);
    programmatic_wait<PROGRAMMATIC>();

    // what this thread reads of its row
    Vector<dy_t, VEC, REALIGNED> dy_words[ITEMS];
    Vector<x_t, VEC, REALIGNED> x_words[ITEMS];
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int column = Layout::column(item, lane);
        if (Layout::has(item, lane, column)) {
            if constexpr (HAS_DY)
                if (live)
                    dy_words[item] = Layout::load_vector(
                        dy_ptr + at_B * dy_stride_B + row_offset<offset_t>(at_G, dy_stride_G), item, lane);
        }
    }
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int column = Layout::column(item, lane);
        if (Layout::has(item, lane, column)) {
            if constexpr (READ_X)
                if (live)
                    x_words[item] = Layout::load_vector(
                        x_ptr + at_B * x_stride_B + row_offset<offset_t>(at_G, x_stride_G), item, lane);
        }
    }
    float w_parts[ITEMS];
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int column = Layout::column(item, lane);
        if (Layout::has(item, lane, column)) {
            if constexpr (ONE_W)
                w_parts[item] = READ_W
                    ? load_scalar(w_ptr + row_offset<offset_t>(at_G, w_stride_G)
                    + index_t(column / size_rest) * w_stride_C) : 1.f;
        }
    }
    const float mu =
        READ_MU ? load_scalar(mu_ptr + at_B * mu_stride_B + row_offset<offset_t>(at_G, mu_stride_G)) : 0.f;
    const float rstd = READ_RSTD
        ? load_scalar(rstd_ptr + at_B * rstd_stride_B + row_offset<offset_t>(at_G, rstd_stride_G)) : 0.f;
    if constexpr (HAS_DY)
        if (live)
            Layout::load_ends(dy_words,
                dy_ptr + at_B * dy_stride_B + row_offset<offset_t>(at_G, dy_stride_G), lane);
    if constexpr (READ_X)
        if (live)
            Layout::load_ends(x_words, x_ptr + at_B * x_stride_B + row_offset<offset_t>(at_G, x_stride_G),
                lane);
    if constexpr (HAS_DY)
        Layout::cut_out(dy_words, dy_ptr + at_B * dy_stride_B + row_offset<offset_t>(at_G, dy_stride_G));
    if constexpr (READ_X)
        Layout::cut_out(x_words, x_ptr + at_B * x_stride_B + row_offset<offset_t>(at_G, x_stride_G));
    join_exchange<TEAM, THREADS>();
    float dy_[ITEMS] = {};
    float dy_x_minus_mu[ITEMS] = {};

    // exchange 1: sum[C, ...](w * dy), sum[C, ...](w * dy * minus(x, mu)), sum[C, ...](minus(x, mu))
    float sum_w_dy = 0.f;
    float sum_w_dy_x_minus_mu = 0.f;
    float sum_x_minus_mu = 0.f;
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int column = Layout::column(item, lane);
        if (Layout::has(item, lane, column)) {
            float dy[VEC];
            if constexpr (HAS_DY) unpack(dy_words[item], dy);
            else set_all(dy, 0.f);
            float x[VEC];
            if constexpr (READ_X) unpack(x_words[item], x);
            else set_all(x, 0.f);
            const float w = w_parts[item];
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                if (Layout::beyond(item, column + i)) continue;
                const float x_minus_mu = x[i] - mu;
                dy_[item] += dy[i];
                dy_x_minus_mu[item] += dy[i] * x_minus_mu;
                sum_x_minus_mu += x_minus_mu;
            }
            sum_w_dy += w * dy_[item];
            sum_w_dy_x_minus_mu += w * dy_x_minus_mu[item];
        }
    }
    if constexpr (WANT_DW || WANT_DB) add_runs<RUN>(dy_);
    if constexpr (WANT_DW) add_runs<RUN>(dy_x_minus_mu);
    if constexpr (WANT_DX || WANT_DW)
        Team<Sum, Sum, Sum>::reduce(exchange, side, sum_w_dy, sum_w_dy_x_minus_mu, sum_x_minus_mu);
    const float neg_mean_x_minus_mu_rstd =
        -if_finite(sum_x_minus_mu) * (1.f / float(size_rest)) * (1.f / float(size_C)) * rstd;
    const float row_1 = -if_finite(sum_x_minus_mu) * (1.f / square(float(size_rest)))
        * (1.f / square(float(size_C))) * rstd
        * (if_finite(sum_x_minus_mu) * sum_w_dy * (1.f / float(size_rest)) * (1.f / float(size_C))
        - sum_w_dy_x_minus_mu) * rstd * rstd
        - sum_w_dy * (1.f / float(size_rest)) * (1.f / float(size_C)) * rstd;
    const float row_2 = (if_finite(sum_x_minus_mu) * sum_w_dy * (1.f / float(size_rest))
        * (1.f / float(size_C)) - sum_w_dy_x_minus_mu) * (1.f / float(size_rest)) * (1.f / float(size_C))
        * rstd * rstd * rstd;

    // in-place results: a thread's words hold elements of its neighbour
    if constexpr (REALIGNED && TEAM <= 32) __syncwarp();
    // results
    Vector<dx_t, VEC> dx_packed[REALIGNED ? ITEMS : 1];
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int column = Layout::column(item, lane);
        if (Layout::has(item, lane, column)) {
            float x[VEC];
            keep_packed(x_words[item]);
            if constexpr (READ_X) unpack(x_words[item], x);
            else set_all(x, 0.f);
            float dy[VEC];
            keep_packed(dy_words[item]);
            if constexpr (HAS_DY) unpack(dy_words[item], dy);
            else set_all(dy, 0.f);
            float dx_out[VEC];
            const float w = w_parts[item];
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                dx_out[i] = row_1 + row_2 * (x[i] - mu) + rstd * w * dy[i];
            }
            if (WANT_DX && live) {
                const Vector<dx_t, VEC> packed = pack<dx_t>(dx_out);
                if constexpr (REALIGNED) dx_packed[item] = packed;
                else
                    Layout::store_vector(dx_ptr + at_B * dx_stride_B + row_offset<offset_t>(at_G, dx_stride_G)
                        + column, packed);
            }
        }
    }
    if constexpr (WANT_DX && REALIGNED) {
        Layout::store(dx_ptr + at_B * dx_stride_B + row_offset<offset_t>(at_G, dx_stride_G), dx_packed, lane,
            live);
    }
    if constexpr (WANT_DW)
        put_runs<Layout, RUN, VEC, size_rest, LENGTH, ITEMS>(dw_sum_partial, rows, row, lane, live,
            [&](int i) { return neg_mean_x_minus_mu_rstd * dy_[i] + rstd * dy_x_minus_mu[i]; });
    if constexpr (WANT_DB)
        put_runs<Layout, RUN, VEC, size_rest, LENGTH, ITEMS>(db_sum_partial, rows, row, lane, live,
            [&](int i) { return dy_[i]; });
    programmatic_launch<PROGRAMMATIC>();
}

#include "normgen/cooperative.cuh"
#include "normgen/programmatic.cuh"
#include "normgen/realigned.cuh"
#include "normgen/rows/runs.cuh"

// A launch sets:
//   THREADS, MIN_BLOCKS, TEAM, MEMBERS, VEC, ITEMS, LENGTH, RUN, SLOTS, REALIGNED, BACKWARDS, PROGRAMMATIC,
//   index_t, offset_t, size_C, size_rest, HAS_DY, HAS_W, dy_t, x_t, w_t, mu_t, rstd_t, dx_t, WANT_DX,
//   WANT_DW, WANT_DB

[[maybe_unused]] constexpr bool READ_X = WANT_DX || WANT_DW;
[[maybe_unused]] constexpr bool READ_W = HAS_W && WANT_DX;
[[maybe_unused]] constexpr bool READ_MU = WANT_DX || WANT_DW;
[[maybe_unused]] constexpr bool READ_RSTD = WANT_DX || WANT_DW;
[[maybe_unused]] constexpr bool ONE_W = size_rest % VEC == 0;
// gradient dx[B, (G C), ...]: like x = rstd * (w * dy - rstd^2 * sum[C, ...](w * dy * (x - mu)) * (x - mu) /
//     (size[...] * size[C]) - sum[C, ...](w * dy) / (size[...] * size[C]))
// gradient dw[(G C)]: like w = sum[B, ...](rstd * dy * (x - mu))
// gradient db[(G C)]: like b = sum[B, ...](dy)
//
// Rows split over MEMBERS blocks, each with a slice in registers and shared memory, which exchange through
// memory; the grid covers all rows at once. A block has more than one side only where others, which it would
// wait for, do not run.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) groupnorm_backward_cooperative(
    const dy_t* dy_ptr,
    const x_t* x_ptr,
    const w_t* w_ptr,
    const mu_t* mu_ptr,
    const rstd_t* rstd_ptr,
    dx_t* __restrict__ dx_ptr,
    float* dw_sum_partial,
    float* db_sum_partial,
    offset_t dy_stride_B,
    index_t dy_stride_G,
    offset_t x_stride_B,
    index_t x_stride_G,
    index_t w_stride_G,
    index_t w_stride_C,
    offset_t mu_stride_B,
    index_t mu_stride_G,
    offset_t rstd_stride_B,
    index_t rstd_stride_G,
    offset_t dx_stride_B,
    index_t dx_stride_G,
    index_t size_B,
    index_t size_G,
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
    [[maybe_unused]] const index_t at_G = row % size_G;
    [[maybe_unused]] const index_t at_B = row / size_G;
    // a slice needs one element
    constexpr bool SAME_W = size_rest % (Layout::SLICE * VEC) == 0;
    constexpr bool LATE = true;  // what rows share is loaded when it is used
    constexpr int HELD = ITEMS - SLOTS;  // of a thread's vectors, in registers; the others in shared memory
    using dy_pipeline_t = Pipeline<dy_t, VEC, THREADS>;
    unsigned char* const dy_pipeline = smem;
    using x_pipeline_t = Pipeline<x_t, VEC, THREADS>;
    unsigned char* const x_pipeline = smem + HAS_DY * SLOTS * VEC * THREADS * int(sizeof(dy_t));
    programmatic_wait<PROGRAMMATIC>();

    do {
        const int lane = exchange.lane();
        const bool live = exchange.slice == home;  // another block's slice is added up, nothing more
        exchange.begin();

        // what this thread reads of the slice
        Vector<dy_t, VEC> dy_words[ITEMS];
        Vector<x_t, VEC> x_words[ITEMS];
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) {
            const int column = Layout::column(item, lane);
            if (Layout::has(item, lane, column)) {
                if constexpr (HAS_DY) {
                    if (item < HELD)
                        dy_words[item] = Layout::load_vector(dy_ptr + at_B * dy_stride_B
                            + row_offset<offset_t>(at_G, dy_stride_G), item, lane);
                    else {
                        dy_pipeline_t::fill(dy_pipeline, item - HELD,
                            dy_ptr + at_B * dy_stride_B + row_offset<offset_t>(at_G, dy_stride_G) + column);
                    }
                }
            }
        }
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) {
            const int column = Layout::column(item, lane);
            if (Layout::has(item, lane, column)) {
                if constexpr (READ_X) {
                    if (item < HELD)
                        x_words[item] = Layout::load_vector(
                            x_ptr + at_B * x_stride_B + row_offset<offset_t>(at_G, x_stride_G), item, lane);
                    else {
                        x_pipeline_t::fill(x_pipeline, item - HELD,
                            x_ptr + at_B * x_stride_B + row_offset<offset_t>(at_G, x_stride_G) + column);
                    }
                }
            }
        }
        async_commit();
        float w_parts[1];
        const float mu = READ_MU
            ? load_scalar(mu_ptr + at_B * mu_stride_B + row_offset<offset_t>(at_G, mu_stride_G)) : 0.f;
        const float rstd = READ_RSTD
            ? load_scalar(rstd_ptr + at_B * rstd_stride_B + row_offset<offset_t>(at_G, rstd_stride_G)) : 0.f;
        float dy_[ITEMS] = {};
        float dy_x_minus_mu[ITEMS] = {};
        async_wait<0>();

        // exchange 1: sum[C, ...](w * dy), sum[C, ...](w * dy * minus(x, mu)), sum[C, ...](minus(x, mu))
        float sum_w_dy = 0.f;
        float sum_w_dy_x_minus_mu = 0.f;
        float sum_x_minus_mu = 0.f;
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) {
            const int column = Layout::column(item, lane);
            if (Layout::has(item, lane, column)) {
                float dy[VEC];
                if constexpr (HAS_DY) if (item >= HELD) {
                    dy_words[item] = dy_pipeline_t::read(dy_pipeline, item - HELD);
                }
                if constexpr (HAS_DY) unpack(dy_words[item], dy);
                else set_all(dy, 0.f);
                float x[VEC];
                if constexpr (READ_X) if (item >= HELD) {
                    x_words[item] = x_pipeline_t::read(x_pipeline, item - HELD);
                }
                if constexpr (READ_X) unpack(x_words[item], x);
                else set_all(x, 0.f);
                if constexpr (ONE_W && LATE) {
                    if (item == 0 || !SAME_W)
                        w_parts[0] = READ_W
                            ? load_scalar(w_ptr + row_offset<offset_t>(at_G, w_stride_G)
                            + index_t(column / size_rest) * w_stride_C) : 1.f;
                }
                const float w = w_parts[0];
#pragma unroll
                for (int i = 0; i < VEC; ++i) {
                    if (Layout::beyond(item, column + i)) continue;
                    const float x_minus_mu = x[i] - mu;
                    dy_[item] += dy[i];
                    dy_x_minus_mu[item] += dy[i] * x_minus_mu;
                    sum_x_minus_mu += x_minus_mu;
                }
                sum_w_dy += w * dy_[item];
                sum_w_dy_x_minus_mu += w * dy_x_minus_mu[item];
            }
        }
        if constexpr (WANT_DX || WANT_DW)
            exchange.reduce<Sum, Sum, Sum>(side, sum_w_dy, sum_w_dy_x_minus_mu, sum_x_minus_mu);
        const float neg_mean_x_minus_mu_rstd =
            -if_finite(sum_x_minus_mu) * (1.f / float(size_rest)) * (1.f / float(size_C)) * rstd;
        const float row_1 = -if_finite(sum_x_minus_mu) * (1.f / square(float(size_rest)))
            * (1.f / square(float(size_C))) * rstd
            * (if_finite(sum_x_minus_mu) * sum_w_dy * (1.f / float(size_rest)) * (1.f / float(size_C))
            - sum_w_dy_x_minus_mu) * rstd * rstd
            - sum_w_dy * (1.f / float(size_rest)) * (1.f / float(size_C)) * rstd;
        const float row_2 = (if_finite(sum_x_minus_mu) * sum_w_dy * (1.f / float(size_rest))
            * (1.f / float(size_C)) - sum_w_dy_x_minus_mu) * (1.f / float(size_rest)) * (1.f / float(size_C))
            * rstd * rstd * rstd;
        if (exchange.away) continue;
        exchange.clear(exchange.depart());

        // the places of many vectors are computed again: kept, they would take as many registers as the
        // vectors
        const int again = ITEMS >= 16 ? forgotten(lane) : lane;
        {
            const int lane = again;
            // results
            Vector<dx_t, VEC> dx_packed[REALIGNED ? ITEMS : 1];
#pragma unroll
            for (int item = 0; item < ITEMS; ++item) {
                const int column = Layout::column(item, lane);
                if (Layout::has(item, lane, column)) {
                    float x[VEC];
                    if constexpr (READ_X) if (item >= HELD) {
                        x_words[item] = x_pipeline_t::read(x_pipeline, item - HELD);
                    }
                    keep_packed(x_words[item]);
                    if constexpr (READ_X) unpack(x_words[item], x);
                    else set_all(x, 0.f);
                    float dy[VEC];
                    if constexpr (HAS_DY) if (item >= HELD) {
                        dy_words[item] = dy_pipeline_t::read(dy_pipeline, item - HELD);
                    }
                    keep_packed(dy_words[item]);
                    if constexpr (HAS_DY) unpack(dy_words[item], dy);
                    else set_all(dy, 0.f);
                    if constexpr (ONE_W && LATE) {
                        if (item == 0 || !SAME_W)
                            w_parts[0] = READ_W
                                ? load_scalar(w_ptr + row_offset<offset_t>(at_G, w_stride_G)
                                + index_t(column / size_rest) * w_stride_C) : 1.f;
                    }
                    float dx_out[VEC];
                    const float w = w_parts[0];
#pragma unroll
                    for (int i = 0; i < VEC; ++i) {
                        dx_out[i] = row_1 + row_2 * (x[i] - mu) + rstd * w * dy[i];
                    }
                    if (WANT_DX && live) {
                        const Vector<dx_t, VEC> packed = pack<dx_t>(dx_out);
                        if constexpr (REALIGNED) dx_packed[item] = packed;
                        else
                            Layout::store_vector(dx_ptr + at_B * dx_stride_B
                                + row_offset<offset_t>(at_G, dx_stride_G) + column, packed);
                    }
                }
            }
            if constexpr (WANT_DX && REALIGNED) {
                Layout::store(dx_ptr + at_B * dx_stride_B + row_offset<offset_t>(at_G, dx_stride_G),
                    dx_packed, lane, live);
            }
            if constexpr (WANT_DW || WANT_DB) add_runs<RUN>(dy_);
            if constexpr (WANT_DW) add_runs<RUN>(dy_x_minus_mu);
            if constexpr (WANT_DW)
                put_runs<Layout, RUN, VEC, size_rest, LENGTH, ITEMS>(dw_sum_partial, rows, row, lane, live,
                    [&](int i) { return neg_mean_x_minus_mu_rstd * dy_[i] + rstd * dy_x_minus_mu[i]; });
            if constexpr (WANT_DB)
                put_runs<Layout, RUN, VEC, size_rest, LENGTH, ITEMS>(db_sum_partial, rows, row, lane, live,
                    [&](int i) { return dy_[i]; });
        }
    } while (exchange.away);
    programmatic_launch<PROGRAMMATIC>();
}

#include "normgen/cooperative.cuh"
#include "normgen/programmatic.cuh"

// A launch sets:
//   THREADS, PROGRAMMATIC, index_t

// Clears the flags of all partials.
extern "C" __global__ void __launch_bounds__(THREADS) groupnorm_backward_clear(
    word_t* words,
    index_t count) {
    const index_t place = index_t(blockIdx.x) * THREADS + threadIdx.x;
    programmatic_wait<PROGRAMMATIC>();
    if (place < count) words[place] = 0;
    programmatic_launch<PROGRAMMATIC>();
}

#include "normgen/programmatic.cuh"
#include "normgen/second_stage.cuh"

// A launch sets:
//   THREADS, RUNS, TILE, SHARES, ACCUMULATE, PROGRAMMATIC, index_t, size_C, WANT_DW, WANT_DB, dw_t, db_t

// gradient dw[(G C)]: like w = sum[B, ...](rstd * dy * (x - mu))
// gradient db[(G C)]: like b = sum[B, ...](dy)
//
// Adds the partials that the blocks of the row kernel left, TILE columns in SHARES warps. blockIdx.y is the
// result.
extern "C" __global__ void __launch_bounds__(THREADS) groupnorm_backward_second_stage(
    dw_t* __restrict__ dw_ptr,
    db_t* __restrict__ db_ptr,
    float* dw_sum_partial,
    float* db_sum_partial,
    index_t dw_stride_G,
    index_t dw_stride_C,
    index_t db_stride_G,
    index_t db_stride_C,
    index_t size_B,
    index_t size_G) {
    __shared__ float scratch[THREADS / 32][TILE];
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const index_t tile = index_t(blockIdx.x) * (THREADS / 32 / SHARES) + warp / SHARES;
    programmatic_wait<PROGRAMMATIC>();

    // dw
    if (blockIdx.y == 0) {
        if constexpr (WANT_DW) {
            constexpr int WIDTH = 1;
            const index_t outer = tile * TILE + lane % TILE;
            const int column = outer < size_G * size_C ? 0 : WIDTH;  // nothing beyond the last
            [[maybe_unused]] const index_t at_C = outer % size_C;
            [[maybe_unused]] const index_t at_G = outer / size_C;
            const auto row_of = [&](index_t k) -> index_t {
                [[maybe_unused]] const index_t at_B = k / RUNS;
                const index_t row = at_B * size_G + at_G;
                return (k % RUNS * (size_B * size_G) + row) * size_C + at_C;
            };
            const float dw_sum = add_partials<TILE, SHARES, WIDTH>(scratch, dw_sum_partial, column,
                index_t(RUNS) * size_B, row_of);
            if (warp % SHARES == 0 && lane < TILE && column < WIDTH) {
                store_scalar<ACCUMULATE>(dw_ptr + at_G * dw_stride_G + at_C * dw_stride_C, dw_sum);
            }
        }
    }

    // db
    if (blockIdx.y == 1) {
        if constexpr (WANT_DB) {
            constexpr int WIDTH = 1;
            const index_t outer = tile * TILE + lane % TILE;
            const int column = outer < size_G * size_C ? 0 : WIDTH;  // nothing beyond the last
            [[maybe_unused]] const index_t at_C = outer % size_C;
            [[maybe_unused]] const index_t at_G = outer / size_C;
            const auto row_of = [&](index_t k) -> index_t {
                [[maybe_unused]] const index_t at_B = k / RUNS;
                const index_t row = at_B * size_G + at_G;
                return (k % RUNS * (size_B * size_G) + row) * size_C + at_C;
            };
            const float db_sum = add_partials<TILE, SHARES, WIDTH>(scratch, db_sum_partial, column,
                index_t(RUNS) * size_B, row_of);
            if (warp % SHARES == 0 && lane < TILE && column < WIDTH) {
                store_scalar<ACCUMULATE>(db_ptr + at_G * db_stride_G + at_C * db_stride_C, db_sum);
            }
        }
    }
    programmatic_launch<PROGRAMMATIC>();
}
