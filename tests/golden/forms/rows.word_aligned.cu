constexpr int THREADS = 256;  // threads of a block
constexpr int MIN_BLOCKS = 2;  // blocks per multiprocessor that registers are to be there for
constexpr int TEAM = 64;  // threads of a thread group
constexpr int TEAMS = 4;  // thread groups of a block
constexpr int VEC = 8;  // elements of a vector
constexpr int ITEMS = 2;  // vectors of a thread
constexpr int LENGTH = 1023;  // elements of a row
constexpr int STAGES = 2;  // stages of a multistage pipeline
constexpr int SLOTS = 4;  // vectors that shared memory holds for each thread, or steps for a block
constexpr int SPARE = 384;  // bytes between the operands of a pipeline
// types of row numbers and strides, and of where rows begin
using index_t = int;
using offset_t = int;
constexpr int size_D = 1023;  // length of D
// type of this operand's elements
using dy_t = __nv_bfloat16;
using x_t = __nv_bfloat16;
using w_t = __nv_bfloat16;
using rstd_t = float;
using dx_t = __nv_bfloat16;
using dw_t = __nv_bfloat16;

// gradient dx[..., D]: like x = rstd * (w * dy - rstd^2 * sum[D](w * dy * x) * x / size[D])
// gradient dw[D]: like w = sum[...](rstd * dy * x)
//
// Word-aligned stores: persistent blocks walk misaligned rows; those of a thread group all begin at the same
// element of a word. Later rows are copied into a multistage pipeline in shared memory. A row is summed by
// its vectors; results and column sums go by aligned words.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) rmsnorm_backward_word_aligned(
    const dy_t* dy_ptr,
    const x_t* x_ptr,
    const w_t* w_ptr,
    const rstd_t* rstd_ptr,
    dx_t* __restrict__ dx_ptr,
    dw_t* __restrict__ dw_ptr,
    float* dw_sum_partial,
    index_t dy_stride_rest,
    index_t x_stride_rest,
    index_t rstd_stride_rest,
    index_t dx_stride_rest,
    index_t rows,
    int blocks_per_segment) {
    extern __shared__ __align__(128) unsigned char smem[];
    __shared__ Exchange<TEAM, THREADS, 1> exchange;
    int side = 0;
    // EVEN: the slices of warps have one length
    using Layout = RealignedRow<RealignedPlaces<TEAM, VEC, ITEMS, LENGTH, true>, false>;
    using WordAligned = WordAlignedLayout<TEAM, THREADS, VEC, ITEMS, LENGTH>;
    const int lane = int(threadIdx.x) % TEAM;
    const int team = threadIdx.x / TEAM;
    const index_t step = index_t(blocks_per_segment) * TEAMS;
    const index_t unit = index_t(blockIdx.x);

    // the pipeline: STAGES rows of every operand that changes from row to row, word by word
    using dy_pipeline_t = WordAlignedPipeline<dy_t, TEAM, THREADS, ITEMS, LENGTH, STAGES>;
    unsigned char* const dy_pipeline = smem;
    using x_pipeline_t = WordAlignedPipeline<x_t, TEAM, THREADS, ITEMS, LENGTH, STAGES>;
    unsigned char* const x_pipeline = smem + SLOTS * VEC * THREADS * int(sizeof(dy_t)) + SPARE;

    index_t ahead = unit * TEAMS;
    index_t next = ahead;
    // (thread groups beyond the last row take zeros: results may be in place, so that no row is read by two
    // groups)
    const auto fill_stage = [&](int stage) {
        const index_t first = ahead;
        ahead += step;
        __syncwarp();  // the slot may still be read
        if (first + team < rows) {
            const index_t row = first + team;
            dy_pipeline_t::fill(dy_pipeline, stage, dy_ptr + row_offset<offset_t>(row, dy_stride_rest), lane,
                row + 1 == rows);
            x_pipeline_t::fill(x_pipeline, stage, x_ptr + row_offset<offset_t>(row, x_stride_rest), lane,
                row + 1 == rows);
        } else if (TEAMS > 1 && first < rows) {
            dy_pipeline_t::clear(dy_pipeline, stage);
            x_pipeline_t::clear(x_pipeline, stage);
        }
        async_commit();
    };
#pragma unroll
    for (int stage = 0; stage < STAGES; ++stage) fill_stage(stage);

    // scalars of the row, read one row ahead
    float next_rstd = 0.f;
    const auto look_ahead = [&] {
        const index_t first = next;
        next += step;
        if (first >= rows) return;
        const index_t row = TEAMS == 1 || first + team < rows ? first + team : rows - 1;
        next_rstd = load_scalar(rstd_ptr + row_offset<offset_t>(row, rstd_stride_rest));
    };
    look_ahead();

    // the element of a word at which the rows of this group begin, and what rows share: by vectors, and by
    // words
    const auto misalignment_of = [&](index_t row) {
        return shift_of(dy_ptr + row_offset<offset_t>(row, dy_stride_rest));
    };
    const int misalignment = misalignment_of(unit * TEAMS + team < rows ? unit * TEAMS + team : rows - 1);
    const unsigned int misalignment_bits = misalignment * int(sizeof(dy_t)) % 4 * 8;
    Vector<w_t, VEC> w_words[ITEMS], w_word_aligned[ITEMS];
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int column = Layout::column(item, lane);
        if (Layout::has(item, lane, column)) {
            w_words[item] = Layout::load_aligned(w_ptr, item, lane);
            w_word_aligned[item] = WordAligned::load(w_ptr, item, lane, misalignment);
        }
    }
    float dw_sum[ITEMS * VEC] = {};

    int stage = 0;
    for (index_t first = unit * TEAMS; first < rows; first += step) {
        const bool live = TEAMS == 1 || first + team < rows;
        [[maybe_unused]] const index_t row = live ? first + team : rows - 1;
        const float rstd = next_rstd;
        look_ahead();
        async_wait<STAGES - 1>();
        __syncwarp();  // lanes read what others copied

        // exchange 1: sum[D](w * dy * x)
        float sum_w_dy_x = 0.f;
        const auto add_up = [&](auto whole) {
            constexpr int PARTS = decltype(whole)::PARTS;
#pragma unroll
            for (int item = 0; item < ITEMS; ++item) {
                const int column = Layout::column(item, lane);
                if (Layout::has(item, lane, column)) {
                    float w[VEC];
                    unpack(w_words[item], w);
                    float dy[VEC];
                    unpack(dy_pipeline_t::template cut<PARTS>(dy_pipeline, stage, item, lane,
                        misalignment_bits), dy);
                    float x[VEC];
                    unpack(x_pipeline_t::template cut<PARTS>(x_pipeline, stage, item, lane,
                        misalignment_bits), x);
#pragma unroll
                    for (int i = 0; i < VEC; ++i) {
                        if (Layout::beyond(item, column + i)) continue;
                        sum_w_dy_x += w[i] * dy[i] * x[i];
                    }
                }
            }
        };
        by_whole_parts(misalignment * int(sizeof(dy_t)), add_up);
        Team<Sum>::reduce(exchange, side, sum_w_dy_x);
        const float mean_w_dy_x_rstd3 = sum_w_dy_x * (1.f / float(size_D)) * rstd * rstd * rstd;

        // results
        dy_pipeline_t::join(dy_pipeline, stage, lane, misalignment);
        x_pipeline_t::join(x_pipeline, stage, lane, misalignment);
        __syncwarp();
        // the first thread's word with both ends of the row
        Vector<dx_t, VEC> dx_packed = {};
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) {
            const int column = Layout::column(item, lane);
            if (Layout::has(item, lane, column)) {
                float dy[VEC];
                unpack(dy_pipeline_t::read(dy_pipeline, stage, item, lane), dy);
                float w[VEC];
                unpack(w_word_aligned[item], w);
                float x[VEC];
                unpack(x_pipeline_t::read(x_pipeline, stage, item, lane), x);
                float dx_out[VEC];
#pragma unroll
                for (int i = 0; i < VEC; ++i) {
                    const float rstd_dy = rstd * dy[i];
                    dx_out[i] = w[i] * rstd_dy - mean_w_dy_x_rstd3 * x[i];
                    if (live) dw_sum[item * VEC + i] += rstd_dy * x[i];
                }
                if (live) {
                    const Vector<dx_t, VEC> packed = pack<dx_t>(dx_out);
                    if (item == 0) dx_packed = packed;
                    WordAligned::store(dx_ptr + row_offset<offset_t>(row, dx_stride_rest), packed, item,
                        lane, misalignment);
                }
            }
        }
        WordAligned::store_ends(dx_ptr + row_offset<offset_t>(row, dx_stride_rest), dx_packed,
            dy_pipeline_t::first_word(dy_pipeline, stage), lane, misalignment, live);
        fill_stage(stage);
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }

    // this block's partial of every column sum: its thread groups are added in order (where it has all rows,
    // that is the result)
    [[maybe_unused]] float* const gather = reinterpret_cast<float*>(smem);
    {
        float* const partial = dw_sum_partial + unit * partial_pitch(LENGTH);
        __syncthreads();  // the pipeline, or the sum before, may still be in use
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) {
            const int column = Layout::column(item, lane);
            if (Layout::has(item, lane, column)) {
#pragma unroll
                for (int i = 0; i < VEC; ++i) {
                    const int at = WordAligned::column(item, lane, i, misalignment);
                    if (at >= LENGTH) continue;
                    const float sum = dw_sum[item * VEC + i];
                    gather[team * LENGTH + at] = sum;
                }
            }
        }
        __syncthreads();
        for (int column = threadIdx.x; column < LENGTH; column += THREADS) {
            float sum = 0.f;
            for (int other = 0; other < TEAMS; ++other) {
                sum += gather[other * LENGTH + column];
            }
            if (dw_ptr) {
                store_scalar<false>(dw_ptr + column, sum);
            } else store_partial<LENGTH>(partial, column, sum);
        }
    }
}
