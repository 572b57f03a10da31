constexpr int THREADS = 32;  // threads of a block
constexpr int MIN_BLOCKS = 24;  // blocks per multiprocessor that registers are to be there for
constexpr int TEAM = 1;  // threads of a thread group
constexpr int VEC = 1;  // elements of a vector
constexpr int GHOSTS = 0;  // threads that only load what windows reach
constexpr int DRIFT = 0;  // places by which a window leads
constexpr int SLOTS = 9;  // vectors that shared memory holds for each thread, or steps for a block
constexpr int AHEAD = 6;  // whether, or how far, what comes next is loaded ahead
using index_t = int;  // types of row numbers and strides, and of where rows begin
// type of this operand's elements
using x_t = __nv_bfloat16;
using d_t = float;
using y_t = __nv_bfloat16;

// save d[B, C, ...]: f32 = alpha * sum[C: -2..2](x^2) / 5 + k
// output y[B, C, ...]: like x = x * d^-beta
//
// A thread walks from one end of an image to the other, or along one of the ranges that share its steps, in
// steps of lanes * VEC elements: the multiple of VEC that is nearest to the distance between neighbours, so
// that every access is VEC elements wide. Neighbours hence lie DRIFT elements further along per step, and
// some of them in other threads: TEAM lanes of a warp have adjacent elements, and those of the GHOSTS at
// either end only load for their neighbours. What arrives is added to the sums of all steps whose windows
// hold it; operands are fetched AHEAD steps before.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) local_response_norm_forward_march(
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
    const float alpha_ = alpha * 0.2f;
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
                    power_1[i] = k + sum_x2[place][i] * alpha_;
                }
                raise_all<0, VEC>(power_1, neg_beta);
#pragma unroll
                for (int i = 0; i < VEC; ++i) {
                    d_out[i] = k + sum_x2[place][i] * alpha_;  // local_response_norm.norm:10
                    y_out[i] = x[i] * power_1[i];  // local_response_norm.norm:11
                }
                if (turn < results) {
                    {
                        store_vector(d_image + at, pack<d_t>(d_out));
                    }
                    {
                        store_vector(y_image + at, pack<y_t>(y_out));
                    }
                }
            }
        }
    }
}
