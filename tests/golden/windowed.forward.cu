#include "normgen/programmatic.cuh"
#include "normgen/tiles/tiles.cuh"
#include "normgen/windows/windows.cuh"

// A launch sets:
//   THREADS, MIN_BLOCKS, TEAM, VEC, GHOSTS, DRIFT, SLOTS, AHEAD, PROGRAMMATIC, index_t, x_t, d_t, y_t,
//   WANT_D, WANT_Y

// save d[B, C, ...]: f32 = alpha * sum[C: -2..2](x^2) + k
// output y[B, C, ...]: like x = x * d^-beta
//
// A thread walks from one end of an image to the other, or along one of the ranges that share its steps, in
// steps of lanes * VEC elements: the multiple of VEC that is nearest to the distance between neighbours, so
// that every access is VEC elements wide. Neighbours hence lie DRIFT elements further along per step, and
// some of them in other threads: TEAM lanes of a warp have adjacent elements, and those of the GHOSTS at
// either end only load for their neighbours. What arrives is added to the sums of all steps whose windows
// hold it; operands are fetched AHEAD steps before.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) windowed_forward_march(
    const x_t* x_ptr,
    d_t* __restrict__ d_ptr,
    y_t* __restrict__ y_ptr,
    index_t x_stride_B,
    index_t d_stride_B,
    index_t y_stride_B,
    float alpha,
    float beta,
    float k,
    index_t images,
    index_t lanes,
    index_t strips,
    index_t ranges,
    index_t steps,
    index_t length,
    index_t size) {
    static_assert(SLOTS > AHEAD + 2, "a step's operands are kept until its results are stored");
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
    const float neg_beta = -beta;
    const index_t first = team / strips % ranges * length;
    // the steps of this lane
    const index_t until = own ? (size - lane * VEC + lanes * VEC - 1) / (lanes * VEC) : 0;
    const int results = 4 + int(until - first < length ? until - first : length);
    index_t arriving = ((first - 2) * lanes + lane) * VEC;
    const index_t pitch = lanes * VEC;
    const x_t* const x_image = whole_address(x_ptr + at_B * x_stride_B);
    d_t* const d_image = whole_address(d_ptr + at_B * d_stride_B);
    y_t* const y_image = whole_address(y_ptr + at_B * y_stride_B);

    unsigned char* shared = smem;
    Steps<true, x_t, VEC, SLOTS, THREADS> x_pipeline(shared);
    float sum_x2[SLOTS][VEC] = {};
    const int count = 2 + int(length) + 2;
    const auto load = [&](int turn, index_t place, int slot) {
        if (turn < count) {
            const index_t at = nearest_inside(place, size - VEC);
            x_pipeline.load(slot, x_image + at);
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

            // sum[C: -2..2](x^2)
            {
                const int place = slot;
                float x[VEC];
                x_pipeline.read(place, 0.f, x);
                float sum_x2_terms[VEC];

#pragma unroll
                for (int i = 0; i < VEC; ++i) {
                    sum_x2_terms[i] = square(x[i]);
                }
                keep_vector_inside(sum_x2_terms, arriving, size);
                add_to_windows<-2, 2, DRIFT>(sum_x2, place, sum_x2_terms);
            }

            // results
            if (turn >= 4) {
                const int place = (slot + SLOTS - 2) % SLOTS;
                const index_t at = arriving - 2 * pitch;
                float x[VEC];
                x_pipeline.read(place, 0.f, x);
                float d_out[VEC];
                float y_out[VEC];
                float power_1[VEC];
#pragma unroll
                for (int i = 0; i < VEC; ++i) {
                    power_1[i] = k + sum_x2[place][i] * alpha;
                }
                raise_all<0, VEC>(power_1, neg_beta);
#pragma unroll
                for (int i = 0; i < VEC; ++i) {
                    d_out[i] = k + sum_x2[place][i] * alpha;  // windowed.norm:6
                    y_out[i] = x[i] * power_1[i];  // windowed.norm:7
                }
                if (turn < results) {
                    if constexpr (WANT_D) {
                        store_vector(d_image + at, pack<d_t>(d_out));
                    }
                    if constexpr (WANT_Y) {
                        store_vector(y_image + at, pack<y_t>(y_out));
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
//   THREADS, MIN_BLOCKS, PLANE, PART, CHUNK, PROGRAMMATIC, index_t, x_t, d_t, y_t, WANT_D, WANT_Y

// save d[B, C, ...]: f32 = alpha * sum[C: -2..2](x^2) + k
// output y[B, C, ...]: like x = x * d^-beta
//
// A thread has one pixel, a place in the plane between one element along the windows and the next, and walks
// from channel to channel, along one of the ranges that share an image's channels: its neighbours are its
// own. CHUNK channels are in flight, and it works on PART at a time. Results go through shared memory, from
// where warps store whole rows.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) windowed_forward_pixels(
    const x_t* x_ptr,
    d_t* __restrict__ d_ptr,
    y_t* __restrict__ y_ptr,
    index_t x_stride_B,
    index_t d_stride_B,
    index_t y_stride_B,
    float alpha,
    float beta,
    float k,
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
    const float neg_beta = -beta;
    const x_t* x_image = whole_address(x_ptr + at_B * x_stride_B + pixel + arriving * PLANE);
    d_t* const d_image = whole_address(d_ptr + at_B * d_stride_B + begin);
    y_t* const y_image = whole_address(y_ptr + at_B * y_stride_B + begin);

    unsigned char* shared = smem;
    StagedRows<WANT_D, d_t, CHUNK, THREADS, PLANE> d_rows(shared);
    StagedRows<WANT_Y, y_t, CHUNK, THREADS, PLANE> y_rows(shared);
    Coming<true, x_t, CHUNK, PLANE> x_coming;
    // of a part, with those before that are looked at again
    float x[2 + PART] = {};
    float sum_x2[PART] = {};
    float sum_x2_terms[4 + PART] = {};
    const auto ask = [&](index_t chunk, int part) {
        if (is_inside(chunk, asked)) {
            x_coming.ask<PART>(x_image, part);
        } else if (chunk < end) {
            x_coming.ask_nearest<PART>(x_image, part, chunk, channels);
        }
    };
    const auto next = [&] {
        x_image += index_t(CHUNK) * PLANE;
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
            x_coming.take<PART>(part, 0.f, x);

            // sum[C: -2..2](x^2)
            {
#pragma unroll
                for (int i = 0; i < PART; ++i) {
                    sum_x2_terms[4 + i] = square(x[2 + i]);
                }
                keep_channels_inside<PART>(sum_x2_terms, inside, arriving + part, channels);
                add_windows<5, PART>(sum_x2, sum_x2_terms);
            }

            // results
            float d_out[PART];
            float y_out[PART];
            float power_1[PART];
#pragma unroll
            for (int i = 0; i < PART; ++i) {
                power_1[i] = k + sum_x2[i] * alpha;
            }
            raise_all<0, PART>(power_1, neg_beta);
#pragma unroll
            for (int i = 0; i < PART; ++i) {
                d_out[i] = k + sum_x2[i] * alpha;  // windowed.norm:6
                y_out[i] = x[i] * power_1[i];  // windowed.norm:7
            }
            if constexpr (WANT_D) {
                d_rows.leave(turn, d_image + channel * PLANE, part, d_out);
            }
            if constexpr (WANT_Y) {
                y_rows.leave(turn, y_image + channel * PLANE, part, y_out);
            }
            ask(arriving + CHUNK, part);
            carry_on<PART>(x);
            carry_on<PART>(sum_x2_terms);
        }
        next();
        __syncthreads();
        if constexpr (WANT_D) {
            d_rows.store(turn, d_image + channel * PLANE, from, to, count);
        }
        if constexpr (WANT_Y) {
            y_rows.store(turn, y_image + channel * PLANE, from, to, count);
        }
    }
}

#include "normgen/programmatic.cuh"
#include "normgen/windows/windows.cuh"

// A launch sets:
//   THREADS, VEC, PROGRAMMATIC, index_t, x_t, d_t, y_t, WANT_D, WANT_Y

// save d[B, C, ...]: f32 = alpha * sum[C: -2..2](x^2) + k
// output y[B, C, ...]: like x = x * d^-beta
//
// A thread owns VEC adjacent elements and reads every neighbour of each, which the caches hold.
extern "C" __global__ void __launch_bounds__(THREADS) windowed_forward_direct(
    const x_t* x_ptr,
    d_t* __restrict__ d_ptr,
    y_t* __restrict__ y_ptr,
    index_t x_stride_B,
    index_t x_stride_C,
    index_t d_stride_B,
    index_t d_stride_C,
    index_t y_stride_B,
    index_t y_stride_C,
    index_t size_C,
    index_t size_rest,
    float alpha,
    float beta,
    float k,
    index_t elements) {
    const index_t element = (index_t(blockIdx.x) * THREADS + threadIdx.x) * VEC;
    if (element >= elements) return;
    [[maybe_unused]] const index_t at_rest = element % size_rest;
    [[maybe_unused]] const index_t at_C = element / size_rest % size_C;
    [[maybe_unused]] const index_t at_B = element / size_rest / size_C;
    programmatic_wait<PROGRAMMATIC>();
    const float neg_beta = -beta;

    // sum[C: -2..2](x^2)
    const auto add_up_sum_x2 = [&](index_t from_C, float (&sum)[VEC]) {
#pragma unroll
        for (int i = 0; i < VEC; ++i) sum[i] = 0.f;
        for (index_t at_C = first_inside(from_C - 2); at_C <= last_inside(from_C + 2, size_C); ++at_C) {
            float x[VEC];
            fetch<true>(x, x_ptr + at_B * x_stride_B + at_C * x_stride_C + at_rest, 0.f);

#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                sum[i] = __fadd_rn(sum[i], square(x[i]));
            }
        }
    };

    // results
    float x[VEC];
    fetch<true>(x, x_ptr + at_B * x_stride_B + at_C * x_stride_C + at_rest, 0.f);
    float sum_x2[VEC];
    add_up_sum_x2(at_C, sum_x2);
    float d_out[VEC];
    float y_out[VEC];
    float power_1[VEC];
#pragma unroll
    for (int i = 0; i < VEC; ++i) {
        power_1[i] = k + sum_x2[i] * alpha;
    }
    raise_all<0, VEC>(power_1, neg_beta);
#pragma unroll
    for (int i = 0; i < VEC; ++i) {
        d_out[i] = k + sum_x2[i] * alpha;  // windowed.norm:6
        y_out[i] = x[i] * power_1[i];  // windowed.norm:7
    }
    if constexpr (WANT_D) {
        store_vector(d_ptr + at_B * d_stride_B + at_C * d_stride_C + at_rest, pack<d_t>(d_out));
    }
    if constexpr (WANT_Y) {
        store_vector(y_ptr + at_B * y_stride_B + at_C * y_stride_C + at_rest, pack<y_t>(y_out));
    }
    programmatic_launch<PROGRAMMATIC>();
}
