#include "normgen/programmatic.cuh"
#include "normgen/tiles/tiles.cuh"
#include "normgen/windows/windows.cuh"

// A launch sets:
//   THREADS, MIN_BLOCKS, TEAM, VEC, GHOSTS, DRIFT, SLOTS, AHEAD, PROGRAMMATIC, index_t, HAS_DY, dy_t, x_t,
//   d_t, dx_t, WANT_DX

// gradient dx[B, C, ...]: like x = dy * d^-beta - 2 * alpha * beta * x * sum[C: -2..2](dy * x * d^(-beta -
//     1))
//
// A thread walks from one end of an image to the other, or along one of the ranges that share its steps, in
// steps of lanes * VEC elements: the multiple of VEC that is nearest to the distance between neighbours, so
// that every access is VEC elements wide. Neighbours hence lie DRIFT elements further along per step, and
// some of them in other threads: TEAM lanes of a warp have adjacent elements, and those of the GHOSTS at
// either end only load for their neighbours. What arrives is added to the sums of all steps whose windows
// hold it; operands are fetched AHEAD steps before.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) windowed_backward_march(
    const dy_t* dy_ptr,
    const x_t* x_ptr,
    const d_t* d_ptr,
    dx_t* __restrict__ dx_ptr,
    index_t dy_stride_B,
    index_t x_stride_B,
    index_t d_stride_B,
    index_t dx_stride_B,
    float alpha,
    float beta,
    index_t images,
    index_t lanes,
    index_t strips,
    index_t ranges,
    index_t steps,
    index_t length,
    index_t size) {
    static_assert(SLOTS > AHEAD + 2, "a step's operands are kept until its results are stored");
    constexpr int WAITING = 3;  // steps for which parts of results wait for the last sums
    static_assert(SLOTS % WAITING == 0, "a step has the same place in every round");
    extern __shared__ __align__(128) unsigned char smem[];
    constexpr int TEAMS = 32 / TEAM;  // of a warp
    const int position = int(threadIdx.x) % 32, seat = position % TEAM;
    const index_t warp = (index_t(blockIdx.x) * THREADS + threadIdx.x) / 32;
    const index_t team = warp * TEAMS + position / TEAM;
    const index_t lane = team % strips * (TEAM - 2 * GHOSTS) + seat - GHOSTS;
    const bool complete = position < TEAMS * TEAM && team / strips / ranges < images;
    const bool own = complete && seat >= GHOSTS && seat < TEAM - GHOSTS && lane < lanes;
    // the lanes of a warp exchange values to the end: those without results walk along an image too
    const index_t image = last_inside(team / strips / ranges, images);
    [[maybe_unused]] const index_t at_B = image;
    programmatic_wait<PROGRAMMATIC>();
    programmatic_launch<PROGRAMMATIC>();
    const float neg_alpha_beta = -alpha * beta * 2.f;
    const float neg_beta_minus_one = -1.f - beta;
    const float neg_beta = -beta;
    const index_t first = team / strips % ranges * length;
    // the steps of this lane
    const index_t until = own ? (size - lane * VEC + lanes * VEC - 1) / (lanes * VEC) : 0;
    const int results = 4 + int(until - first < length ? until - first : length);
    index_t arriving = ((first - 2) * lanes + lane) * VEC;
    const index_t pitch = lanes * VEC;
    const dy_t* const dy_image = whole_address(dy_ptr + at_B * dy_stride_B);
    const x_t* const x_image = whole_address(x_ptr + at_B * x_stride_B);
    const d_t* const d_image = whole_address(d_ptr + at_B * d_stride_B);
    dx_t* const dx_image = whole_address(dx_ptr + at_B * dx_stride_B);

    unsigned char* shared = smem;
    using early_1_t = Pipeline<float, VEC, THREADS>;
    unsigned char* const early_1_pipeline = shared;
    shared += WAITING * THREADS * VEC * sizeof(float);
    Steps<HAS_DY, dy_t, VEC, SLOTS, THREADS> dy_pipeline(shared);
    Steps<true, x_t, VEC, SLOTS, THREADS> x_pipeline(shared);
    Steps<true, d_t, VEC, SLOTS, THREADS> d_pipeline(shared);
    float sum_1[SLOTS][VEC] = {};
    const int count = 2 + int(length) + 2;
    const auto load = [&](int turn, index_t place, int slot) {
        if (turn < count) {
            const index_t at = nearest_inside(place, size - VEC);
            dy_pipeline.load(slot, dy_image + at);
            x_pipeline.load(slot, x_image + at);
            d_pipeline.load(slot, d_image + at);
        }
        async_commit();
    };
#pragma unroll
    for (int slot = 0; slot < AHEAD; ++slot) load(slot, arriving + slot * pitch, slot);

    for (int base = 0; base < count; base += SLOTS) {
#pragma unroll
        for (int slot = 0; slot < SLOTS; ++slot, arriving += pitch) {
            const int turn = base + slot;
            if (turn >= count) return;
            load(turn + AHEAD, arriving + AHEAD * pitch, (slot + AHEAD) % SLOTS);
            async_wait<AHEAD>();

            // sum[C: -2..2](dy * x * d^neg_beta_minus_one)
            {
                const int place = slot;
                float dy[VEC];
                dy_pipeline.read(place, 0.f, dy);
                float x[VEC];
                x_pipeline.read(place, 0.f, x);
                float d[VEC];
                d_pipeline.read(place, 0.f, d);
                float sum_1_terms[VEC];
                float early_1[VEC];
                float power_2[VEC], power_1[VEC];
#pragma unroll
                for (int i = 0; i < VEC; ++i) {
                    power_2[i] = d[i];
                }
                raise_twice<0, VEC>(power_2, power_1, neg_beta, neg_beta_minus_one);
#pragma unroll
                for (int i = 0; i < VEC; ++i) {
                    sum_1_terms[i] = dy[i] * x[i] * power_1[i];
                    early_1[i] = dy[i] * power_2[i];
                }
                early_1_t::write(early_1_pipeline, place % WAITING, pack<float>(early_1));
                keep_vector_inside(sum_1_terms, arriving, size);
                add_to_windows<-2, 2, DRIFT>(sum_1, place, sum_1_terms);
            }

            // results
            if (turn >= 4) {
                const int place = (slot + SLOTS - 2) % SLOTS;
                const index_t at = arriving - 2 * pitch;
                float early_1[VEC];
                unpack(early_1_t::read(early_1_pipeline, place % WAITING), early_1);
                float x[VEC];
                x_pipeline.read(place, 0.f, x);
                float dx_out[VEC];

#pragma unroll
                for (int i = 0; i < VEC; ++i) {
                    dx_out[i] = sum_1[place][i] * neg_alpha_beta * x[i] + early_1[i];
                }
                if (turn < results) {
                    if constexpr (WANT_DX) {
                        store_vector(dx_image + at, pack<dx_t>(dx_out));
                    }
                }
            }
        }
    }
}

