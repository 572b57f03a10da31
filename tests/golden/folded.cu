#include "normgen/folded.cuh"
#include "normgen/programmatic.cuh"
#include "normgen/row_pipeline.cuh"

// A launch sets:
//   THREADS, MIN_BLOCKS, CLUSTER_DIMS, TEAM, TEAMS, VEC, ITEMS, LENGTH, STAGES, REALIGNED, RELOAD, BULK,
//   PROGRAMMATIC, index_t, offset_t, size_C, x_t, WANT_MU, WANT_VAR

[[maybe_unused]] constexpr bool WANT_X_MOMENTS = WANT_MU || WANT_VAR;
// norm stats axis G = 2 input x[B, ..., (G C)]
// save mu[B, G]: f32 = sum[C, ...](x) / (size[...] * size[C])
// output var[B, G]: f32 = sum[C, ...]((x - mu)^2) / (size[...] * size[C])
//
// Persistent blocks walk the rows, strided by the grid, so that all of them read one moving window of memory.
// Later rows are copied into a multistage pipeline in shared memory; column sums stay in registers, and leave
// as one partial per block.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) CLUSTER_DIMS stats_pipeline(
    const x_t* x_ptr,
    float* x_moments_partial,
    offset_t x_stride_B,
    index_t x_stride_rest,
    index_t size_B,
    index_t rows,
    int blocks_per_segment) {
    extern __shared__ __align__(128) unsigned char smem[];
    __shared__ arrival_t landed[BULK ? STAGES : 1];
    using Layout = RowLayout<TEAM, THREADS, VEC, ITEMS, LENGTH, REALIGNED>;
    const int lane = lane_of_team<TEAM, THREADS>();
    const int team = threadIdx.x / TEAM;
    const index_t step = index_t(blocks_per_segment) * TEAMS;

    // where rows arrive as slices, one per block: this block's slice
    const int start = Layout::column(0, lane - int(threadIdx.x));
    const int slice = LENGTH - start < Layout::SLICE * VEC ? LENGTH - start : Layout::SLICE * VEC;
    int parity = 0;
    if constexpr (BULK) {
        if (threadIdx.x == 0) open_arrivals(landed, STAGES);
    }

    // the pipeline: STAGES rows of every operand that changes from row to row, each thread's vectors in its
    // own slots
    using x_pipeline_t = RowPipeline<x_t, VEC, TEAM, THREADS, ITEMS, LENGTH, BULK, REALIGNED>;
    unsigned char* const x_pipeline = smem;

    // which rows are next: this block goes from its part of one segment to that of another
    const index_t units = index_t(size_B) * blocks_per_segment;
    Walk<TEAMS, index_t> ahead(unit_of_block<TEAM, THREADS, index_t>(), blocks_per_segment);
    const index_t together = units_together<TEAM, THREADS, index_t>();
    // (thread groups beyond the last row take zeros: results may be in place, so that no row is read by two
    // groups)
    const auto fill = [&](int stage) {
        const index_t unit = ahead.unit, segment = ahead.segment, first = ahead.first;
        ahead.go_on(rows, together, blocks_per_segment);
        [[maybe_unused]] const index_t at_B = segment;
        if constexpr (BULK) {
            if (threadIdx.x != 0) return;
            if (unit >= units || slice <= 0) {
                return bulk_commit();
            }
            const index_t row = first;
            expect_bytes(&landed[stage], slice * (int(sizeof(x_t))));
            bulk_copy(x_pipeline + stage * ITEMS * VEC * THREADS * int(sizeof(x_t)),
                x_ptr + at_B * x_stride_B + row_offset<offset_t>(row, x_stride_rest) + start,
                slice * int(sizeof(x_t)), &landed[stage]);
            return bulk_commit();
        }
        if constexpr (REALIGNED) __syncwarp();  // the slot may still be read
        if (unit < units && first + team < rows) {
            const index_t row = first + team;
            x_pipeline_t::fill(x_pipeline, stage,
                x_ptr + at_B * x_stride_B + row_offset<offset_t>(row, x_stride_rest), lane, row + 1 == rows);
        } else if (TEAMS > 1 && unit < units && first < rows) {
            x_pipeline_t::clear(x_pipeline, stage);
        }
        async_commit();
    };
    programmatic_wait<PROGRAMMATIC>();
    programmatic_launch<PROGRAMMATIC>();
#pragma unroll
    for (int stage = 0; stage < STAGES; ++stage) fill(stage);
    int stage = 0;
    for (index_t unit = unit_of_block<TEAM, THREADS, index_t>(); unit < units; unit += together) {
        const index_t segment = unit / blocks_per_segment;
        [[maybe_unused]] const index_t at_B = segment;
        // what all rows of this block share
        ColumnMoments<ITEMS * VEC> x_moments;

        for (index_t first = unit % blocks_per_segment * TEAMS; first < rows; first += step) {
            const bool live = TEAMS == 1 || first + team < rows;
            [[maybe_unused]] const index_t row = live ? first + team : rows - 1;

            if constexpr (!BULK) async_wait<STAGES - 1>();
            else if (slice > 0) bulk_wait<STAGES - 1>(&landed[stage], parity);
            if constexpr (REALIGNED) __syncwarp();  // lanes read what others copied
            Vector<x_t, VEC, REALIGNED> x_words[ITEMS];
#pragma unroll
            for (int item = 0; item < ITEMS; ++item) {
                const int column = Layout::column(item, lane);
                if (Layout::has(item, lane, column)) {
                    if constexpr (!RELOAD) x_words[item] = x_pipeline_t::read(x_pipeline, stage, item, lane);
                }
            }
            if constexpr (!RELOAD)
                Layout::cut_out(x_words,
                    x_ptr + at_B * x_stride_B + row_offset<offset_t>(row, x_stride_rest));
            if constexpr (!RELOAD && !BULK) fill(stage);

            // results
#pragma unroll
            for (int item = 0; item < ITEMS; ++item) {
                const int column = Layout::column(item, lane);
                if (Layout::has(item, lane, column)) {
                    float x[VEC];
                    if constexpr (RELOAD) x_words[item] = x_pipeline_t::read(x_pipeline, stage, item, lane);
                    if constexpr (RELOAD)
                        Layout::cut_out(x_words[item],
                            x_ptr + at_B * x_stride_B + row_offset<offset_t>(row, x_stride_rest));
                    unpack(x_words[item], x);
#pragma unroll
                    for (int i = 0; i < VEC; ++i) {
                        if (WANT_X_MOMENTS && live) x_moments.add(item * VEC + i, x[i]);
                    }
                }
            }
            if (WANT_X_MOMENTS && live) x_moments.end_row();
            if constexpr (RELOAD) {
                if constexpr (BULK) __syncthreads();  // every warp has read what it has of the row
                fill(stage);
            }
            stage = stage + 1 == STAGES ? 0 : stage + 1;
            if (stage == 0) parity ^= 1;
        }

        // this block's partial of every accumulator: its thread groups are combined in order
        PartMoments* const parts = reinterpret_cast<PartMoments*>(smem);
        if constexpr (WANT_X_MOMENTS) {
            static_assert(TEAM <= THREADS, "a block has whole rows");
            using Fold = FoldedColumns<LENGTH, VEC, TEAMS, size_C>;
            const float inverse = 1.f / float(x_moments.count);
            __syncthreads();  // the pipeline, or what was gathered before, may still be in use
#pragma unroll
            for (int item = 0; item < ITEMS; ++item) {
                const int column = Layout::column(item, lane);
                if (Layout::has(item, lane, column)) {
                    Fold::leave(parts, team, column, [&](int i) {
                            if (Layout::beyond(item, column + i)) return PartMoments{};
                            return x_moments.settled(item * VEC + i, inverse);
                    });
                }
            }
            Fold::merge<THREADS>(parts, {x_moments_partial + unit * MomentsRow<Fold::GROUPS>::SIZE});
        }
    }
}

