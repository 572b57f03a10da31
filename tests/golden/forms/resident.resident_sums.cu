constexpr int THREADS = 224;  // threads of a block
constexpr int MIN_BLOCKS = 2;  // blocks per multiprocessor that registers are to be there for
constexpr int TEAM = 7;  // threads of a thread group
constexpr int TEAMS = 32;  // thread groups of a block
constexpr int MEMBERS = 26;  // blocks that share a row or a segment
constexpr int VEC = 1;  // elements of a vector
constexpr int ITEMS = 1;  // vectors of a thread
constexpr int DEPTH = 2;  // rows that a thread group asks for together
constexpr int LENGTH = 7;  // elements of a row
constexpr int SLOTS = 0;  // vectors that shared memory holds for each thread, or steps for a block
constexpr int AGAIN = 0;  // rows that are read a second time
constexpr bool WHOLE = false;  // whether every thread has as many rows as the others
using index_t = int;  // types of row numbers and strides, and of where rows begin
// type of this operand's elements
using dy_t = __nv_bfloat16;
using x_t = __nv_bfloat16;
using mu_t = float;
using rstd_t = float;
using dx_t = __nv_bfloat16;

// gradient dx[..., C]: like x = rstd * (dy - rstd^2 * sum[...](dy * (x - mu)) * (x - mu) / size[...] -
//     sum[...](dy) / size[...])
//
// The rows of a band are dealt out to MEMBERS blocks. Each reads its slice, holds it in registers and shared
// memory (where these do not suffice, all but rows in between), and sums it. What is linear in its sums it
// leaves in memory for the others. Then it applies the sums of all to what it holds, and to the rest, which
// it reads again, the last rows first.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) last_backward_resident(
    const dy_t* dy_ptr,
    const x_t* x_ptr,
    const mu_t* mu_ptr,
    const rstd_t* rstd_ptr,
    dx_t* __restrict__ dx_ptr,
    index_t dy_stride_rest,
    index_t x_stride_rest,
    index_t dx_stride_rest,
    index_t size_rest,
    index_t rows,
    word_t* words,
    float* published) {
    extern __shared__ __align__(128) unsigned char smem[];
    __shared__ CooperativeScratch<THREADS, 1> scratch;
    using Layout = RowPlaces<TEAM, VEC, ITEMS, LENGTH>;
    using Room = TeamRoom<LENGTH, TEAMS, THREADS>;
    constexpr bool live = true;
    constexpr int GROUPS = LENGTH / 1;
    constexpr int SIZE = 3 * GROUPS;  // what a member leaves
    constexpr int HELD = DEPTH - SLOTS - AGAIN;  // of a thread group's rows, in registers
    // through shared memory: the first and the last ones stay there
    constexpr int PLACED = SLOTS + AGAIN;      
    constexpr int UNROLLED = AGAIN > 0 ? 2 : PLACED + 1;
    // Rows that are loaded ahead. With more, threads stall on issuing loads when they could sum.
    constexpr int EARLY = smaller(SLOTS, HELD < ASKED_FIRST ? ASKED_FIRST - HELD : 0);
    // stages that row after row takes; other rows stay in theirs
    constexpr int STAGES = smaller(SLOTS, EARLY + HELD);
    constexpr int FIXED = SLOTS - STAGES;
    constexpr int PENDING = STAGES > 0 ? STAGES - 1 : 0;  // rows that need not be there when one is read
    const int lane = threadIdx.x % TEAM;
    const int team = threadIdx.x / TEAM;
    const index_t band = index_t(blockIdx.x) / MEMBERS;  // LENGTH neighbours in each row
    const int home = int(blockIdx.x % MEMBERS);
    dy_ptr += band * LENGTH;
    x_ptr += band * LENGTH;
    mu_ptr += band * LENGTH;
    rstd_ptr += band * LENGTH;
    dx_ptr += band * LENGTH;
    SegmentExchange<float, MEMBERS, THREADS, SIZE> exchange(scratch, words, published, band, home);
    using dy_pipeline_t = Pipeline<dy_t, VEC, THREADS>;
    constexpr int dy_pipeline_bytes = SLOTS * ITEMS * VEC * THREADS * int(sizeof(dy_t));
    unsigned char* const dy_pipeline = smem;
    using x_pipeline_t = Pipeline<x_t, VEC, THREADS>;
    constexpr int x_pipeline_bytes = SLOTS * ITEMS * VEC * THREADS * int(sizeof(x_t));
    unsigned char* const x_pipeline = dy_pipeline + dy_pipeline_bytes;
    float* const room = reinterpret_cast<float*>(x_pipeline + x_pipeline_bytes);
    float* const factors = room + Room::SIZE;  // of what is held, for each column
    float* const columns = factors + 3 * LENGTH;  // sums of this slice
    // what it leaves for the others
    float* const own = columns;
    // what all have left
    float* const totals = own + 3 * LENGTH;
    float* const table = totals + SIZE;
    // rows of a thread group: slices take turns, so that rows missing at the end are missing in all
    constexpr int APART = TEAMS * MEMBERS;
    // how many rows of a slice this thread group has: one number, in place of one predicate per row
    const auto rows_from = [&](index_t first) {
        return WHOLE ? DEPTH : int((rows - first - team + (APART - 1)) / APART);
    };
    exchange.open();

    Vector<dy_t, VEC> dy_batch[HELD][ITEMS];
    Vector<x_t, VEC> x_batch[HELD][ITEMS];
    // what rows share
    Vector<mu_t, VEC> mu_words[ITEMS];
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int column = Layout::column(item, lane);
        mu_words[item] = load_vector<VEC>(mu_ptr + column);
    }
    do {
        const index_t first = index_t(exchange.slice) * TEAMS;
        const int mine = rows_from(first);
#pragma unroll
        for (int slot = 0; slot < HELD; ++slot) {
            [[maybe_unused]] const index_t row = first + slot * APART + team;
            if (slot < mine) {
                Vector<dy_t, VEC>(&dy_words)[ITEMS] = dy_batch[slot];
                Vector<x_t, VEC>(&x_words)[ITEMS] = x_batch[slot];
#pragma unroll
                for (int item = 0; item < ITEMS; ++item) {
                    const int column = Layout::column(item, lane);
                    dy_words[item] = ask_vector<VEC>(dy_ptr + row * dy_stride_rest + column);
                    x_words[item] = ask_vector<VEC>(x_ptr + row * x_stride_rest + column);
                }
            }
        }
#pragma unroll
        for (int place = 0; place < EARLY; ++place) {
            const int slot = HELD + place;
            [[maybe_unused]] const index_t row = first + slot * APART + team;
            if (slot < mine) {
#pragma unroll
                for (int item = 0; item < ITEMS; ++item) {
                    const int column = Layout::column(item, lane);
                    dy_pipeline_t::fill(dy_pipeline, (place) * ITEMS + item,
                        dy_ptr + row * dy_stride_rest + column);
                    x_pipeline_t::fill(x_pipeline, (place) * ITEMS + item,
                        x_ptr + row * x_stride_rest + column);
                }
            }
            async_commit();
        }
        const unsigned int zero = exchange.all_asked();
        exchange.begin();
        float sum_x_minus_mu[ITEMS * VEC] = {};
        float sum_dy_x_minus_mu[ITEMS * VEC] = {};
        float sum_dy[ITEMS * VEC] = {};
#pragma unroll
        for (int turn = 0; turn < HELD; ++turn) {
            {
                const int slot = turn;
                [[maybe_unused]] const index_t row = first + slot * APART + team;
                if (slot < mine) {
                    Vector<dy_t, VEC>(&dy_words)[ITEMS] = dy_batch[slot];
                    Vector<x_t, VEC>(&x_words)[ITEMS] = x_batch[slot];
#pragma unroll
                    for (int item = 0; item < ITEMS; ++item) {
                        if (slot == 0) hold_back(dy_words[item], zero);
                        if (slot == 0) hold_back(x_words[item], zero);
                    }
                    // results
#pragma unroll
                    for (int item = 0; item < ITEMS; ++item) {
                        float x[VEC];
                        unpack(x_words[item], x);
                        float mu[VEC];
                        unpack(mu_words[item], mu);
                        float dy[VEC];
                        unpack(dy_words[item], dy);
#pragma unroll
                        for (int i = 0; i < VEC; ++i) {
                            const float x_minus_mu = x[i] - mu[i];
                            if (live) sum_x_minus_mu[item * VEC + i] += x_minus_mu;
                            if (live) sum_dy_x_minus_mu[item * VEC + i] += dy[i] * x_minus_mu;
                            if (live) sum_dy[item * VEC + i] += dy[i];
                        }
                    }
                }
            }
            if (EARLY + turn < SLOTS) {
                const int slot = HELD + EARLY + turn;
                [[maybe_unused]] const index_t row = first + slot * APART + team;
                if (slot < mine) {
#pragma unroll
                    for (int item = 0; item < ITEMS; ++item) {
                        const int column = Layout::column(item, lane);
                        dy_pipeline_t::fill(dy_pipeline, (EARLY + turn) * ITEMS + item,
                            dy_ptr + row * dy_stride_rest + column);
                        x_pipeline_t::fill(x_pipeline, (EARLY + turn) * ITEMS + item,
                            x_ptr + row * x_stride_rest + column);
                    }
                }
                async_commit();
            }
        }
        summed_so_far(sum_x_minus_mu[0]);
        int place = 0;
#pragma unroll UNROLLED
        for (int turn = 0; turn < PLACED; ++turn) {
            {
                const int slot = HELD + turn;
                async_wait<PENDING>();
                [[maybe_unused]] const index_t row = first + slot * APART + team;
                if (slot < mine) {
                    Vector<dy_t, VEC> dy_words[ITEMS];
                    Vector<x_t, VEC> x_words[ITEMS];
#pragma unroll
                    for (int item = 0; item < ITEMS; ++item) {
                        dy_words[item] = dy_pipeline_t::read(dy_pipeline, place * ITEMS + item);
                        x_words[item] = x_pipeline_t::read(x_pipeline, place * ITEMS + item);
                    }
                    // results
#pragma unroll
                    for (int item = 0; item < ITEMS; ++item) {
                        float x[VEC];
                        unpack(x_words[item], x);
                        float mu[VEC];
                        unpack(mu_words[item], mu);
                        float dy[VEC];
                        unpack(dy_words[item], dy);
#pragma unroll
                        for (int i = 0; i < VEC; ++i) {
                            const float x_minus_mu = x[i] - mu[i];
                            if (live) sum_x_minus_mu[item * VEC + i] += x_minus_mu;
                            if (live) sum_dy_x_minus_mu[item * VEC + i] += dy[i] * x_minus_mu;
                            if (live) sum_dy[item * VEC + i] += dy[i];
                        }
                    }
                }
            }
            if (turn < PLACED - STAGES) {
                const int slot = HELD + STAGES + turn;
                [[maybe_unused]] const index_t row = first + slot * APART + team;
                if (slot < mine) {
#pragma unroll
                    for (int item = 0; item < ITEMS; ++item) {
                        const int column = Layout::column(item, lane);
                        dy_pipeline_t::fill(dy_pipeline,
                            (turn < FIXED ? turn + STAGES : place) * ITEMS + item,
                            dy_ptr + row * dy_stride_rest + column);
                        x_pipeline_t::fill(x_pipeline, (turn < FIXED ? turn + STAGES : place) * ITEMS + item,
                            x_ptr + row * x_stride_rest + column);
                    }
                }
            }
            async_commit();
            place = place == SLOTS - 1 ? FIXED : place + 1;
        }

        // the sums of this slice
        add_teams<Layout, VEC, ITEMS, LENGTH, TEAMS, THREADS>(room, columns, sum_x_minus_mu, team, lane);
        add_teams<Layout, VEC, ITEMS, LENGTH, TEAMS, THREADS>(room, columns + 1 * LENGTH, sum_dy_x_minus_mu,
            team, lane);
        add_teams<Layout, VEC, ITEMS, LENGTH, TEAMS, THREADS>(room, columns + 2 * LENGTH, sum_dy, team, lane);
        exchange.publish([&](int k) { return own[k]; });
    } while (exchange.away);
    exchange.clear(exchange.depart());

    // from the sums of all members
    add_members<MEMBERS, SIZE, Room::SIZE, THREADS>(exchange.found, room, totals);
    for (int column = threadIdx.x; column < GROUPS; column += THREADS) {
        [[maybe_unused]] const index_t at_C = column;
        table[column] = totals[column] * (1.f / float(size_rest));  // t1
        // t2
        table[1 * GROUPS + column] = totals[column] * totals[2 * GROUPS + column] * (1.f / float(size_rest))
            - totals[1 * GROUPS + column];
        table[2 * GROUPS + column] = totals[2 * GROUPS + column] * (1.f / float(size_rest));  // t3
    }
    __syncthreads();

    // factors of what is held
    for (int column = threadIdx.x; column < LENGTH; column += THREADS) {
        [[maybe_unused]] const index_t at_C = column;
        const float rstd_ = (load_scalar(rstd_ptr + column));
        factors[column] = -table[2 * GROUPS + column] * rstd_
            - table[column] * (1.f / float(size_rest)) * table[1 * GROUPS + column] * rstd_ * rstd_ * rstd_;
        factors[1 * LENGTH + column] = rstd_;
        factors[2 * LENGTH + column] =
            table[1 * GROUPS + column] * (1.f / float(size_rest)) * rstd_ * rstd_ * rstd_;
    }
    __syncthreads();
    float factor_1[ITEMS * VEC];
    float factor_2[ITEMS * VEC];
    float factor_3[ITEMS * VEC];
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int column = Layout::column(item, lane);
        read_factors<VEC>(factors + column, factor_1, item);
        read_factors<VEC>(factors + 1 * LENGTH + column, factor_2, item);
        read_factors<VEC>(factors + 2 * LENGTH + column, factor_3, item);
    }

    const index_t first = index_t(home) * TEAMS;
    const int mine = rows_from(first);
    int place = FIXED + (PLACED - 1 - FIXED) % (STAGES > 0 ? STAGES : 1);
