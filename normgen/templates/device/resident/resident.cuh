#pragma once
#include "normgen/accumulators.cuh"
#include "normgen/cooperative.cuh"
#include "normgen/folded.cuh"
#include "normgen/math.cuh"
#include "normgen/second_stage.cuh"
#include "normgen/team.cuh"
#include "normgen/vector.cuh"

// ---- Resident slices: a segment held on chip until its blocks have exchanged statistics ---------
// The blocks of a segment exchange as those of a split row do (cooperative.cuh): through memory, by flag
// words, and none waits for one that may not run. What they publish is a row of moments: per
// element of a row, or per group of neighbours.

constexpr int ASKED_FIRST = 8;  // rows that are loaded before the first is there, at least
constexpr int KEPT_PARTS = 8;   // parts that a thread merges without fetching them twice

__device__ constexpr int smaller(int a, int b) { return a < b ? a : b; }

// Chan merge over neighbouring lanes, of ROUNDS parts each, valid in all of them, in two passes.
// The first finds the mean, about the pivot of the first part, which is finite. `part(k)` is read
// twice; empty parts count nothing.
template <int LANES, int ROUNDS, class Get>
__device__ __forceinline__ PartMoments merged_over_lanes(Get part) {
    constexpr int TOGETHER = ROUNDS <= KEPT_PARTS ? ROUNDS : 4;
    float count = 0.f, sum = 0.f, squares = 0.f;
    const float origin = __shfl_sync(0xffffffffu, part(0).pivot, threadIdx.x % 32 / LANES * LANES);
#pragma unroll TOGETHER
    for (int k = 0; k < ROUNDS; ++k) {
        const PartMoments one = part(k);
        count += one.count;
        sum += one.count > 0.f ? one.count * ((one.pivot - origin) + one.residual) : 0.f;
    }
    const float inverse = normal_reciprocal(lanes_reduce<LANES, Sum>(count));
    const float mean = origin + lanes_reduce<LANES, Sum>(sum) * inverse;
    const float about = is_finite(mean) ? mean : origin;
    sum = 0.f;
#pragma unroll TOGETHER
    for (int k = 0; k < ROUNDS; ++k) {
        const PartMoments one = part(k);
        const float apart = (one.pivot - about) + one.residual;
        sum += one.count > 0.f ? one.count * apart : 0.f;
        squares += one.count > 0.f ? one.squares + one.count * square(apart) : 0.f;
    }
    sum = lanes_reduce<LANES, Sum>(sum);
    const float residual = sum * inverse;
    return {
        about, residual, maximum(lanes_reduce<LANES, Sum>(squares) - sum * residual, 0.f),
        lanes_reduce<LANES, Sum>(count)};
}

