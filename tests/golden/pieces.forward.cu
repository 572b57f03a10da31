#include "normgen/programmatic.cuh"
#include "normgen/realigned.cuh"
#include "normgen/second_stage.cuh"
#include "normgen/statistics.cuh"

// A launch sets:
//   THREADS, MIN_BLOCKS, CLUSTER_DIMS, TEAM, TEAMS, VEC, ITEMS, LENGTH, REALIGNED, BACKWARDS, PROGRAMMATIC,
//   index_t, size_B, size_rest, x_t, w_t, b_t, running_mean_t, running_var_t, mu_t, rstd_t, y_t, HAS_W,
//   HAS_B, HAS_RUNNING_MEAN, HAS_RUNNING_VAR, WANT_RUNNING_MEAN, WANT_RUNNING_VAR, WANT_MU, WANT_RSTD, WANT_Y

[[maybe_unused]] constexpr bool READ_W = HAS_W && WANT_Y;
[[maybe_unused]] constexpr bool READ_B = HAS_B && WANT_Y;
[[maybe_unused]] constexpr bool READ_RUNNING_MEAN = HAS_RUNNING_MEAN && WANT_RUNNING_MEAN;
[[maybe_unused]] constexpr bool READ_RUNNING_VAR = HAS_RUNNING_VAR && WANT_RUNNING_VAR;
// save mu[C]: f32 = sum[B, ...](x) / (size[...] * size[B])
// let s0 = sum[B, ...]((x - mu)^2)
// let var = s0 / (size[...] * size[B])
// save rstd[C]: f32 = rsqrt(var + eps)
// output y[B, C, ...]: like x = w * (x - mu) * rstd + b
// let unbiased = s0 / max(size[...] * size[B] - correction, 1)
// update running_mean = running_mean + momentum * (mu - running_mean) if momentum < 0.5 else (momentum - 1) *
//     (mu - running_mean) + mu
// update running_var = running_var + momentum * (unbiased - running_var) if momentum < 0.5 else (momentum -
//     1) * (unbiased - running_var) + unbiased
//
// One-shot kernel: a thread group (TEAM threads) owns a row and holds it in registers, packed; the grid
// covers all rows at once.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) CLUSTER_DIMS batchnorm_forward_registers(
    const x_t* x_ptr,
    const w_t* w_ptr,
    const b_t* b_ptr,
    running_mean_t* running_mean_ptr,
    running_var_t* running_var_ptr,
    mu_t* __restrict__ mu_ptr,
    rstd_t* __restrict__ rstd_ptr,
    y_t* __restrict__ y_ptr,
    index_t x_stride_B,
    index_t x_stride_C,
    index_t w_stride_C,
    index_t b_stride_C,
    index_t running_mean_stride_C,
    index_t running_var_stride_C,
    index_t mu_stride_C,
    index_t rstd_stride_C,
    index_t y_stride_B,
    index_t y_stride_C,
    float momentum,
    float eps,
    float correction,
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
    open_exchange(exchange);
    programmatic_wait<PROGRAMMATIC>();

    // what this thread reads of its row
    Vector<x_t, VEC, REALIGNED> x_words[ITEMS];
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int column = Layout::column(item, lane);
        if (Layout::has(item, lane, column)) {
            [[maybe_unused]] const index_t at_B = unsigned(column) / size_rest;
            const int place = unsigned(column) % size_rest;
            if (live)
                x_words[item] = load_vector<VEC>(x_ptr + (at_B * x_stride_B + row * x_stride_C + place));
        }
    }
    const float w = READ_W ? load_scalar(w_ptr + row * w_stride_C) : 1.f;
    const float b = READ_B ? load_scalar(b_ptr + row * b_stride_C) : 0.f;
    const float running_mean = READ_RUNNING_MEAN && live && lane == 0
        ? load_state(running_mean_ptr + row * running_mean_stride_C) : 0.f;
    const float running_var = READ_RUNNING_VAR && live && lane == 0
        ? load_state(running_var_ptr + row * running_var_stride_C) : 1.f;
    const float momentum_minus_one = momentum - 1.f;
    join_exchange<TEAM, THREADS>();

    // exchange 1: sum[B, ...](x), sum[B, ...](minus(x, mu)^2), sum[B, ...](minus(x, mu))
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
    const float mu = moments.mean;  // batchnorm.norm:14
    const float sum_x_minus_mu = moments.centred;
    const float sum_x_minus_mu_squared = moments.squares;
    const float row_1 = maximum(sum_x_minus_mu_squared
        - square(sum_x_minus_mu) * (1.f / float(size_rest)) * (1.f / float(size_B)), 0.f);
    const float var = (1.f / float(size_rest)) * (1.f / float(size_B)) * row_1;  // batchnorm.norm:15
    const float var_plus_eps = eps + var;
    const float rstd = rsqrtf(var_plus_eps);  // batchnorm.norm:16
    const float mu_minus_running_mean = mu - running_mean;
    const float row_2 = momentum < 0.5f ? running_mean + momentum * mu_minus_running_mean
        : momentum_minus_one * mu_minus_running_mean + mu;
    // batchnorm.norm:19
    const float unbiased = row_1 / maximum(float(size_rest) * float(size_B) - correction, 1.f);
    const float unbiased_minus_running_var = unbiased - running_var;
    const float row_3 = momentum < 0.5f ? running_var + momentum * unbiased_minus_running_var
        : momentum_minus_one * unbiased_minus_running_var + unbiased;
    const float row_4 = b - sum_x_minus_mu * (1.f / float(size_rest)) * (1.f / float(size_B)) * w * rstd;
    const float w_rstd = w * rstd;

    // results
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int column = Layout::column(item, lane);
        if (Layout::has(item, lane, column)) {
            [[maybe_unused]] const index_t at_B = unsigned(column) / size_rest;
            const int place = unsigned(column) % size_rest;
            float x[VEC];
            keep_packed(x_words[item]);
            unpack(x_words[item], x);
            float y_out[VEC];
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                y_out[i] = row_4 + w_rstd * (x[i] - mu);  // batchnorm.norm:17
            }
            if (WANT_Y && live) {
                Layout::store_vector(y_ptr + (at_B * y_stride_B + row * y_stride_C + place),
                    pack<y_t>(y_out));
            }
        }
    }
    if (WANT_MU && live && lane == 0) {
        store_scalar<false>(mu_ptr + row * mu_stride_C, mu);
    }
    if (WANT_RSTD && live && lane == 0) {
        store_scalar<false>(rstd_ptr + row * rstd_stride_C, rstd);
    }
    if (WANT_RUNNING_MEAN && live && lane == 0) {
        store_scalar<false>(running_mean_ptr + row * running_mean_stride_C, row_2);
    }
    if (WANT_RUNNING_VAR && live && lane == 0) {
        store_scalar<false>(running_var_ptr + row * running_var_stride_C, row_3);
    }
    programmatic_launch<PROGRAMMATIC>();
}