#pragma unroll UNROLLED
    for (int turn = PLACED - 1; turn >= 0; --turn) {
        {
            const int slot = HELD + turn;
            async_wait<PENDING>();
            [[maybe_unused]] const index_t row = first + slot * APART + team;
            if (slot < mine) {
                Vector<dy_t, VEC> dy_words[ITEMS];
                Vector<x_t, VEC> x_words[ITEMS];
#pragma unroll
                for (int item = 0; item < ITEMS; ++item) {
                    dy_words[item] = dy_pipeline_t::read(dy_pipeline, place * ITEMS + item);
                    x_words[item] = x_pipeline_t::read(x_pipeline, place * ITEMS + item);
                }
                // results
#pragma unroll
                for (int item = 0; item < ITEMS; ++item) {
                    const int column = Layout::column(item, lane);
                    float dy[VEC];
                    unpack(dy_words[item], dy);
                    float x[VEC];
                    unpack(x_words[item], x);
                    float mu[VEC];
                    unpack(mu_words[item], mu);
                    float dx_out[VEC];
#pragma unroll
                    for (int i = 0; i < VEC; ++i) {
                        dx_out[i] = factor_1[item * VEC + i] + factor_2[item * VEC + i] * dy[i]
                            + factor_3[item * VEC + i] * (x[i] - mu[i]);
                    }
                    if (live) {
                        const Vector<dx_t, VEC> packed = pack<dx_t>(dx_out);
                        store_vector(dx_ptr + row * dx_stride_rest + column, packed);
                    }
                }
            }
        }
        if (turn >= SLOTS) {
            const int slot = HELD + turn - STAGES;
            [[maybe_unused]] const index_t row = first + slot * APART + team;
            if (slot < mine) {
#pragma unroll
                for (int item = 0; item < ITEMS; ++item) {
                    const int column = Layout::column(item, lane);
                    dy_pipeline_t::fill(dy_pipeline, (place) * ITEMS + item,
                        dy_ptr + row * dy_stride_rest + column);
                    x_pipeline_t::fill(x_pipeline, (place) * ITEMS + item,
                        x_ptr + row * x_stride_rest + column);
                }
            }
        }
        async_commit();
        place = turn > FIXED && place == FIXED ? SLOTS - 1 : place - 1;
    }
