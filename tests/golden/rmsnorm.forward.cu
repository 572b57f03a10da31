constexpr bool READ_W = HAS_W && WANT_Y;
// norm rmsnorm
// attr eps = 1e-6
// input x[..., D]
// param w[D]
// save rstd[...]: f32 = rsqrt(sum[D](x^2) / size[D] + eps)
// output y[..., D]: like x = w * x * rstd
//
// A team owns a row and holds it in registers, packed; the grid covers all rows at once.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) CLUSTER_DIMS rmsnorm_forward_registers(
    const x_t* __restrict__ x_ptr,
    const w_t* __restrict__ w_ptr,
    rstd_t* __restrict__ rstd_ptr,
    y_t* __restrict__ y_ptr,
    index_t x_stride_rest,
    index_t rstd_stride_rest,
    index_t y_stride_rest,
    float eps,
    index_t rows) {
    __shared__ Exchange<TEAM, THREADS, 1> exchange;
    int half = 0;
    using Layout = RowLayout<TEAM, THREADS, VEC, ITEMS, LENGTH, SHIFTED>;
    const int lane = lane_of_team<TEAM, THREADS>();
    const index_t candidate = team_of_thread<TEAM, THREADS, index_t>();
    const bool live = TEAMS == 1 || candidate < rows;
    // teams beyond the last row take its scalars, but none of its elements, which a result in the same place may be
    // overwriting, and store nothing
    const index_t row = live ? candidate : rows - 1;
    programmatic_wait<PROGRAMMATIC>();

    // what this thread reads of its row
    Vector<x_t, VEC, SHIFTED> x_words[ITEMS];
    Vector<w_t, VEC> w_words[ITEMS];
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int column = Layout::column(item, lane);
        if (COVERS || column < LENGTH) {
            if (live) x_words[item] = Layout::load_once(x_ptr + row * x_stride_rest, item, lane);
        }
    }
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int column = Layout::column(item, lane);
        if (COVERS || column < LENGTH) {
            if constexpr (READ_W && !LATE) w_words[item] = Layout::load_aligned(w_ptr, item, lane);
        }
    }
    if (live) Layout::load_ends(x_words, x_ptr + row * x_stride_rest, lane);
    Layout::cut_out(x_words, x_ptr + row * x_stride_rest);
    open_exchange(exchange);

    // exchange 1: sum[D](x^2)
    float sum_1 = 0.f;
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int column = Layout::column(item, lane);
        if (COVERS || column < LENGTH) {
            float x[VEC];
            unpack(x_words[item], x);
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                if (Layout::beyond(item, column + i)) continue;
                sum_1 += square(x[i]);
            }
        }
    }
    Team<Sum>::reduce(exchange, half, sum_1);
    const float row_1 = eps + sum_1 * (1.f / float(size_D));
    const float rstd = rsqrtf(row_1);  // rmsnorm.norm:8

    // where results go over operands: a thread's words hold elements of its neighbour
    if constexpr (SHIFTED && TEAM <= 32) __syncwarp();
    // results
    Vector<y_t, VEC> y_packed[SHIFTED ? ITEMS : 1];
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int column = Layout::column(item, lane);
        if (COVERS || column < LENGTH) {
            float w[VEC];
            if constexpr (LATE && READ_W) w_words[item] = Layout::load_aligned(w_ptr, item, lane);
            unpack_or<READ_W>(w_words[item], 1.f, w);
            float x[VEC];
            keep_packed(x_words[item]);
            unpack(x_words[item], x);
            float y_out[VEC];
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                y_out[i] = rstd * w[i] * x[i];  // rmsnorm.norm:9
            }
            if (WANT_Y && live) {
                const Vector<y_t, VEC> packed = pack<y_t>(y_out);
                if constexpr (SHIFTED) y_packed[item] = packed;
                else store_once(y_ptr + row * y_stride_rest + column, packed);
            }
        }
    }
    if constexpr (WANT_Y && SHIFTED) Layout::store(y_ptr + row * y_stride_rest, y_packed, lane, live);
    if (WANT_RSTD && live && lane == 0) store_scalar<false>(rstd_ptr + row * rstd_stride_rest, rstd);
    programmatic_launch<PROGRAMMATIC>();
}

constexpr bool READ_W = HAS_W && WANT_Y;
// norm rmsnorm
// attr eps = 1e-6
// input x[..., D]
// param w[D]
// save rstd[...]: f32 = rsqrt(sum[D](x^2) / size[D] + eps)
// output y[..., D]: like x = w * x * rstd
//
// A block owns a row and passes over it once per dependency level: from memory, or from its copy in shared memory where
// that fits (STAGED).
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) rmsnorm_forward_stream(
    const x_t* __restrict__ x_ptr,
    const w_t* __restrict__ w_ptr,
    rstd_t* __restrict__ rstd_ptr,
    y_t* __restrict__ y_ptr,
    index_t x_stride_rest,
    index_t rstd_stride_rest,
    index_t y_stride_rest,
    float eps,
    index_t rows,
    int blocks_per_segment) {
    extern __shared__ __align__(16) unsigned char smem[];
    __shared__ Exchange<TEAM, THREADS, 1> exchange;
    int half = 0;
    const int lane = threadIdx.x;
    const index_t block = blockIdx.x;
    unsigned char* const x_ring = smem;
    programmatic_wait<PROGRAMMATIC>();
    programmatic_launch<PROGRAMMATIC>();
    for (index_t row = block; row < rows; row += blocks_per_segment) {
        constexpr bool live = true;

        // exchange 1: sum[D](x^2)
        float sum_1 = 0.f;
#pragma unroll 4
        for (int item = 0, column = lane * VEC; column < LENGTH; ++item, column += TEAM * VEC) {
            Vector<x_t, VEC> x_words;
            x_words = load_once<VEC>(x_ptr + row * x_stride_rest + column);
            if constexpr (STAGED) Ring<x_t, VEC, THREADS>::write(x_ring, item, x_words);
            float x[VEC];
            unpack(x_words, x);
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                sum_1 += square(x[i]);
            }
        }
        Team<Sum>::reduce(exchange, half, sum_1);
        const float row_1 = eps + sum_1 * (1.f / float(size_D));
        const float rstd = rsqrtf(row_1);  // rmsnorm.norm:8

        // results
#pragma unroll 4
        for (int item = 0, column = lane * VEC; column < LENGTH; ++item, column += TEAM * VEC) {
            Vector<w_t, VEC> w_words;
            if constexpr (READ_W) {
                w_words = load_shared_by_rows<VEC>(w_ptr + column);
            }
            float w[VEC];
            unpack_or<READ_W>(w_words, 1.f, w);
            Vector<x_t, VEC> x_words;
            if constexpr (STAGED) {
                x_words = Ring<x_t, VEC, THREADS>::read(x_ring, item);
            } else {
                x_words = load_once<VEC>(x_ptr + row * x_stride_rest + column);
            }
            float x[VEC];
            unpack(x_words, x);
            float y_out[VEC];
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                y_out[i] = rstd * w[i] * x[i];  // rmsnorm.norm:9
            }
            if (WANT_Y && live) {
                store_once(y_ptr + row * y_stride_rest + column, pack<y_t>(y_out));
            }
        }
        if (WANT_RSTD && live && lane == 0) store_scalar<false>(rstd_ptr + row * rstd_stride_rest, rstd);
    }
}
