constexpr int THREADS = 256;  // threads of a block
constexpr int MIN_BLOCKS = 4;  // blocks per multiprocessor that registers are to be there for
constexpr int VEC = 1;  // elements of a vector
constexpr int PATCH = 4;  // rows of a thread's patch of a tile
constexpr int ROWS = 128;  // rows of a tile
constexpr int COLUMNS = 8;  // columns of a tile
constexpr int PATCHES = 256;  // patches of a tile
using index_t = int;  // types of row numbers and strides, and of where rows begin
constexpr int size_N = 1;  // length of N
// type of this operand's elements
using x_t = __nv_bfloat16;
using y_t = __nv_bfloat16;
using z_t = __nv_bfloat16;
constexpr int VEC_Z = 1;  // rows that one access moves of this operand

constexpr index_t columns = index_t(size_N);
constexpr int PART = VEC < 4 ? VEC : 4;
// output z[N, M]: like x = x
// output y[M, N]: like x = 2 * x
//
// A block owns a tile of ROWS x COLUMNS elements, a thread patches of PATCH x VEC. Tensors of the other
// memory order pass through shared memory.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) turned_forward_tiles(
    const x_t* x_ptr,
    y_t* __restrict__ y_ptr,
    z_t* __restrict__ z_ptr,
    index_t x_stride_M,
    index_t y_stride_M,
    index_t z_stride_N,
    index_t rows) {
    extern __shared__ __align__(128) unsigned char smem[];
    using z_tile_t = Tile<z_t, ROWS, COLUMNS, VEC>;
    unsigned char* const z_tile = smem;
    // the last tiles first: L2 may still hold what the kernel before read last
    const index_t tile = gridDim.x - 1 - blockIdx.x;
    constexpr index_t column_tiles = (columns + COLUMNS - 1) / COLUMNS;
    const index_t first_column = tile % column_tiles * COLUMNS;
    const index_t first_row = tile / column_tiles * ROWS;

#pragma unroll 1
    for (int turn = 0; turn < (PATCHES + THREADS - 1) / THREADS; ++turn) {
        const unsigned int item = turn * THREADS + threadIdx.x;
        if (PATCHES % THREADS != 0 && item >= PATCHES) break;
        const int across = item % (COLUMNS / VEC) * VEC, down = item / (COLUMNS / VEC) * PATCH;
        const index_t column = first_column + across;
        if (column >= columns) continue;

        // what this thread reads; lines beyond the last row read that row and store nothing
        Vector<x_t, VEC> x_words[PATCH];
#pragma unroll
        for (int line = 0; line < PATCH; ++line) {
            const index_t row = first_row + down + line < rows ? first_row + down + line : rows - 1;
            x_words[line] = load_vector<VEC>(x_ptr + (row * x_stride_M + column));
        }

        // results, a few columns of all lines at a time: packed, they replace what they are computed from
        Vector<y_t, VEC> y_packed[PATCH];
        Vector<z_t, VEC> z_packed[PATCH];
#pragma unroll
        for (int part = 0; part < VEC; part += PART) {
#pragma unroll
            for (int line = 0; line < PATCH; ++line) {
                float x[PART];
                unpack(part_of<PART>(x_words[line], part), x);
                float y_out[PART];
                float z_out[PART];
#pragma unroll
                for (int i = 0; i < PART; ++i) {
                    y_out[i] = x[i] * 2.f;  // spec.norm:3
                    z_out[i] = x[i];  // spec.norm:4
                }
                put_part(y_packed[line], part, pack<y_t>(y_out));
                put_part(z_packed[line], part, pack<z_t>(z_out));
            }
        }
#pragma unroll
        for (int line = 0; line < PATCH; ++line) {
            const index_t row = first_row + down + line;
            if (row >= rows) break;
            store_vector(y_ptr + (row * y_stride_M + column), y_packed[line]);
        }
        z_tile_t::write_lines(z_tile, down, across, z_packed);
    }

    // results of the other memory order: runs of rows
    __syncthreads();
    {
        constexpr int RUN = VEC_Z, RUNS = ROWS * COLUMNS / RUN;
#pragma unroll 4
        for (int turn = 0; turn < (RUNS + THREADS - 1) / THREADS; ++turn) {
            const unsigned int item = turn * THREADS + threadIdx.x;
            if (RUNS % THREADS != 0 && item >= RUNS) break;
            const int down = item % (ROWS / RUN) * RUN, across = item / (ROWS / RUN);
            const index_t row = first_row + down, column = first_column + across;
            if (row < rows && column < columns) {
                store_vector(z_ptr + (column * z_stride_N + row), z_tile_t::read<RUN>(z_tile, down, across));
            }
        }
    }
}