#pragma unroll
    for (int slot = 0; slot < HELD; ++slot) {
        [[maybe_unused]] const index_t row = first + slot * APART + team;
        if (slot < mine) {
            Vector<dy_t, VEC>(&dy_words)[ITEMS] = dy_batch[slot];
            Vector<x_t, VEC>(&x_words)[ITEMS] = x_batch[slot];
#pragma unroll
            for (int item = 0; item < ITEMS; ++item) {
                keep_packed(dy_words[item]);
                keep_packed(x_words[item]);
            }
            // results
#pragma unroll
            for (int item = 0; item < ITEMS; ++item) {
                const int column = Layout::column(item, lane);
                float dy[VEC];
                unpack(dy_words[item], dy);
                float x[VEC];
                unpack(x_words[item], x);
                float mu[VEC];
                unpack(mu_words[item], mu);
                float dx_out[VEC];
#pragma unroll
                for (int i = 0; i < VEC; ++i) {
                    dx_out[i] = factor_1[item * VEC + i] + factor_2[item * VEC + i] * dy[i]
                        + factor_3[item * VEC + i] * (x[i] - mu[i]);
                }
                if (live) {
                    const Vector<dx_t, VEC> packed = pack<dx_t>(dx_out);
                    store_vector(dx_ptr + row * dx_stride_rest + column, packed);
                }
            }
        }
    }
}
