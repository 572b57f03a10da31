constexpr int THREADS = 224;  // threads of a block
constexpr int MIN_BLOCKS = 1;  // blocks per multiprocessor that registers are to be there for
constexpr int TEAM = 7;  // threads of a thread group
constexpr int TEAMS = 32;  // thread groups of a block
constexpr int MEMBERS = 13;  // blocks that share a row or a segment
constexpr int VEC = 1;  // elements of a vector
constexpr int ITEMS = 1;  // vectors of a thread
constexpr int DEPTH = 4;  // rows that a thread group asks for together
constexpr int LENGTH = 7;  // elements of a row
constexpr int SLOTS = 0;  // vectors that shared memory holds for each thread, or steps for a block
constexpr int AGAIN = 0;  // rows that are read a second time
constexpr bool WHOLE = false;  // whether every thread has as many rows as the others
using index_t = int;  // types of row numbers and strides, and of where rows begin
// type of this operand's elements
using x_t = __nv_bfloat16;
using y_t = __nv_bfloat16;
using mu_t = float;
using rstd_t = float;

// save mu[C]: f32 = sum[...](x) / size[...]
// save rstd[C]: f32 = rsqrt(sum[...]((x - mu)^2) / size[...] + eps)
// output y[..., C]: like x = (x - mu) * rstd
//
// The rows of a band are dealt out to MEMBERS blocks. Each reads its slice, holds it in registers and shared
// memory (where these do not suffice, all but rows in between), and exchanges statistics with the others
// through memory. Then it applies them to what it holds, and to the rest, which it reads again, the last rows
// first.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) last_forward_resident(
    const x_t* x_ptr,
    y_t* __restrict__ y_ptr,
    mu_t* __restrict__ mu_ptr,
    rstd_t* __restrict__ rstd_ptr,
    index_t x_stride_rest,
    index_t y_stride_rest,
    index_t size_rest,
    float eps,
    index_t rows,
    word_t* words,
    float* published) {
    extern __shared__ __align__(128) unsigned char smem[];
    __shared__ CooperativeScratch<THREADS, 1> scratch;
    using Layout = RowPlaces<TEAM, VEC, ITEMS, LENGTH>;
    using Fold = FoldedColumns<LENGTH, VEC, TEAMS, 1>;
    using Slice = SliceMoments<Layout, Fold, VEC, ITEMS, 1>;
    constexpr bool live = true;
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
    x_ptr += band * LENGTH;
    y_ptr += band * LENGTH;
    mu_ptr += band * LENGTH;
    rstd_ptr += band * LENGTH;
    MomentsExchange<MEMBERS, THREADS, Fold::GROUPS> exchange(scratch, words, published, band, home);
    using x_pipeline_t = Pipeline<x_t, VEC, THREADS>;
    unsigned char* const x_pipeline = smem;
    PartMoments* const parts =
        reinterpret_cast<PartMoments*>(smem + SLOTS * ITEMS * VEC * THREADS * int(sizeof(x_t)));
    float* const table = reinterpret_cast<float*>(parts + Fold::PIECES * TEAMS * Fold::VECTORS);
    // rows of a thread group: slices take turns, so that rows missing at the end are missing in all
    constexpr int APART = TEAMS * MEMBERS;
    // how many rows of a slice this thread group has: one number, in place of one predicate per row
    const auto rows_from = [&](index_t first) {
        return WHOLE ? DEPTH : int((rows - first - team + (APART - 1)) / APART);
    };
    exchange.open();

    Vector<x_t, VEC> x_batch[HELD][ITEMS];
    do {
        const index_t first = index_t(exchange.slice) * TEAMS;
        const int mine = rows_from(first);
#pragma unroll
        for (int slot = 0; slot < HELD; ++slot) {
            [[maybe_unused]] const index_t row = first + slot * APART + team;
            if (slot < mine) {
                Vector<x_t, VEC>(&x_words)[ITEMS] = x_batch[slot];
#pragma unroll
                for (int item = 0; item < ITEMS; ++item) {
                    const int column = Layout::column(item, lane);
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
                    x_pipeline_t::fill(x_pipeline, (place) * ITEMS + item,
                        x_ptr + row * x_stride_rest + column);
                }
            }
            async_commit();
        }
        const unsigned int zero = exchange.all_asked();
        exchange.begin();
        Slice x_moments(lane);
#pragma unroll
        for (int turn = 0; turn < HELD; ++turn) {
            {
                const int slot = turn;
                [[maybe_unused]] const index_t row = first + slot * APART + team;
                if (slot < mine) {
                    Vector<x_t, VEC>(&x_words)[ITEMS] = x_batch[slot];
#pragma unroll
                    for (int item = 0; item < ITEMS; ++item) {
                        if (slot == 0) hold_back(x_words[item], zero);
                    }
                    x_moments.first = slot == 0;
                    // results
#pragma unroll
                    for (int item = 0; item < ITEMS; ++item) {
                        float x[VEC];
                        unpack(x_words[item], x);
#pragma unroll
                        for (int i = 0; i < VEC; ++i) {
                            if (live) x_moments.add(item * VEC + i, x[i]);
                        }
                    }
                    if (live) x_moments.end_row();
                }
            }
            if (EARLY + turn < SLOTS) {
                const int slot = HELD + EARLY + turn;
                [[maybe_unused]] const index_t row = first + slot * APART + team;
                if (slot < mine) {
#pragma unroll
                    for (int item = 0; item < ITEMS; ++item) {
                        const int column = Layout::column(item, lane);
                        x_pipeline_t::fill(x_pipeline, (EARLY + turn) * ITEMS + item,
                            x_ptr + row * x_stride_rest + column);
                    }
                }
                async_commit();
            }
        }
        x_moments.first = false;
        x_moments.so_far();
        int place = 0;
#pragma unroll UNROLLED
        for (int turn = 0; turn < PLACED; ++turn) {
            {
                const int slot = HELD + turn;
                async_wait<PENDING>();
                [[maybe_unused]] const index_t row = first + slot * APART + team;
                if (slot < mine) {
                    Vector<x_t, VEC> x_words[ITEMS];
#pragma unroll
                    for (int item = 0; item < ITEMS; ++item) {
                        x_words[item] = x_pipeline_t::read(x_pipeline, place * ITEMS + item);
                    }
                    // results
#pragma unroll
                    for (int item = 0; item < ITEMS; ++item) {
                        float x[VEC];
                        unpack(x_words[item], x);
#pragma unroll
                        for (int i = 0; i < VEC; ++i) {
                            if (live) x_moments.add(item * VEC + i, x[i]);
                        }
                    }
                    if (live) x_moments.end_row();
                }
            }
            if (turn < PLACED - STAGES) {
                const int slot = HELD + STAGES + turn;
                [[maybe_unused]] const index_t row = first + slot * APART + team;
                if (slot < mine) {
#pragma unroll
                    for (int item = 0; item < ITEMS; ++item) {
                        const int column = Layout::column(item, lane);
                        x_pipeline_t::fill(x_pipeline, (turn < FIXED ? turn + STAGES : place) * ITEMS + item,
                            x_ptr + row * x_stride_rest + column);
                    }
                }
            }
            async_commit();
            place = place == SLOTS - 1 ? FIXED : place + 1;
        }

        // this slice's contribution to the moments of neighbours
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) {
            const int column = Layout::column(item, lane);
            x_moments.leave(parts, team, item, column);
        }
        Slice::merge<TEAMS, THREADS>(parts, MomentsRow<Fold::GROUPS>{table});
        exchange.publish(table);
    } while (exchange.away);
    exchange.clear(exchange.depart());

    // what rows share

    // from the moments of the band: what this block needs, and results (first block)
    using t1_t = float;
    t1_t* const t1_ptr = table + 0 * Fold::GROUPS;
    using t2_t = float;
    t2_t* const t2_ptr = table + 1 * Fold::GROUPS;
    using t3_t = float;
    t3_t* const t3_ptr = table + 2 * Fold::GROUPS;
    exchange.merge<Fold::PIECES * TEAMS * Fold::VECTORS>(parts,
        [&](int column, const FinalMoments& x_moments) {
            const float mu = x_moments.mean;  // spec.norm:6
            // spec.norm:7
            const float rstd = rsqrtf(eps
                + maximum(x_moments.squares - square(x_moments.centred) * (1.f / float(size_rest)), 0.f)
                * (1.f / float(size_rest)));
            {
                store_scalar<false>(t1_ptr + column, mu);
            }
            {
                store_scalar<false>(t2_ptr + column, x_moments.centred * (1.f / float(size_rest)));
            }
            {
                store_scalar<false>(t3_ptr + column, rstd);
            }
            if (home == 0) {
                store_scalar<false>(mu_ptr + column, mu);
            }
            if (home == 0) {
                store_scalar<false>(rstd_ptr + column, rstd);
            }
    });
    __syncthreads();
    Vector<t1_t, VEC> t1_words[ITEMS];
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int column = Layout::column(item, lane);
        t1_words[item] = read_vector<VEC>(t1_ptr + column);
    }
    Vector<t2_t, VEC> t2_words[ITEMS];
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int column = Layout::column(item, lane);
        t2_words[item] = read_vector<VEC>(t2_ptr + column);
    }
    Vector<t3_t, VEC> t3_words[ITEMS];
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int column = Layout::column(item, lane);
        t3_words[item] = read_vector<VEC>(t3_ptr + column);
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
                Vector<x_t, VEC> x_words[ITEMS];
