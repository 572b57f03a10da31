constexpr int THREADS = 256;  // threads of a block
constexpr int MIN_BLOCKS = 3;  // blocks per multiprocessor that registers are to be there for
constexpr int TEAM = 512;  // threads of a thread group
constexpr int MEMBERS = 2;  // blocks that share a row or a segment
constexpr int VEC = 8;  // elements of a vector
constexpr int ITEMS = 25;  // vectors of a thread
constexpr int LENGTH = 65472;  // elements of a row
constexpr int SLOTS = 17;  // vectors that shared memory holds for each thread, or steps for a block
// types of row numbers and strides, and of where rows begin
using index_t = int;
using offset_t = int;
constexpr int size_D = 65472;  // length of D
// type of this operand's elements
using x_t = __nv_bfloat16;
using w_t = __nv_bfloat16;
using rstd_t = float;
using y_t = __nv_bfloat16;

// save rstd[...]: f32 = rsqrt(sum[D](x^2) / size[D] + eps)
// output y[..., D]: like x = w * x * rstd
//
// Rows split over MEMBERS blocks, each with a slice in registers and shared memory, which exchange through
// memory; the grid covers all rows at once. A block has more than one side only where others, which it would
// wait for, do not run.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) rmsnorm_forward_cooperative(
    const x_t* x_ptr,
    const w_t* w_ptr,
    rstd_t* __restrict__ rstd_ptr,
    y_t* __restrict__ y_ptr,
    index_t x_stride_rest,
    index_t rstd_stride_rest,
    index_t y_stride_rest,
    float eps,
    index_t rows,
    word_t* words,
    float* published) {
    extern __shared__ __align__(128) unsigned char smem[];
    __shared__ CooperativeScratch<THREADS, 1> scratch;
    using Layout = SlicedPlaces<TEAM, THREADS, VEC, ITEMS, LENGTH>;
    const index_t row = index_t(blockIdx.x) / MEMBERS;
    const int home = int(blockIdx.x % MEMBERS);
    CooperativeRow<MEMBERS, THREADS, 1> exchange(scratch, words, published, row, home);
    int side = 0;
    constexpr int HELD = ITEMS - SLOTS;  // of a thread's vectors, in registers; the others in shared memory
    using x_pipeline_t = Pipeline<x_t, VEC, THREADS>;
    unsigned char* const x_pipeline = smem;

    do {
        const int lane = exchange.lane();
        const bool live = exchange.slice == home;  // another block's slice is added up, nothing more
        exchange.begin();

        // what this thread reads of the slice
        Vector<x_t, VEC> x_words[ITEMS];
        Vector<w_t, VEC> w_words[ITEMS];
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) {
            const int column = Layout::column(item, lane);
            if (Layout::has(item, lane, column)) {
                if (item < HELD)
                    x_words[item] =
                        load_vector<VEC>(x_ptr + row_offset<offset_t>(row, x_stride_rest) + column);

                else {
                    x_pipeline_t::fill(x_pipeline, item - HELD,
                        x_ptr + row_offset<offset_t>(row, x_stride_rest) + column);
                }
            }
        }
        async_commit();
        async_wait<0>();

        // exchange 1: sum[D](x^2)
        float sum_x2 = 0.f;
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
                    sum_x2 += square(x[i]);
                }
            }
        }
        exchange.reduce<Sum>(side, sum_x2);
        const float mean_x2_plus_eps = eps + sum_x2 * (1.f / float(size_D));
        const float rstd = rsqrtf(mean_x2_plus_eps);  // rmsnorm.norm:8
        if (exchange.away) continue;
        exchange.clear(exchange.depart());

        // the places of many vectors are computed again: kept, they would take as many registers as the
        // vectors
        const int again = ITEMS >= 16 ? forgotten(lane) : lane;
        {
            const int lane = again;
            // results no load may pass a store: what rows share is loaded for some vectors together
            constexpr int TOGETHER = vectors_together<THREADS, MIN_BLOCKS, VEC,
                ITEMS>(HELD * (int(sizeof(x_t))), int(sizeof(w_t)));
#pragma unroll
            for (int first = 0; first < ITEMS; first += TOGETHER) {
                const int end = first + TOGETHER < ITEMS ? first + TOGETHER : ITEMS;
#pragma unroll
                for (int item = first; item < end; ++item) {
                    const int column = Layout::column(item, lane);
                    if (Layout::has(item, lane, column)) {
                        w_words[item] = load_vector<VEC>(w_ptr + column);
                    }
                }
#pragma unroll
                for (int item = first; item < end; ++item) {
                    const int column = Layout::column(item, lane);
                    if (Layout::has(item, lane, column)) {
                        float w[VEC];
                        unpack(w_words[item], w);
                        float x[VEC];
                        if (item >= HELD) {
                            x_words[item] = x_pipeline_t::read(x_pipeline, item - HELD);
                        }
                        keep_packed(x_words[item]);
                        unpack(x_words[item], x);
                        float y_out[VEC];
#pragma unroll
                        for (int i = 0; i < VEC; ++i) {
                            y_out[i] = rstd * w[i] * x[i];  // rmsnorm.norm:9
                        }
                        if (live) {
                            const Vector<y_t, VEC> packed = pack<y_t>(y_out);
                            store_vector_first_out(y_ptr + row_offset<offset_t>(row, y_stride_rest) + column,
                                packed);
                        }
                    }
                }
            }
            if (live && lane == 0) {
                store_scalar<false>(rstd_ptr + row_offset<offset_t>(row, rstd_stride_rest), rstd);
            }
        }
    } while (exchange.away);
}