// Moments of groups of neighbouring columns of a thread, over up to 128 rows: summed about the mean
// of its first row's. An unlucky first row is one of many threads', and squares about it are at
// most as many times the true ones as there are rows. This takes fewer instructions than a moving
// pivot per column.
template <class Layout, class Fold, int N, int ITEMS, int FOLD> struct SliceMoments {
    float pivot[ITEMS * N] = {}, sum[ITEMS * N] = {}, squares[ITEMS * N] = {};
    int lane;
    unsigned int count = 0;
    // known to the compiler where the count is not: rows beyond the last follow all others
    bool first = true;

    __device__ __forceinline__ explicit SliceMoments(int lane) : lane(lane) {}

    __device__ __forceinline__ void add(int column, float value) {
        if (first) {
            sum[column] = value;
        } else {
            const float c = value - pivot[column];
            sum[column] += c;
            squares[column] += square(c);
        }
    }
    __device__ __forceinline__ void end_row() {
        ++count;
        if (!first) return;
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) {
            const int begin = begin_of(Layout::column(item, lane));
#pragma unroll
            for (int piece = 0; piece < Fold::PIECES; ++piece) {
                float total = 0.f;
#pragma unroll
                for (int i = 0; i < N; ++i) total += in_piece(piece, begin, i) ? sum[item * N + i] : 0.f;
                const float mean = total * normal_reciprocal(float(columns_of(piece, begin)));
                const float at = is_finite(mean) ? mean : 0.f;
#pragma unroll
                for (int i = 0; i < N; ++i) {
                    pivot[item * N + i] = in_piece(piece, begin, i) ? at : pivot[item * N + i];
                }
            }
#pragma unroll
            for (int i = item * N; i < (item + 1) * N; ++i) sum[i] -= pivot[i], squares[i] = square(sum[i]);
        }
    }

    // Before what comes next is waited for: the compiler would wait at once, and accumulate nothing
    // meanwhile. (It may do anything with that number.)
    __device__ __forceinline__ void so_far() const {
        if (__float_as_uint(sum[0]) == 0x7fc0beefu) __threadfence_block();
    }

    // Where in its group a vector begins, which of its columns belong to a piece, and how many.
    static __device__ __forceinline__ int begin_of(int column) {
        return Fold::LATEST == 0 ? 0 : column % FOLD;
    }
    static __device__ __forceinline__ bool in_piece(int piece, int begin, int i) {
        return Fold::PIECES == 1 || (begin + i >= piece * FOLD && begin + i < (piece + 1) * FOLD);
    }
    static __device__ __forceinline__ int columns_of(int piece, int begin) {
        const int from = piece * FOLD > begin ? piece * FOLD : begin,
                  to = (piece + 1) * FOLD < begin + N ? (piece + 1) * FOLD : begin + N;
        return to > from ? to - from : 0;
    }

    // Leaves a part for each group that the vector at `column` may touch, in the layout of
    // `FoldedColumns`.
    __device__ __forceinline__ void leave(PartMoments* parts, int team, int item, int column) const {
        const int begin = begin_of(column);
#pragma unroll
        for (int piece = 0; piece < Fold::PIECES; ++piece) {
            PartMoments part;
            float total = 0.f;
#pragma unroll
            for (int i = 0; i < N; ++i) {
                const bool own = in_piece(piece, begin, i);
                part.pivot = own ? pivot[item * N + i] : part.pivot;
                total += own ? sum[item * N + i] : 0.f;
                part.squares += own ? squares[item * N + i] : 0.f;
            }
            part.count = float(columns_of(piece, begin)) * float(count);
            part.residual = total * normal_reciprocal(part.count);
            part.squares = maximum(part.squares - total * part.residual, 0.f);
            parts[Fold::place(piece, team, column / N)] = part.count > 0.f ? part : PartMoments{};
        }
    }

    // The moments of every group, from the parts of all threads.
    template <int TEAMS, int THREADS>
    static __device__ __forceinline__ void merge(const PartMoments* parts, MomentsRow<Fold::GROUPS> into) {
        constexpr int FOUND = TEAMS * Fold::SPAN,
                      ROOM = THREADS / Fold::GROUPS < 32 ? THREADS / Fold::GROUPS : 32;
        constexpr int LANES = power_within(FOUND < ROOM ? FOUND : ROOM);
        const int lane = threadIdx.x % LANES;
        __syncthreads();
        for (int first = 0; first < Fold::GROUPS; first += THREADS / LANES) {
            const int group = first + threadIdx.x / LANES;
            const int start = group * FOLD / N;
            const PartMoments all = merged_over_lanes<LANES, (FOUND + LANES - 1) / LANES>([&](int k) {
                const int number = k * LANES + lane, vector = start + number % Fold::SPAN;
                const bool there = group < Fold::GROUPS && number < FOUND && vector * N < (group + 1) * FOLD;
                return there ? parts[Fold::place(group - vector * N / FOLD, number / Fold::SPAN, vector)]
                             : PartMoments{};
            });
            if (lane == 0 && group < Fold::GROUPS) into.write(group, all);
        }
    }
};

// The mean in float32, and the sums about that.
__device__ __forceinline__ FinalMoments final_moments(const PartMoments& all) {
    const float mean = all.pivot + all.residual, missed = if_finite((all.pivot - mean) + all.residual);
    return {mean, missed * all.count, all.squares + square(missed) * all.count, all.count};
}

// One of the blocks of a segment, whose members publish COUNT parts each.
template <class Part, int MEMBERS, int THREADS, int COUNT>
struct SegmentExchange : CooperativeRow<MEMBERS, THREADS, 1> {
    using Rows = CooperativeRow<MEMBERS, THREADS, 1>;
    Part* found;  // [member][part]

    template <class Index>
    __device__ __forceinline__ SegmentExchange(
        CooperativeScratch<THREADS, 1>& scratch, word_t* words, float* published, Index segment, int home)
        : Rows(scratch, words, published, segment, home),
          found(reinterpret_cast<Part*>(published) + segment * (MEMBERS * COUNT)) {}

    // A zero that is known only after every load of the block has been issued, so that nothing is
    // computed from the vectors before that. (The compiler, short of registers, would wait for the
    // first of sixteen vectors before it loads the second.)
    __device__ __forceinline__ void open() const {
        // or it would be known without asking
        if (threadIdx.x == 0) this->scratch.whole[0] = __int_as_float(forgotten(0));
    }
    __device__ __forceinline__ unsigned int all_asked() const {
        __syncthreads();
        return __float_as_uint(this->scratch.whole[0]);
    }

    // Publishes `own(k)` of this slice from shared memory. Afterwards either the block is away, or
    // the parts of all members may be read, and that shared memory written again.
    template <class Get> __device__ __forceinline__ void publish(Get own) {
        __syncthreads();
        if (threadIdx.x < 32) {
            leave(own);
            const int missing = this->look();
            if (threadIdx.x == 0) {
                this->scratch.away = missing < MEMBERS || this->slice != this->home;
                this->scratch.next = missing < MEMBERS ? (this->home + missing) % MEMBERS : this->home;
            }
        }
        __syncthreads();
        this->go_on();
    }