#include "normgen/cooperative.cuh"
#include "normgen/programmatic.cuh"
#include "normgen/realigned.cuh"
#include "normgen/second_stage.cuh"

// A launch sets:
//   THREADS, MIN_BLOCKS, TEAM, MEMBERS, VEC, ITEMS, LENGTH, SLOTS, REALIGNED, BACKWARDS, PROGRAMMATIC,
//   index_t, size_B, size_rest, x_t, w_t, b_t, running_mean_t, running_var_t, mu_t, rstd_t, y_t, HAS_W,
//   HAS_B, HAS_RUNNING_MEAN, HAS_RUNNING_VAR, WANT_RUNNING_MEAN, WANT_RUNNING_VAR, WANT_MU, WANT_RSTD, WANT_Y

[[maybe_unused]] constexpr bool READ_W = HAS_W && WANT_Y;
[[maybe_unused]] constexpr bool READ_B = HAS_B && WANT_Y;
[[maybe_unused]] constexpr bool READ_RUNNING_MEAN = HAS_RUNNING_MEAN && WANT_RUNNING_MEAN;
[[maybe_unused]] constexpr bool READ_RUNNING_VAR = HAS_RUNNING_VAR && WANT_RUNNING_VAR;
// save mu[C]: f32 = sum[B, ...](x) / (size[...] * size[B])
// let s0 = sum[B, ...]((x - mu)^2)
// let var = s0 / (size[...] * size[B])
// save rstd[C]: f32 = rsqrt(var + eps)
// output y[B, C, ...]: like x = w * (x - mu) * rstd + b
// let unbiased = s0 / max(size[...] * size[B] - correction, 1)
// update running_mean = running_mean + momentum * (mu - running_mean) if momentum < 0.5 else (momentum - 1) *
//     (mu - running_mean) + mu
// update running_var = running_var + momentum * (unbiased - running_var) if momentum < 0.5 else (momentum -
//     1) * (unbiased - running_var) + unbiased
//
// Rows split over MEMBERS blocks, each with a slice in registers and shared memory, which exchange through
// memory; the grid covers all rows at once. A block has more than one side only where others, which it would
// wait for, do not run.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) batchnorm_forward_cooperative(
    const x_t* x_ptr,
    const w_t* w_ptr,
    const b_t* b_ptr,
    running_mean_t* running_mean_ptr,
    running_var_t* running_var_ptr,
    mu_t* __restrict__ mu_ptr,
    rstd_t* __restrict__ rstd_ptr,
    y_t* __restrict__ y_ptr,
    index_t x_stride_B,
    index_t x_stride_C,
    index_t w_stride_C,
    index_t b_stride_C,
    index_t running_mean_stride_C,
    index_t running_var_stride_C,
    index_t mu_stride_C,
    index_t rstd_stride_C,
    index_t y_stride_B,
    index_t y_stride_C,
    float momentum,
    float eps,
    float correction,
    index_t rows,
    word_t* words,
    float* published) {
    extern __shared__ __align__(128) unsigned char smem[];
    __shared__ CooperativeScratch<THREADS, 3> scratch;
    using Layout = RowLayout<TEAM, THREADS, VEC, ITEMS, LENGTH, REALIGNED, true>;
    const index_t row = index_t(block_number<BACKWARDS>()) / MEMBERS;
    const int home = int(block_number<BACKWARDS>() % MEMBERS);
    CooperativeRow<MEMBERS, THREADS, 3> exchange(scratch, words, published, row, home);
    int side = 0;
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
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) {
            const int column = Layout::column(item, lane);
            if (Layout::has(item, lane, column)) {
                [[maybe_unused]] const index_t at_B = unsigned(column) / size_rest;
                const int place = unsigned(column) % size_rest;
                if (item < HELD)
                    x_words[item] = load_vector<VEC>(x_ptr + (at_B * x_stride_B + row * x_stride_C + place));
                else {
                    x_pipeline_t::fill(x_pipeline, item - HELD,
                        x_ptr + (at_B * x_stride_B + row * x_stride_C + place));
                }
            }
        }
        async_commit();
        const float w = READ_W ? load_scalar(w_ptr + row * w_stride_C) : 1.f;
        const float b = READ_B ? load_scalar(b_ptr + row * b_stride_C) : 0.f;
        const float running_mean = READ_RUNNING_MEAN && live && lane == 0
            ? load_state(running_mean_ptr + row * running_mean_stride_C) : 0.f;
        const float running_var = READ_RUNNING_VAR && live && lane == 0
            ? load_state(running_var_ptr + row * running_var_stride_C) : 1.f;
        const float momentum_minus_one = momentum - 1.f;
        async_wait<0>();

        // exchange 1: sum[B, ...](x), sum[B, ...](minus(x, mu)^2), sum[B, ...](minus(x, mu))
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
        const float mu = moments.mean;  // batchnorm.norm:14
        const float sum_x_minus_mu = moments.centred;
        const float sum_x_minus_mu_squared = moments.squares;
        const float row_1 = maximum(sum_x_minus_mu_squared
            - square(sum_x_minus_mu) * (1.f / float(size_rest)) * (1.f / float(size_B)), 0.f);
        const float var = (1.f / float(size_rest)) * (1.f / float(size_B)) * row_1;  // batchnorm.norm:15
        const float var_plus_eps = eps + var;
        const float rstd = rsqrtf(var_plus_eps);  // batchnorm.norm:16
        const float mu_minus_running_mean = mu - running_mean;
        const float row_2 = momentum < 0.5f ? running_mean + momentum * mu_minus_running_mean
            : momentum_minus_one * mu_minus_running_mean + mu;
        // batchnorm.norm:19
        const float unbiased = row_1 / maximum(float(size_rest) * float(size_B) - correction, 1.f);
        const float unbiased_minus_running_var = unbiased - running_var;
        const float row_3 = momentum < 0.5f ? running_var + momentum * unbiased_minus_running_var
            : momentum_minus_one * unbiased_minus_running_var + unbiased;
        const float row_4 = b - sum_x_minus_mu * (1.f / float(size_rest)) * (1.f / float(size_B)) * w * rstd;
        const float w_rstd = w * rstd;
        if (exchange.away) continue;
        exchange.clear(exchange.depart());

        // the places of many vectors are computed again: kept, they would take as many registers as the
        // vectors
        const int again = ITEMS >= 16 ? forgotten(lane) : lane;
        {
            const int lane = again;
            // results
#pragma unroll
            for (int item = 0; item < ITEMS; ++item) {
                const int column = Layout::column(item, lane);
                if (Layout::has(item, lane, column)) {
                    [[maybe_unused]] const index_t at_B = unsigned(column) / size_rest;
                    const int place = unsigned(column) % size_rest;
                    float x[VEC];
                    if (item >= HELD) {
                        x_words[item] = x_pipeline_t::read(x_pipeline, item - HELD);
                    }
                    keep_packed(x_words[item]);
                    unpack(x_words[item], x);
                    float y_out[VEC];
#pragma unroll
                    for (int i = 0; i < VEC; ++i) {
                        y_out[i] = row_4 + w_rstd * (x[i] - mu);  // batchnorm.norm:17
                    }
                    if (WANT_Y && live) {
                        Layout::store_vector(y_ptr + (at_B * y_stride_B + row * y_stride_C + place),
                            pack<y_t>(y_out));
                    }
                }
            }
            if (WANT_MU && live && lane == 0) {
                store_scalar<false>(mu_ptr + row * mu_stride_C, mu);
            }
            if (WANT_RSTD && live && lane == 0) {
                store_scalar<false>(rstd_ptr + row * rstd_stride_C, rstd);
            }
            if (WANT_RUNNING_MEAN && live && lane == 0) {
                store_scalar<false>(running_mean_ptr + row * running_mean_stride_C, row_2);
            }
            if (WANT_RUNNING_VAR && live && lane == 0) {
                store_scalar<false>(running_var_ptr + row * running_var_stride_C, row_3);
            }
        }
    } while (exchange.away);
    programmatic_launch<PROGRAMMATIC>();
}

#include "normgen/cooperative.cuh"
#include "normgen/programmatic.cuh"

// A launch sets:
//   THREADS, PROGRAMMATIC, index_t

// Clears the flags of all partials.
extern "C" __global__ void __launch_bounds__(THREADS) batchnorm_forward_clear(
    word_t* words,
    index_t count) {
    const index_t place = index_t(blockIdx.x) * THREADS + threadIdx.x;
    programmatic_wait<PROGRAMMATIC>();
    if (place < count) words[place] = 0;
    programmatic_launch<PROGRAMMATIC>();
}
