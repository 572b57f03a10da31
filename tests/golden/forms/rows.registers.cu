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