#include "normgen/programmatic.cuh"
#include "normgen/tiles/tiles.cuh"
#include "normgen/windows/pixels.cuh"

// A launch sets:
//   THREADS, MIN_BLOCKS, PLANE, PART, CHUNK, PROGRAMMATIC, index_t, HAS_DY, dy_t, x_t, d_t, dx_t, WANT_DX

// gradient dx[B, C, ...]: like x = dy * d^-beta - 2 * alpha * beta * x * sum[C: -2..2](dy * x * d^(-beta -
//     1))
//
// A thread has one pixel, a place in the plane between one element along the windows and the next, and walks
// from channel to channel, along one of the ranges that share an image's channels: its neighbours are its
// own. CHUNK channels are in flight, and it works on PART at a time. Results go through shared memory, from
// where warps store whole rows.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) windowed_backward_pixels(
    const dy_t* dy_ptr,
    const x_t* x_ptr,
    const d_t* d_ptr,
    dx_t* __restrict__ dx_ptr,
    index_t dy_stride_B,
    index_t x_stride_B,
    index_t d_stride_B,
    index_t dx_stride_B,
    float alpha,
    float beta,
    index_t strips,
    index_t ranges,
    index_t length,
    index_t channels) {
    extern __shared__ __align__(128) unsigned char smem[];
    const index_t block = index_t(blockIdx.x);
    const index_t image = block / strips / ranges;
    [[maybe_unused]] const index_t at_B = image;
    const int begin = int(block % strips) * THREADS;  // the block's first pixel
    const int count = PLANE - begin < THREADS ? PLANE - begin : THREADS;
    // threads beyond the plane walk along with its last pixel: others wait for them
    const int pixel = last_inside(begin + int(threadIdx.x), PLANE);
    const index_t first = block / strips % ranges * length;
    const index_t until = channels - first < length ? channels : first + length;
    const index_t end = until + 2;  // of the channels that are asked for
    // the chunks that begin before these lie inside, and so does all that passes look at while they arrive
    const index_t asked = first_inside(channels - CHUNK < end ? channels - CHUNK + 1 : end);
    const index_t seen = first_inside(channels - CHUNK + 1);
    index_t arriving = first - 2;
    programmatic_wait<PROGRAMMATIC>();
    programmatic_launch<PROGRAMMATIC>();
    const float neg_alpha_beta = -alpha * beta * 2.f;
    const float neg_beta_minus_one = -1.f - beta;
    const float neg_beta = -beta;
    const dy_t* dy_image = whole_address(dy_ptr + at_B * dy_stride_B + pixel + arriving * PLANE);
    const x_t* x_image = whole_address(x_ptr + at_B * x_stride_B + pixel + arriving * PLANE);
    const d_t* d_image = whole_address(d_ptr + at_B * d_stride_B + pixel + arriving * PLANE);
    dx_t* const dx_image = whole_address(dx_ptr + at_B * dx_stride_B + begin);

    unsigned char* shared = smem;
    StagedRows<WANT_DX, dx_t, CHUNK, THREADS, PLANE> dx_rows(shared);
    Coming<HAS_DY, dy_t, CHUNK, PLANE> dy_coming;
    Coming<true, x_t, CHUNK, PLANE> x_coming;
    Coming<true, d_t, CHUNK, PLANE> d_coming;
    // of a part, with those before that are looked at again
    float dy[PART] = {};
    float x[2 + PART] = {};
    float d[PART] = {};
    float sum_1[PART] = {};
    float early_1[2 + PART] = {};
    float sum_1_terms[4 + PART] = {};
    const auto ask = [&](index_t chunk, int part) {
        if (is_inside(chunk, asked)) {
            dy_coming.ask<PART>(dy_image, part);
            x_coming.ask<PART>(x_image, part);
            d_coming.ask<PART>(d_image, part);
        } else if (chunk < end) {
            dy_coming.ask_nearest<PART>(dy_image, part, chunk, channels);
            x_coming.ask_nearest<PART>(x_image, part, chunk, channels);
            d_coming.ask_nearest<PART>(d_image, part, chunk, channels);
        }
    };
    const auto next = [&] {
        dy_image += index_t(CHUNK) * PLANE;
        x_image += index_t(CHUNK) * PLANE;
        d_image += index_t(CHUNK) * PLANE;
    };
#pragma unroll
    for (int part = 0; part < CHUNK; part += PART) ask(arriving, part);
    next();

#pragma unroll 1
    for (int turn = 0; arriving < end; ++turn, arriving += CHUNK) {
        const bool inside = is_inside(arriving, seen);
        const index_t channel = arriving - 2;  // of the first results
        const int from = channel < first ? int(first - channel) : 0;
        const int to = until - channel < CHUNK ? int(until - channel) : CHUNK;
#pragma unroll
        for (int part = 0; part < CHUNK; part += PART) {
            dy_coming.take<PART>(part, 0.f, dy);
            x_coming.take<PART>(part, 0.f, x);
            d_coming.take<PART>(part, 0.f, d);

            // sum[C: -2..2](dy * x * d^neg_beta_minus_one)
            {
                float power_2[PART], power_1[PART];
#pragma unroll
                for (int i = 0; i < PART; ++i) {
                    power_2[i] = d[i];
                }
                raise_twice<0, PART>(power_2, power_1, neg_beta, neg_beta_minus_one);
#pragma unroll
                for (int i = 0; i < PART; ++i) {
                    sum_1_terms[4 + i] = dy[i] * x[2 + i] * power_1[i];
                    early_1[2 + i] = dy[i] * power_2[i];
                }
                keep_channels_inside<PART>(sum_1_terms, inside, arriving + part, channels);
                add_windows<5, PART>(sum_1, sum_1_terms);
            }

            // results
            float dx_out[PART];

#pragma unroll
            for (int i = 0; i < PART; ++i) {
                dx_out[i] = sum_1[i] * neg_alpha_beta * x[i] + early_1[i];
            }
            if constexpr (WANT_DX) {
                dx_rows.leave(turn, dx_image + channel * PLANE, part, dx_out);
            }
            ask(arriving + CHUNK, part);
            carry_on<PART>(x);
            carry_on<PART>(early_1);
            carry_on<PART>(sum_1_terms);
        }
        next();
        __syncthreads();
        if constexpr (WANT_DX) {
            dx_rows.store(turn, dx_image + channel * PLANE, from, to, count);
        }
    }
}

