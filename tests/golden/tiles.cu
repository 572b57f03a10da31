#include "normgen/programmatic.cuh"
#include "normgen/tiles/tiles.cuh"

// A launch sets:
//   THREADS, MIN_BLOCKS, VEC, PATCH, ROWS, COLUMNS, PATCHES, BACKWARDS, PROGRAMMATIC, index_t, size_E,
//   size_G, xq_t, xs_t, rstd_t, scale_t, w_t, q_t, qt_t, ONE_XS, HAS_W, WANT_Q, WANT_QT, VEC_QT

constexpr index_t columns = index_t(size_G) * index_t(size_E);
constexpr int PART = VEC < 4 ? VEC : 4;
// norm quantised axis E = 16 input xq[..., (G E)]: f8e4m3 input xs[..., G]: bf16 input rstd[...]: f32 input
// scale[]: f32 param w[(G E)]
// output q[..., (G E)]: f8e4m3 = rstd * w * xs * xq / scale
// output qt[(G E), ...]: f8e4m3 = q
//
// A block owns a tile of ROWS x COLUMNS elements, a thread patches of PATCH x VEC. Tensors of the other
// memory order pass through shared memory.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) quantised_tiles(
    const xq_t* xq_ptr,
    const xs_t* xs_ptr,
    const rstd_t* rstd_ptr,
    const scale_t* scale_ptr,
    const w_t* w_ptr,
    q_t* __restrict__ q_ptr,
    qt_t* __restrict__ qt_ptr,
    index_t xq_stride_rest,
    index_t xs_stride_rest,
    index_t xs_stride_G,
    index_t rstd_stride_rest,
    index_t q_stride_rest,
    index_t qt_stride_G,
    index_t qt_stride_E,
    index_t rows) {
    extern __shared__ __align__(128) unsigned char smem[];
    using qt_tile_t = Tile<qt_t, ROWS, COLUMNS, VEC>;
    unsigned char* const qt_tile = smem;
    // the last tiles first: L2 may still hold what the kernel before read last
    const index_t tile = BACKWARDS ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    constexpr index_t column_tiles = (columns + COLUMNS - 1) / COLUMNS;
    const index_t first_column = tile % column_tiles * COLUMNS;
    const index_t first_row = tile / column_tiles * ROWS;
    programmatic_wait<PROGRAMMATIC>();
    const float scale = load_scalar(scale_ptr);

#pragma unroll 1
    for (int turn = 0; turn < (PATCHES + THREADS - 1) / THREADS; ++turn) {
        const unsigned int item = turn * THREADS + threadIdx.x;
        if (PATCHES % THREADS != 0 && item >= PATCHES) break;
        const int across = item % (COLUMNS / VEC) * VEC, down = item / (COLUMNS / VEC) * PATCH;
        const index_t column = first_column + across;
        if (column >= columns) continue;

        // what this thread reads; lines beyond the last row read that row and store nothing
        Vector<xq_t, VEC> xq_words[PATCH];
        Vector<w_t, VEC> w_words;
        if constexpr (HAS_W) w_words = load_vector<VEC>(w_ptr + column);
        float rstd_lines[PATCH];
        float xs_lines[PATCH][ONE_XS ? 1 : VEC];
#pragma unroll
        for (int line = 0; line < PATCH; ++line) {
            const index_t row = first_row + down + line < rows ? first_row + down + line : rows - 1;
            xq_words[line] = load_vector<VEC>(xq_ptr + (row * xq_stride_rest + column));
            rstd_lines[line] = load_scalar(rstd_ptr + row * rstd_stride_rest);
#pragma unroll
            for (int i = 0; i < (ONE_XS ? 1 : VEC); ++i) {
                xs_lines[line][i] =
                    load_scalar(xs_ptr + (row * xs_stride_rest + ((column + i) / size_E) * xs_stride_G));
            }
        }

        // results, a few columns of all lines at a time: packed, they replace what they are computed from
        Vector<q_t, VEC> q_packed[PATCH];
        Vector<qt_t, VEC> qt_packed[PATCH];
#pragma unroll
        for (int part = 0; part < VEC; part += PART) {
            float w[PART];
            if constexpr (HAS_W) unpack(part_of<PART>(w_words, part), w);
            else set_all(w, 1.f);
#pragma unroll
            for (int line = 0; line < PATCH; ++line) {
                const float rstd = rstd_lines[line];
                const float rstd_over_scale = rstd / scale;
                float xq[PART];
                unpack(part_of<PART>(xq_words[line], part), xq);
                float q_out[PART];
                float qt_out[PART];
#pragma unroll
                for (int i = 0; i < PART; ++i) {
                    const float xs = xs_lines[line][ONE_XS ? 0 : part + i];
                    const float qt = rstd_over_scale * xs * w[i] * xq[i];  // spec.norm:11
                    q_out[i] = qt;  // spec.norm:11
                    qt_out[i] = qt;  // spec.norm:11
                }
                if constexpr (WANT_Q) {
                    put_part(q_packed[line], part, pack<q_t>(q_out));
                }
                if constexpr (WANT_QT) {
                    put_part(qt_packed[line], part, pack<qt_t>(qt_out));
                }
            }
        }
#pragma unroll
        for (int line = 0; line < PATCH; ++line) {
            const index_t row = first_row + down + line;
            if (row >= rows) break;
            if constexpr (WANT_Q) {
                store_vector(q_ptr + (row * q_stride_rest + column), q_packed[line]);
            }
        }
        if constexpr (WANT_QT) {
            qt_tile_t::write_lines(qt_tile, down, across, qt_packed);
        }
    }

    // results of the other memory order: runs of rows
    __syncthreads();
    if constexpr (WANT_QT) {
        constexpr int RUN = VEC_QT, RUNS = ROWS * COLUMNS / RUN;
#pragma unroll 4
        for (int turn = 0; turn < (RUNS + THREADS - 1) / THREADS; ++turn) {
            const unsigned int item = turn * THREADS + threadIdx.x;
            if (RUNS % THREADS != 0 && item >= RUNS) break;
            const int down = item % (ROWS / RUN) * RUN, across = item / (ROWS / RUN);
            const index_t row = first_row + down, column = first_column + across;
            if (row < rows && column < columns) {
                [[maybe_unused]] const index_t at_E = column % size_E;
                [[maybe_unused]] const index_t at_G = column / size_E;
                store_vector(qt_ptr + (at_G * qt_stride_G + at_E * qt_stride_E + row),
                    qt_tile_t::read<RUN>(qt_tile, down, across));
            }
        }
    }
    programmatic_launch<PROGRAMMATIC>();
}
