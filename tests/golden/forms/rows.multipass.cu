constexpr int THREADS = 256;  // threads of a block
constexpr int MIN_BLOCKS = 2;  // blocks per multiprocessor that registers are to be there for
constexpr int TEAM = 256;  // threads of a thread group
constexpr int MEMBERS = 1;  // blocks that share a row or a segment
constexpr int VEC = 1;  // elements of a vector
constexpr int LENGTH = 1;  // elements of a row
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
// Multi-pass streaming: a block owns a row and passes over it once per dependency level: from memory, or from
// its copy in shared memory (STAGED). Or MEMBERS blocks share a row: a launch for each level leaves what
// every block found of its share, and a last one stores the results.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) rmsnorm_forward_multipass(
    const x_t* x_ptr,
    const w_t* w_ptr,
    rstd_t* __restrict__ rstd_ptr,
    y_t* __restrict__ y_ptr,
    index_t x_stride_rest,
    index_t rstd_stride_rest,
    index_t y_stride_rest,
    float eps,
    index_t rows,
    int blocks_per_segment,
    float* published) {
    extern __shared__ __align__(128) unsigned char smem[];
    using Layout = StreamedRow<VEC, LENGTH, false>;
    __shared__ Exchange<THREADS, THREADS, 1> exchange;
    int side = 0;
    // vectors that a thread asks for together: more of narrow ones, so that as many bytes are on their way
    [[maybe_unused]] constexpr int UNROLLED = MEMBERS > 1 && VEC <= 2 ? 8 : 4;
    const int member = int(blockIdx.x % MEMBERS);
    const int lane = member * THREADS + int(threadIdx.x);
    const index_t block = blockIdx.x / MEMBERS;
    unsigned char* const x_pipeline = smem;
    for (index_t row = block; row < rows; row += blocks_per_segment) {
        [[maybe_unused]] constexpr bool live = true;
        const Shares<MEMBERS, 1> shares{published, row};

        // exchange 1: sum[D](x^2)
        float sum_x2 = 0.f;
#pragma unroll UNROLLED
        for (int item = 0, column = lane * VEC; column < LENGTH; ++item, column += TEAM * VEC) {
            Vector<x_t, VEC> x_words;
            x_words = Layout::load(x_ptr + row_offset<offset_t>(row, x_stride_rest), column);
            Pipeline<x_t, VEC, THREADS>::write(x_pipeline, item,
                Layout::cut_out(x_words, x_ptr + row_offset<offset_t>(row, x_stride_rest)));
            float x[VEC];
            unpack(Layout::cut_out(x_words, x_ptr + row_offset<offset_t>(row, x_stride_rest)), x);
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                sum_x2 += square(x[i]);
            }
        }
        Team<Sum>::reduce(exchange, side, sum_x2);
        const float mean_x2_plus_eps = eps + sum_x2 * (1.f / float(size_D));
        const float rstd = rsqrtf(mean_x2_plus_eps);  // rmsnorm.norm:8

        // results
        constexpr int TOGETHER =
            vectors_together<THREADS, MIN_BLOCKS, VEC, 4>(0, 1 * (int(sizeof(w_t)) + int(sizeof(x_t))));
        const int leader = lane;
#pragma unroll 1
        for (int first = 0; (first * TEAM + leader) * VEC < LENGTH; first += TOGETHER) {
            Vector<w_t, VEC> w_words[TOGETHER];
            Vector<x_t, VEC> x_words[TOGETHER];
#pragma unroll
            for (int k = 0; k < TOGETHER; ++k) {
                const int item = first + k, column = (item * TEAM + lane) * VEC;
                if (column >= LENGTH) continue;
                w_words[k] = Layout::load_aligned(w_ptr, column);
                x_words[k] = Layout::whole(Pipeline<x_t, VEC, THREADS>::read(x_pipeline, item));
            }
#pragma unroll
            for (int k = 0; k < TOGETHER; ++k) {
                const int item = first + k, column = (item * TEAM + lane) * VEC;
                if ((item * TEAM + leader) * VEC >= LENGTH) continue;
                [[maybe_unused]] const bool live = true;
                float w[VEC];
                unpack(w_words[k], w);
                float x[VEC];
                unpack(Layout::cut_out(x_words[k], x_ptr + row_offset<offset_t>(row, x_stride_rest)), x);
                float y_out[VEC];
#pragma unroll
                for (int i = 0; i < VEC; ++i) {
                    y_out[i] = rstd * w[i] * x[i];  // rmsnorm.norm:9
                }
                Layout::store(y_ptr + row_offset<offset_t>(row, y_stride_rest), column, pack<y_t>(y_out));
            }
        }
        if (live && lane == 0) {
            store_scalar<false>(rstd_ptr + row_offset<offset_t>(row, rstd_stride_rest), rstd);
        }
    }
}