#include "normgen/programmatic.cuh"
#include "normgen/windows/windows.cuh"

// A launch sets:
//   THREADS, VEC, PROGRAMMATIC, index_t, HAS_DY, dy_t, x_t, d_t, dx_t, WANT_DX

// gradient dx[B, C, ...]: like x = dy * d^-beta - 2 * alpha * beta * x * sum[C: -2..2](dy * x * d^(-beta -
//     1))
//
// A thread owns VEC adjacent elements and reads every neighbour of each, which the caches hold.
extern "C" __global__ void __launch_bounds__(THREADS) windowed_backward_direct(
    const dy_t* dy_ptr,
    const x_t* x_ptr,
    const d_t* d_ptr,
    dx_t* __restrict__ dx_ptr,
    index_t dy_stride_B,
    index_t dy_stride_C,
    index_t x_stride_B,
    index_t x_stride_C,
    index_t d_stride_B,
    index_t d_stride_C,
    index_t dx_stride_B,
    index_t dx_stride_C,
    index_t size_C,
    index_t size_rest,
    float alpha,
    float beta,
    index_t elements) {
    const index_t element = (index_t(blockIdx.x) * THREADS + threadIdx.x) * VEC;
    if (element >= elements) return;
    [[maybe_unused]] const index_t at_rest = element % size_rest;
    [[maybe_unused]] const index_t at_C = element / size_rest % size_C;
    [[maybe_unused]] const index_t at_B = element / size_rest / size_C;
    programmatic_wait<PROGRAMMATIC>();
    const float neg_alpha_beta = -alpha * beta * 2.f;
    const float neg_beta_minus_one = -1.f - beta;
    const float neg_beta = -beta;

    // sum[C: -2..2](dy * x * d^neg_beta_minus_one)
    const auto add_up_sum_1 = [&](index_t from_C, float (&sum)[VEC]) {
#pragma unroll
        for (int i = 0; i < VEC; ++i) sum[i] = 0.f;
        for (index_t at_C = first_inside(from_C - 2); at_C <= last_inside(from_C + 2, size_C); ++at_C) {
            float dy[VEC];
            fetch<HAS_DY>(dy, dy_ptr + at_B * dy_stride_B + at_C * dy_stride_C + at_rest, 0.f);
            float x[VEC];
            fetch<true>(x, x_ptr + at_B * x_stride_B + at_C * x_stride_C + at_rest, 0.f);
            float d[VEC];
            fetch<true>(d, d_ptr + at_B * d_stride_B + at_C * d_stride_C + at_rest, 0.f);
            float power_1[VEC];
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                power_1[i] = d[i];
            }
            raise_all<0, VEC>(power_1, neg_beta_minus_one);
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                sum[i] = __fadd_rn(sum[i], dy[i] * x[i] * power_1[i]);
            }
        }
    };

    // results
    float dy[VEC];
    fetch<HAS_DY>(dy, dy_ptr + at_B * dy_stride_B + at_C * dy_stride_C + at_rest, 0.f);
    float x[VEC];
    fetch<true>(x, x_ptr + at_B * x_stride_B + at_C * x_stride_C + at_rest, 0.f);
    float d[VEC];
    fetch<true>(d, d_ptr + at_B * d_stride_B + at_C * d_stride_C + at_rest, 0.f);
    float sum_1[VEC];
    add_up_sum_1(at_C, sum_1);
    float dx_out[VEC];
    float power_1[VEC];
#pragma unroll
    for (int i = 0; i < VEC; ++i) {
        power_1[i] = d[i];
    }
    raise_all<0, VEC>(power_1, neg_beta);
#pragma unroll
    for (int i = 0; i < VEC; ++i) {
        dx_out[i] = sum_1[i] * neg_alpha_beta * x[i] + dy[i] * power_1[i];
    }
    if constexpr (WANT_DX) {
        store_vector(dx_ptr + at_B * dx_stride_B + at_C * dx_stride_C + at_rest, pack<dx_t>(dx_out));
    }
    programmatic_launch<PROGRAMMATIC>();
}