#pragma unroll
                for (int item = 0; item < ITEMS; ++item) {
                    x_words[item] = x_pipeline_t::read(x_pipeline, place * ITEMS + item);
                }
                // results
#pragma unroll
                for (int item = 0; item < ITEMS; ++item) {
                    const int column = Layout::column(item, lane);
                    float t3[VEC];
                    unpack(t3_words[item], t3);
                    float t2[VEC];
                    unpack(t2_words[item], t2);
                    float x[VEC];
                    unpack(x_words[item], x);
                    float t1[VEC];
                    unpack(t1_words[item], t1);
                    float y_out[VEC];
#pragma unroll
                    for (int i = 0; i < VEC; ++i) {
                        y_out[i] = t3[i] * ((x[i] - t1[i]) - t2[i]);  // spec.norm:8
                    }
                    if (live) {
                        const Vector<y_t, VEC> packed = pack<y_t>(y_out);
                        store_vector(y_ptr + row * y_stride_rest + column, packed);
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
            Vector<x_t, VEC>(&x_words)[ITEMS] = x_batch[slot];
#pragma unroll
            for (int item = 0; item < ITEMS; ++item) {
                keep_packed(x_words[item]);
            }
            // results
#pragma unroll
            for (int item = 0; item < ITEMS; ++item) {
                const int column = Layout::column(item, lane);
                float t3[VEC];
                unpack(t3_words[item], t3);
                float t2[VEC];
                unpack(t2_words[item], t2);
                float x[VEC];
                unpack(x_words[item], x);
                float t1[VEC];
                unpack(t1_words[item], t1);
                float y_out[VEC];
#pragma unroll
                for (int i = 0; i < VEC; ++i) {
                    y_out[i] = t3[i] * ((x[i] - t1[i]) - t2[i]);  // spec.norm:8
                }
                if (live) {
                    const Vector<y_t, VEC> packed = pack<y_t>(y_out);
                    store_vector(y_ptr + row * y_stride_rest + column, packed);
                }
            }
        }
    }
}