#include "normgen/programmatic.cuh"
#include "normgen/second_stage.cuh"

// A launch sets:
//   THREADS, LENGTH, TILE, SHARES, PROGRAMMATIC, index_t, offset_t, size_C, WANT_MU, WANT_VAR, mu_t, var_t

[[maybe_unused]] constexpr bool WANT_X_MOMENTS = WANT_MU || WANT_VAR;
// norm stats axis G = 2 input x[B, ..., (G C)]
// save mu[B, G]: f32 = sum[C, ...](x) / (size[...] * size[C])
// output var[B, G]: f32 = sum[C, ...]((x - mu)^2) / (size[...] * size[C])
//
// Combines the partials that the blocks of the row kernel left, TILE columns in SHARES warps. blockIdx.y is
// the group of results.
extern "C" __global__ void __launch_bounds__(THREADS) stats_second_stage(
    mu_t* __restrict__ mu_ptr,
    var_t* __restrict__ var_ptr,
    float* x_moments_partial,
    offset_t mu_stride_B,
    index_t mu_stride_G,
    offset_t var_stride_B,
    index_t var_stride_G,
    index_t size_B,
    index_t size_rest,
    int blocks_per_segment) {
    __shared__ PartMoments statistics[THREADS / 32][TILE];
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const index_t tile = index_t(blockIdx.x) * (THREADS / 32 / SHARES) + warp / SHARES;
    programmatic_wait<PROGRAMMATIC>();

    // mu, var
    if (blockIdx.y == 0) {
        if constexpr (WANT_X_MOMENTS) {
            constexpr int WIDTH = LENGTH / size_C;
            constexpr int TILES = (WIDTH + TILE - 1) / TILE;
            const index_t outer = tile / TILES;
            // nothing beyond the last
            const int column = (outer < size_B ? int(tile % TILES) * TILE : WIDTH) + lane % TILE;
            [[maybe_unused]] const index_t at_B = outer;
            [[maybe_unused]] const index_t at_G = column;
            const auto row_of = [&](index_t k) -> index_t {
                return outer * blocks_per_segment + k;
            };
            const FinalMoments x_moments = merge_partials<TILE, SHARES, WIDTH>(statistics, x_moments_partial,
                column, index_t(blocks_per_segment), row_of);
            if (warp % SHARES == 0 && lane < TILE && column < WIDTH) {
                const float mu = x_moments.mean;  // spec.norm:5
                // spec.norm:6
                const float var = maximum(x_moments.squares
                    - square(x_moments.centred) * (1.f / float(size_rest)) * (1.f / float(size_C)), 0.f)
                    * (1.f / float(size_rest)) * (1.f / float(size_C));
                if constexpr (WANT_MU)
                    store_scalar<false>(mu_ptr + at_B * mu_stride_B + at_G * mu_stride_G, mu);
                if constexpr (WANT_VAR)
                    store_scalar<false>(var_ptr + at_B * var_stride_B + at_G * var_stride_G, var);
            }
        }
    }
    programmatic_launch<PROGRAMMATIC>();
}
