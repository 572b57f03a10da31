constexpr int THREADS = 64;  // threads of a block
constexpr int MIN_BLOCKS = 16;  // blocks per multiprocessor that registers are to be there for
constexpr int PLANE = 49;  // places of an image that a block has at once
constexpr int PART = 4;  // places that a thread group walks ahead together
constexpr int CHUNK = 4;  // steps of a range between two meetings
using index_t = int;  // types of row numbers and strides, and of where rows begin
// type of this operand's elements
using x_t = __nv_bfloat16;
using d_t = float;
using y_t = __nv_bfloat16;

// save d[B, C, ...]: f32 = alpha * sum[C: -2..2](x^2) / 5 + k
// output y[B, C, ...]: like x = x * d^-beta
//
// A thread has one pixel, a place in the plane between one element along the windows and the next, and walks
// from channel to channel, along one of the ranges that share an image's channels: its neighbours are its
// own. CHUNK channels are in flight, and it works on PART at a time. Results go through shared memory, from
// where warps store whole rows.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) local_response_norm_forward_pixels(
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
    const float alpha_ = alpha * 0.2f;
    const float neg_beta = -beta;
    const x_t* x_image = whole_address(x_ptr + at_B * x_stride_B + pixel + arriving * PLANE);
    d_t* const d_image = whole_address(d_ptr + at_B * d_stride_B + begin);
    y_t* const y_image = whole_address(y_ptr + at_B * y_stride_B + begin);

    unsigned char* shared = smem;
    StagedRows<d_t, CHUNK, THREADS, PLANE> d_rows(shared);
    StagedRows<y_t, CHUNK, THREADS, PLANE> y_rows(shared);
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
                power_1[i] = k + sum_x2[i] * alpha_;
            }
            raise_all<0, PART>(power_1, neg_beta);
#pragma unroll
            for (int i = 0; i < PART; ++i) {
                d_out[i] = k + sum_x2[i] * alpha_;  // local_response_norm.norm:10
                y_out[i] = x[i] * power_1[i];  // local_response_norm.norm:11
            }
            {
                d_rows.leave(turn, d_image + channel * PLANE, part, d_out);
            }
            {
                y_rows.leave(turn, y_image + channel * PLANE, part, y_out);
            }
            ask(arriving + CHUNK, part);
            carry_on<PART>(x);
            carry_on<PART>(sum_x2_terms);
        }
        next();
        __syncthreads();
        {
            d_rows.store(turn, d_image + channel * PLANE, from, to, count);
        }
        {
            y_rows.store(turn, y_image + channel * PLANE, from, to, count);
        }
    }
}
