#include "normgen/programmatic.cuh"
#include "normgen/realigned.cuh"
#include "normgen/rows/pieces.cuh"
#include "normgen/team.cuh"

// A launch sets:
//   THREADS, MIN_BLOCKS, CLUSTER_DIMS, TEAM, TEAMS, VEC, ITEMS, LENGTH, REALIGNED, BACKWARDS, PROGRAMMATIC,
//   index_t, size_C, size_rest, HAS_DY, HAS_W, dy_t, x_t, w_t, mu_t, rstd_t, dx_t, WANT_DX, WANT_DW, WANT_DB

[[maybe_unused]] constexpr bool READ_X = WANT_DX || WANT_DW;
[[maybe_unused]] constexpr bool READ_W = HAS_W && WANT_DX;
[[maybe_unused]] constexpr bool READ_MU = WANT_DX || WANT_DW;
[[maybe_unused]] constexpr bool READ_RSTD = WANT_DX || WANT_DW;
// gradient dx[B, ..., (G C)]: like x = rstd * (w * dy - rstd^2 * sum[C, ...](w * dy * (x - mu)) * (x - mu) /
//     (size[...] * size[C]) - sum[C, ...](w * dy) / (size[...] * size[C]))
// gradient dw[(G C)]: like w = sum[B, ...](rstd * dy * (x - mu))
// gradient db[(G C)]: like b = sum[B, ...](dy)
//
// One-shot kernel: a thread group (TEAM threads) owns a row and holds it in registers, packed; the grid
// covers all rows at once.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) CLUSTER_DIMS
groupnorm_channels_last_backward_registers(
    const dy_t* dy_ptr,
    const x_t* x_ptr,
    const w_t* w_ptr,
    const mu_t* mu_ptr,
    const rstd_t* rstd_ptr,
    dx_t* __restrict__ dx_ptr,
    float* dw_sum_partial,
    float* db_sum_partial,
    index_t dy_stride_rest,
    index_t dy_stride_B,
    index_t dy_stride_G,
    index_t x_stride_rest,
    index_t x_stride_B,
    index_t x_stride_G,
    index_t w_stride_G,
    index_t mu_stride_B,
    index_t mu_stride_G,
    index_t rstd_stride_B,
    index_t rstd_stride_G,
    index_t dx_stride_rest,
    index_t dx_stride_B,
    index_t dx_stride_G,
    index_t size_B,
    index_t size_G,
    index_t rows) {
    __shared__ Exchange<TEAM, THREADS, 3> exchange;
    int side = 0;
    using Layout = RowLayout<TEAM, THREADS, VEC, ITEMS, LENGTH, REALIGNED, true>;
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
    Vector<w_t, VEC, REALIGNED> w_words[1];
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int column = Layout::column(item, lane);
        if (Layout::has(item, lane, column)) {
            [[maybe_unused]] const index_t at_rest = unsigned(column) / size_C;
            const int place = unsigned(column) % size_C;
            if constexpr (HAS_DY)
                if (live)
                    dy_words[item] = load_vector<VEC>(dy_ptr
                        + (at_rest * dy_stride_rest + at_B * dy_stride_B + at_G * dy_stride_G + place));
        }
    }
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int column = Layout::column(item, lane);
        if (Layout::has(item, lane, column)) {
            [[maybe_unused]] const index_t at_rest = unsigned(column) / size_C;
            const int place = unsigned(column) % size_C;
            if constexpr (READ_X)
                if (live)
                    x_words[item] = load_vector<VEC>(x_ptr
                        + (at_rest * x_stride_rest + at_B * x_stride_B + at_G * x_stride_G + place));
        }
    }
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int column = Layout::column(item, lane);
        if (Layout::has(item, lane, column)) {
            [[maybe_unused]] const index_t at_rest = unsigned(column) / size_C;
            const int place = unsigned(column) % size_C;
            if constexpr (READ_W)
                if (live) if (item == 0) w_words[0] = load_vector<VEC>(w_ptr + (at_G * w_stride_G + place));
        }
    }
    const float mu = READ_MU ? load_scalar(mu_ptr + at_B * mu_stride_B + at_G * mu_stride_G) : 0.f;
    const float rstd = READ_RSTD ? load_scalar(rstd_ptr + at_B * rstd_stride_B + at_G * rstd_stride_G) : 0.f;
    join_exchange<TEAM, THREADS>();
    using Places = PiecePlaces<Layout, TEAM, THREADS, VEC, size_C>;
    __shared__ __align__(16) float dy__places[(WANT_DW || WANT_DB) ? THREADS * VEC : 1];
    __shared__ __align__(16) float dy_x_minus_mu_places[WANT_DW ? THREADS * VEC : 1];
    float dy_[VEC] = {};
    float dy_x_minus_mu[VEC] = {};

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
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                if (Layout::beyond(item, column + i)) continue;
                const float x_minus_mu = x[i] - mu;
                dy_[i] += dy[i];
                dy_x_minus_mu[i] += dy[i] * x_minus_mu;
                sum_x_minus_mu += x_minus_mu;
            }
        }
    }
    if (Layout::has(0, lane, Layout::column(0, lane))) {
        float w[VEC];
        if constexpr (READ_W) unpack(w_words[0], w);
        else set_all(w, 1.f);
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            sum_w_dy += w[i] * dy_[i];
            sum_w_dy_x_minus_mu += w[i] * dy_x_minus_mu[i];
        }
    }
    if constexpr (WANT_DW || WANT_DB) Places::put(dy__places, dy_);
    if constexpr (WANT_DW) Places::put(dy_x_minus_mu_places, dy_x_minus_mu);
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

    // results
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int column = Layout::column(item, lane);
        if (Layout::has(item, lane, column)) {
            [[maybe_unused]] const index_t at_rest = unsigned(column) / size_C;
            const int place = unsigned(column) % size_C;
            float x[VEC];
            keep_packed(x_words[item]);
            if constexpr (READ_X) unpack(x_words[item], x);
            else set_all(x, 0.f);
            float w[VEC];
            keep_packed(w_words[0]);
            if constexpr (READ_W) unpack(w_words[0], w);
            else set_all(w, 1.f);
            float dy[VEC];
            keep_packed(dy_words[item]);
            if constexpr (HAS_DY) unpack(dy_words[item], dy);
            else set_all(dy, 0.f);
            float dx_out[VEC];
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                dx_out[i] = row_1 + row_2 * (x[i] - mu) + rstd * w[i] * dy[i];
            }
            if (WANT_DX && live) {
                Layout::store_vector(dx_ptr
                    + (at_rest * dx_stride_rest + at_B * dx_stride_B + at_G * dx_stride_G + place),
                    pack<dx_t>(dx_out));
            }
        }
    }
    if constexpr (WANT_DW || WANT_DB) {
        __syncthreads();  // every thread has put what it has
        if constexpr (WANT_DW || WANT_DB) Places::add(dy__places);
        if constexpr (WANT_DW) Places::add(dy_x_minus_mu_places);
        __syncthreads();  // every share of them is added up
        if constexpr (WANT_DW)
            Places::leave(dw_sum_partial, rows, row, lane,
                [&](int place) { return neg_mean_x_minus_mu_rstd * Places::total(dy__places, place)
                + rstd * Places::total(dy_x_minus_mu_places, place); });
        if constexpr (WANT_DB)
            Places::leave(db_sum_partial, rows, row, lane,
                [&](int place) { return Places::total(dy__places, place); });
    }
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
extern "C" __global__ void __launch_bounds__(THREADS) groupnorm_channels_last_backward_second_stage(
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
