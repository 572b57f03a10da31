#pragma once
#include "normgen/accumulators.cuh"
#include "normgen/math.cuh"

// ---- Moments of neighbouring columns, merged within a block -------------------------------------

__device__ constexpr int common_divisor(int a, int b) { return b == 0 ? a : common_divisor(b, a % b); }

// The most runs of `other` columns that a run of `own` may touch, where both begin at multiples of
// their lengths.
__device__ constexpr int runs_touched(int own, int other) {
    const int unit = common_divisor(own, other);
    return own == unit ? 1 : (own / unit - 2) / (other / unit) + 2;
}

// The largest power of two that is at most `most`, and at least 1.
__device__ constexpr int power_within(int most, int from = 1) {
    return 2 * from > most ? from : power_within(most, 2 * from);
}

// LENGTH columns in vectors of N; every FOLD neighbours form a group with one value in the end. A
// thread merges its columns of a group in registers, and leaves a part for each group that its
// vector may touch. Then neighbouring lanes merge the parts of a group, those of all thread groups.
template <int LENGTH, int N, int TEAMS, int FOLD> struct FoldedColumns {
    static_assert(LENGTH % FOLD == 0, "groups are whole");
    static constexpr int GROUPS = LENGTH / FOLD;
    static constexpr int VECTORS = (LENGTH + N - 1) / N;
    static constexpr int PIECES = runs_touched(N, FOLD);  // groups of a vector
    static constexpr int SPAN = runs_touched(FOLD, N);    // vectors of a group
    static constexpr int LATEST = FOLD - common_divisor(N, FOLD);  // where in its group a vector may begin

    // Vectors are rotated by the number of the thread group: lanes that merge the parts of several
    // groups read different banks.
    static __device__ __forceinline__ int place(int piece, int team, int vector) {
        return (piece * TEAMS + team) * VECTORS + (vector + team) % VECTORS;
    }

    // Leaves a thread's part of the vector at `column`: `settled(i)` of its columns, which have one
    // count. They are summed about the first of their group, in one pass: squares about one of N
    // values are at most N times those about the mean. Recursion in place of a loop makes columns
    // constants, so that everything stays in registers.
    template <int PIECE = 0, class Settled>
    static __device__ __forceinline__ void leave(PartMoments* parts, int team, int column, Settled settled) {
        constexpr int FIRST = LATEST == 0 ? PIECE * FOLD : 0;
        constexpr int END = (PIECE + 1) * FOLD < N ? (PIECE + 1) * FOLD : N;
        const int begin = LATEST == 0 ? 0 : column % FOLD;
        PartMoments all;
        float each = 0.f, sum = 0.f, squares = 0.f;
#pragma unroll
        for (int i = FIRST; i < END; ++i) {
            const PartMoments one = settled(i);
            const bool own = PIECES == 1 || LATEST == 0 || (begin + i) / FOLD == PIECE;
            if (own && one.count > 0.f) {
                if (all.count == 0.f) all.pivot = one.pivot;
                const float apart = (one.pivot - all.pivot) + one.residual;
                each = one.count;
                sum += apart;
                squares += square(apart);
                all.count += one.count;
                all.squares += one.squares;
            }
        }
        all.residual = all.count > 0.f ? sum * each * (1.f / all.count) : 0.f;
        all.squares += each * maximum(squares - sum * all.residual, 0.f);
        parts[place(PIECE, team, column / N)] = all;
        if constexpr (PIECE + 1 < PIECES) leave<PIECE + 1>(parts, team, column, settled);
    }

    // Merges the parts that the threads of a block have left into the moments of every group.
    template <int THREADS>
    static __device__ __forceinline__ void merge(const PartMoments* parts, MomentsRow<GROUPS> into) {
        constexpr int FOUND = TEAMS * SPAN, ROOM = THREADS / GROUPS < 32 ? THREADS / GROUPS : 32;
        constexpr int LANES = power_within(FOUND < ROOM ? FOUND : ROOM);
        const int lane = threadIdx.x % LANES;
        __syncthreads();
        for (int first = 0; first < GROUPS; first += THREADS / LANES) {
            const int group = first + threadIdx.x / LANES;
            const int start = group * FOLD / N;
            PartMoments all = merged((FOUND + LANES - 1) / LANES, [&](int k) {
                const int number = k * LANES + lane, vector = start + number % SPAN;
                const bool there = group < GROUPS && number < FOUND && vector * N < (group + 1) * FOLD;
                return there ? parts[place(group - vector * N / FOLD, number / SPAN, vector)] : PartMoments{};
            });
#pragma unroll
            for (int distance = 1; distance < LANES; distance *= 2) {
                all = merged(all, shuffle_down(all, distance));
            }
            if (lane == 0 && group < GROUPS) into.write(group, all);
        }
    }
};