    // By the first warp. As in `CooperativeRow`, a part that has come in the meantime is left as it is: its
    // owner may overwrite what was read.
    template <class Get> __device__ __forceinline__ void leave(Get own) const {
        int there = 0;
        if (threadIdx.x == 0) there = this->slice == this->home ? this->come : this->has_come();
        if (__shfl_sync(0xffffffffu, there, 0)) return;
        for (int k = threadIdx.x; k < COUNT; k += 32) found[this->slice * COUNT + k] = own(k);
        __syncwarp();
        if (threadIdx.x == 0) set_bit(this->words + this->slice / WORD_BITS, this->slice % WORD_BITS);
    }
};

// The same for moments of GROUPS: pivot, residual, squares and count at once.
template <int MEMBERS, int THREADS, int GROUPS>
struct MomentsExchange : SegmentExchange<float4, MEMBERS, THREADS, GROUPS> {
    using SegmentExchange<float4, MEMBERS, THREADS, GROUPS>::SegmentExchange;

    __device__ __forceinline__ void publish(const float* own) {
        const auto moments = [&](int k) {
            return make_float4(own[k], own[GROUPS + k], own[2 * GROUPS + k], own[3 * GROUPS]);
        };
        SegmentExchange<float4, MEMBERS, THREADS, GROUPS>::publish(moments);
    }

    __device__ __forceinline__ PartMoments part_of(int member, int group) const {
        const float4 all = __ldcg(this->found + member * GROUPS + group);
        return {all.x, all.y, all.z, all.w};
    }

    // The moments of each group of the segment, by one thread: `visit(group, moments)`.
    // Neighbouring threads fetch neighbouring groups, each of the SUBS-th part of the members, so
    // that accesses are whole sectors. What these come to lies in shared memory, which has ROOM for
    // so many, and is merged by as many lanes.
    template <int ROOM, class Visit>
    __device__ __forceinline__ void merge(PartMoments* room, Visit visit) const {
        constexpr int SUBS = power_within(
            smaller(smaller(THREADS / GROUPS, ROOM / (GROUPS + 1)), smaller(MEMBERS, 32)));
        if constexpr (SUBS == 1) {
            for (int first = 0; first < GROUPS; first += THREADS) {
                const int group = first + int(threadIdx.x);
                const PartMoments all = merged_members<1>(group, 0);
                if (group < GROUPS) visit(group, final_moments(all));
            }
        } else {
            const int fetched = threadIdx.x % GROUPS, sub = threadIdx.x / GROUPS, lane = threadIdx.x % SUBS;
            const PartMoments some = merged_members<SUBS>(fetched, sub);
            if (sub < SUBS) room[sub * (GROUPS + 1) + fetched] = some;
            __syncthreads();
            for (int first = 0; first < GROUPS; first += THREADS / SUBS) {
                const int group = first + int(threadIdx.x) / SUBS;
                const auto part = [&](int) {
                    return group < GROUPS ? room[lane * (GROUPS + 1) + group] : PartMoments{};
                };
                const PartMoments all = merged_over_lanes<SUBS, 1>(part);
                if (lane == 0 && group < GROUPS) visit(group, final_moments(all));
            }
        }
    }

    // The parts of a group that every SUBS-th member from `sub` on has published.
    template <int SUBS> __device__ __forceinline__ PartMoments merged_members(int group, int sub) const {
        constexpr int ROUNDS = (MEMBERS + SUBS - 1) / SUBS;
        const auto part = [&](int k) {
            const int member = k * SUBS + sub;
            const bool there = sub < SUBS && member < MEMBERS && group < GROUPS;
            return there ? part_of(member, group) : PartMoments{};
        };
        if constexpr (ROUNDS <= KEPT_PARTS) {
            PartMoments kept[ROUNDS];
#pragma unroll
            for (int k = 0; k < ROUNDS; ++k) kept[k] = part(k);
            return merged_over_lanes<1, ROUNDS>([&](int k) { return kept[k]; });
        } else {
            return merged_over_lanes<1, ROUNDS>(part);
        }
    }
};

// A vector that is loaded before the next barrier; each is read once. The second variant waits for
// a zero.
template <int N, class T> __device__ __forceinline__ Vector<T, N> ask_vector(const T* address) {
    using V = Vector<T, N>;
    V vector;
#pragma unroll
    for (int i = 0; i < V::WORDS; ++i) {
        vector.word[i] = __ldcg(reinterpret_cast<const typename V::word_t*>(address) + i);
    }
    return vector;
}
template <class T, int N> __device__ __forceinline__ void hold_back(Vector<T, N>& vector, unsigned int zero) {
    if constexpr (Vector<T, N>::WORD_BYTES >= 4) {
        auto* parts = reinterpret_cast<unsigned int*>(vector.word);
#pragma unroll
        for (int i = 0; i < Vector<T, N>::BYTES / 4; ++i) parts[i] ^= zero;
    } else {
        vector.word[0] ^= zero;
    }
}

// A vector of shared memory, or of any memory that is written meanwhile.
template <int N> __device__ __forceinline__ Vector<float, N> read_vector(const float* at) {
    using V = Vector<float, N>;
    V vector;
#pragma unroll
    for (int i = 0; i < V::WORDS; ++i) vector.word[i] = reinterpret_cast<const typename V::word_t*>(at)[i];
    return vector;
}
