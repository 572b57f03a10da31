// norm windowed
// attr alpha = 0.25
// attr beta = 0.75
// attr k = 1.5
// input x[B, C, ...]
// save d[B, C, ...]: f32 = alpha * sum[C: -2..2](x^2) + k
// output y[B, C, ...]: like x = x * d^-beta
//
// A thread walks from one end of an image to the other, or along one of the ranges that share its steps, in steps of
// lanes * VEC elements: the multiple of VEC that is nearest to the distance between neighbours, so that every access is VEC
// elements wide. Neighbours hence lie DRIFT elements further along from step to step. What arrives is added to the sums of all steps
// whose windows hold it; operands are read AHEAD steps before.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) windowed_forward_march(
    const x_t* __restrict__ x_ptr,
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
    index_t ranges,
    index_t steps,
    index_t length,
    index_t size) {
    constexpr int REACH = DRIFT < 0 ? -DRIFT : DRIFT;
    constexpr int SPAN = VEC + 2 * HALO;
    static_assert(HALO >= 2 * REACH, "what the windows of all levels reach has to be loaded");
    static_assert(SLOTS > AHEAD + 2, "a step's operands are kept until its results are stored");
    const index_t thread = index_t(blockIdx.x) * THREADS + threadIdx.x;
    const index_t lane = thread % lanes;
    const index_t image = thread / lanes / ranges;
    if (image >= images) return;
    const index_t at_B = image;
    programmatic_wait<PROGRAMMATIC>();
    programmatic_launch<PROGRAMMATIC>();
    const float factor_1 = -beta;
    // results of the steps from `first` to before `last` are this thread's
    const index_t first = thread / lanes % ranges * length;
    const index_t last = first + length < steps ? first + length : steps;
    const index_t stop = last + 2;
    const auto place_of = [&](index_t step) { return (step * lanes + lane) * VEC; };

    Span<x_t, VEC, HALO> x_words[SLOTS];
    float sum_1[SLOTS][SPAN] = {};
    const auto load = [&](index_t step, int slot) {
        const index_t at = place_of(step < stop ? step : stop - 1);
        x_words[slot].load(x_ptr + at_B * x_stride_B, at, size);
    };
#pragma unroll
    for (int slot = 0; slot < AHEAD; ++slot) load(first - 2 + slot, slot);

    for (index_t base = first - 2; base < stop; base += SLOTS) {
#pragma unroll
        for (int slot = 0; slot < SLOTS; ++slot) {
            const index_t step = base + slot;  // what arrives
            if (step >= stop) return;
            load(step + AHEAD, (slot + AHEAD) % SLOTS);

            // sum[C: -2..2](x^2)
            {
                const int place = slot;
                float x[SPAN];
                unpack_span<true>(x_words[place], 0.f, x);
                float sum_1_terms[SPAN];

#pragma unroll
                for (int i = -2 * REACH; i < VEC + 2 * REACH; ++i) {
                    sum_1_terms[HALO + i] = square(x[HALO + i]);
                }
                keep_inside<VEC, HALO, 2 * REACH>(sum_1_terms, place_of(step), size);
                add_to_windows<-2, 2, DRIFT, VEC, HALO, 0>(sum_1, place, sum_1_terms);
            }

            // results
            {
                const int place = (slot + SLOTS - 2) % SLOTS;
                const index_t at = place_of(step - 2);
                float x[SPAN];
                unpack_span<true>(x_words[place], 0.f, x);
                float d_out[VEC];
                float y_out[VEC];
                float power_1[SPAN];
#pragma unroll
                for (int i = 0; i < VEC; ++i) {
                    power_1[HALO + i] = k + sum_1[place][HALO + i] * alpha;
                }
                raise_all<HALO + 0, HALO + VEC>(power_1, factor_1);
#pragma unroll
                for (int i = 0; i < VEC; ++i) {
                    d_out[i] = k + sum_1[place][HALO + i] * alpha;  // windowed.norm:6
                    y_out[i] = x[HALO + i] * power_1[HALO + i];  // windowed.norm:7
                }
                if (step - 2 >= first && at < size) {
                    if constexpr (WANT_D) {
                        store_vector(d_ptr + at_B * d_stride_B + at, pack<d_t>(d_out));
                    }
                    if constexpr (WANT_Y) {
                        store_vector(y_ptr + at_B * y_stride_B + at, pack<y_t>(y_out));
                    }
                }
            }
        }
    }
}

// norm windowed
// attr alpha = 0.25
// attr beta = 0.75
// attr k = 1.5
// input x[B, C, ...]
// save d[B, C, ...]: f32 = alpha * sum[C: -2..2](x^2) + k
// output y[B, C, ...]: like x = x * d^-beta
//
// A thread owns VEC adjacent elements and looks at every neighbour of each, which the caches hold.
extern "C" __global__ void __launch_bounds__(THREADS) windowed_forward_direct(
    const x_t* __restrict__ x_ptr,
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
    const index_t at_rest = element % size_rest;
    const index_t at_C = element / size_rest % size_C;
    const index_t at_B = element / size_rest / size_C;
    programmatic_wait<PROGRAMMATIC>();
    const float factor_1 = -beta;

    // sum[C: -2..2](x^2)
    const auto add_up_sum_1 = [&](index_t from_C, float (&sum)[VEC]) {
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
    float sum_1[VEC];
    add_up_sum_1(at_C, sum_1);
    float d_out[VEC];
    float y_out[VEC];
    float power_1[VEC];
#pragma unroll
    for (int i = 0; i < VEC; ++i) {
        power_1[i] = k + sum_1[i] * alpha;
    }
    raise_all<0, VEC>(power_1, factor_1);
#pragma unroll
    for (int i = 0; i < VEC; ++i) {
        d_out[i] = k + sum_1[i] * alpha;  // windowed.norm:6
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
