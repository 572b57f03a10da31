constexpr int THREADS = 256;  // threads of a block
constexpr int MIN_BLOCKS = 4;  // blocks per multiprocessor that registers are to be there for
constexpr int TEAM = 1;  // threads of a thread group
constexpr int TEAMS = 256;  // thread groups of a block
constexpr int VEC = 1;  // elements of a vector
constexpr int ITEMS = 1;  // vectors of a thread
constexpr int LENGTH = 1;  // elements of a row
constexpr int STAGES = 8;  // stages of a multistage pipeline
constexpr bool BULK = false;  // whether rows arrive by bulk copies
// types of row numbers and strides, and of where rows begin
using index_t = int;
using offset_t = int;
constexpr int size_D = 1;  // length of D
// type of this operand's elements
using x_t = __nv_bfloat16;
using w_t = __nv_bfloat16;
using rstd_t = float;
using y_t = __nv_bfloat16;

// save rstd[...]: f32 = rsqrt(sum[D](x^2) / size[D] + eps)
// output y[..., D]: like x = w * x * rstd
//
// Persistent blocks walk the rows, strided by the grid, so that all of them read one moving window of memory.
// Later rows are copied into a multistage pipeline in shared memory.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) rmsnorm_forward_pipeline(
    const x_t* x_ptr,
    const w_t* w_ptr,
    rstd_t* __restrict__ rstd_ptr,
    y_t* __restrict__ y_ptr,
    index_t x_stride_rest,
    index_t rstd_stride_rest,
    index_t y_stride_rest,
    float eps,
    index_t rows,
    int blocks_per_segment) {
    extern __shared__ __align__(128) unsigned char smem[];
    __shared__ Exchange<TEAM, THREADS, 1> exchange;
    int side = 0;
    using Layout = RowPlaces<TEAM, VEC, ITEMS, LENGTH>;
    const int lane = int(threadIdx.x) % TEAM;
    const int team = threadIdx.x / TEAM;
    const index_t step = index_t(blocks_per_segment) * TEAMS;
    const index_t unit = index_t(blockIdx.x);

    // the pipeline: STAGES rows of every operand that changes from row to row, each thread's vectors in its
    // own slots
    using x_pipeline_t = RowPipeline<x_t, Layout, THREADS, BULK>;
    unsigned char* const x_pipeline = smem;
    index_t ahead = unit * TEAMS;
    // (thread groups beyond the last row take zeros: results may be in place, so that no row is read by two
    // groups)
    const auto fill_stage = [&](int stage) {
        const index_t first = ahead;
        ahead += step;
        if (first + team < rows) {
            const index_t row = first + team;
            x_pipeline_t::fill(x_pipeline, stage, x_ptr + row_offset<offset_t>(row, x_stride_rest), lane,
                row + 1 == rows);
        } else if (TEAMS > 1 && first < rows) {
            x_pipeline_t::clear(x_pipeline, stage);
        }
        async_commit();
    };
#pragma unroll
    for (int stage = 0; stage < STAGES; ++stage) fill_stage(stage);
    int stage = 0;
    // what all rows of this block share
    Vector<w_t, VEC> w_words[ITEMS];

    for (index_t first = unit * TEAMS; first < rows; first += step) {
        const bool live = TEAMS == 1 || first + team < rows;
        [[maybe_unused]] const index_t row = live ? first + team : rows - 1;

        async_wait<STAGES - 1>();
        Vector<x_t, VEC> x_words[ITEMS];
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) {
            x_words[item] = x_pipeline_t::read(x_pipeline, stage, item, lane);
        }
        fill_stage(stage);

        // exchange 1: sum[D](x^2)
        float sum_x2 = 0.f;
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) {
            float x[VEC];
            unpack(x_words[item], x);
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                sum_x2 += square(x[i]);
            }
        }
        Team<Sum>::reduce(exchange, side, sum_x2);
        const float mean_x2_plus_eps = eps + sum_x2 * (1.f / float(size_D));
        const float rstd = rsqrtf(mean_x2_plus_eps);  // rmsnorm.norm:8

        // results
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) {
            const int column = Layout::column(item, lane);
            float w[VEC];
            w_words[item] = load_vector<VEC>(w_ptr + column);

            unpack(w_words[item], w);
            float x[VEC];
            keep_packed(x_words[item]);
            unpack(x_words[item], x);
            float y_out[VEC];
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                y_out[i] = rstd * w[i] * x[i];  // rmsnorm.norm:9
            }
            if (live) {
                const Vector<y_t, VEC> packed = pack<y_t>(y_out);
                store_vector(y_ptr + row_offset<offset_t>(row, y_stride_rest) + column, packed);
            }
        }
        if (live && lane == 0) {
            store_scalar<false>(rstd_ptr + row_offset<offset_t>(row, rstd_stride_rest), rstd);
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
}
