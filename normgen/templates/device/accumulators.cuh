#pragma once
#include "normgen/math.cuh"
#include "normgen/team.cuh"

// ---- Accumulators over rows ---------------------------------------------------------------------

// Partial moments: `count` values of mean pivot + residual, and the sum of their squares about that
// mean. The pivot is always finite.
struct PartMoments {
    float pivot = 0.f;
    float residual = 0.f;
    float squares = 0.f;
    float count = 0.f;
};

// Partial moments from a mean and its rounding error. An infinite mean goes into the residual,
// since the pivot is finite.
__device__ __forceinline__ PartMoments part_about(float mean, float missed, float squares, float count) {
    const bool finite = is_finite(mean);
    return {finite ? mean : 0.f, finite ? missed : mean, squares, count};
}

// Chan merge of part(0), part(1), ... up to `count`, in two passes: the first finds the mean of
// all, the second sums distances and squares about it. Empty parts are zero and take no branch, so
// that loads overlap.
template <int UNROLLED = 4, class Index, class Get>
__device__ __forceinline__ PartMoments merged(Index count, Get part) {
    PartMoments all;
    float sum = 0.f;
#pragma unroll UNROLLED
    for (Index k = 0; k < count; ++k) {
        const PartMoments one = part(k);
        all.pivot = all.count == 0.f ? one.pivot : all.pivot;
        sum += one.count * ((one.pivot - all.pivot) + one.residual);
        all.count += one.count;
    }
    const float inverse = all.count > 0.f ? 1.f / all.count : 0.f;
    const float mean = all.pivot + sum * inverse;
    if (is_finite(mean)) all.pivot = mean;
    sum = 0.f;
#pragma unroll UNROLLED
    for (Index k = 0; k < count; ++k) {
        const PartMoments one = part(k);
        const float apart = (one.pivot - all.pivot) + one.residual;
        sum += one.count * apart;
        all.squares += one.squares + one.count * square(apart);
    }
    all.residual = sum * inverse;
    all.squares = maximum(all.squares - sum * all.residual, 0.f);
    return all;
}

// Chan merge of two parts.
__device__ __forceinline__ PartMoments merged(const PartMoments& one, const PartMoments& other) {
    if (one.count == 0.f) return other;
    if (other.count == 0.f) return one;
    PartMoments all;
    all.count = one.count + other.count;
    const float inverse = 1.f / all.count;
    // from the pivot of one, as its residual is
    const float away = (other.pivot - one.pivot) + other.residual;
    const float moved = (one.count * one.residual + other.count * away) * inverse;
    const float mean = one.pivot + moved;
    all.pivot = is_finite(mean) ? mean : one.pivot;
    all.residual = (one.pivot - all.pivot) + moved;
    all.squares = one.squares + other.squares
        + square(away - one.residual) * (one.count * other.count * inverse);
    return all;
}

// Sums of x - pivot and its square: three operations per value. Whenever the count has grown
// fourfold, the pivot moves to the mean so far. An error made about a poor pivot is then at most
// four times what the true squares gain, so neither an unlucky first value nor a mean that is large
// beside the deviation costs accuracy.
[[maybe_unused]] constexpr unsigned int PIVOT_HOLDS = 4;

struct ShiftedSums {
    float pivot = 0.f;
    float sum = 0.f;
    float squares = 0.f;

    __device__ __forceinline__ void add(float x) {
        const float c = x - pivot;
        sum += c;
        squares += square(c);
    }

    // `inverse`: one over the number of values so far.
    __device__ __forceinline__ void recentre(float count, float inverse) {
        const float mean = sum * inverse;
        const float nearer = pivot + mean;
        if (!is_finite(nearer)) return;  // infinity and NaN stay in the sums
        const float residual = mean - (nearer - pivot);
        const float about = maximum(squares - sum * mean, 0.f);
        pivot = nearer;
        sum = count * residual;
        squares = about + sum * residual;
    }

    // Moves the pivot to the only value so far; infinity and NaN stay in the sums.
    __device__ __forceinline__ void centre_first() {
        if (!is_finite(sum)) return;
        pivot = sum;
        sum = squares = 0.f;
    }

    __device__ __forceinline__ PartMoments settled(float count, float inverse) const {
        if (count == 0.f) return {};
        const float mean = sum * inverse;
        return {pivot, mean, maximum(squares - sum * mean, 0.f), count};
    }
};

// Moments of one statistic, to which every element contributes.
struct ValueMoments {
    ShiftedSums sums;
    unsigned int count = 0;
    unsigned int due = 0;  // the count at which the pivot is moved

    // Adds values, or the first `own` of them.
    template <int N> __device__ __forceinline__ void add(const float (&values)[N], int own = N) {
        if (count >= due) {
            if (own == N) move_pivot(values);
            else move_pivot({values[0]});
        }
#pragma unroll
        for (int i = 0; i < N; ++i) {
            if (i < own) sums.add(values[i]);
        }
        count += own;
    }

    // Adds one value, the k-th, of vectors of VEC; the pivot may move ahead of every TURN vectors.
    template <int VEC, int TURN> __device__ __forceinline__ void add_next(float x, int k) {
        if (k % (VEC * TURN) == 0 && count >= due) move_pivot({x});
        if (k % VEC == 0) count += VEC;
        sums.add(x);
    }

    template <int N> __device__ __forceinline__ void move_pivot(const float (&values)[N]) {
        if (count > 0) {
            sums.recentre(float(count), 1.f / float(count));
            due = PIVOT_HOLDS * count;
        } else {
            float sum = 0.f;
#pragma unroll
            for (int i = 0; i < N; ++i) sum += values[i];
            const float mean = sum * (1.f / float(N));
            sums.pivot = is_finite(mean) ? mean : 0.f;
            due = N;
        }
    }

    __device__ __forceinline__ PartMoments settled() const {
        return sums.settled(float(count), 1.f / float(count));
    }
};

// Moments of each column of a thread: every row contributes one value per column.
template <int COLUMNS> struct ColumnMoments {
    ShiftedSums sums[COLUMNS];
    unsigned int count = 0;
    unsigned int due = 1;

    __device__ __forceinline__ void add(int column, float value) { sums[column].add(value); }

    __device__ __forceinline__ void end_row() {
        if (++count < due) return;
        due = PIVOT_HOLDS * count;
        if (count == 1) {
#pragma unroll
            for (int column = 0; column < COLUMNS; ++column) sums[column].centre_first();
            return;
        }
        const float values = float(count), inverse = 1.f / values;
#pragma unroll
        for (int column = 0; column < COLUMNS; ++column) sums[column].recentre(values, inverse);
    }

    // `inverse`: one over the count.
    __device__ __forceinline__ PartMoments settled(int column, float inverse) const {
        return sums[column].settled(float(count), inverse);
    }
};

// Moments of WIDTH columns in memory: pivots, residuals, squares, and their common count.
template <int WIDTH> struct MomentsRow {
    static constexpr int SIZE = 3 * WIDTH + 1;
    float* at;

    __device__ __forceinline__ void write(int column, const PartMoments& part) const {
        at[column] = part.pivot;
        at[WIDTH + column] = part.residual;
        at[2 * WIDTH + column] = part.squares;
        if (column == 0) at[3 * WIDTH] = part.count;
    }
};

// Moments of each column of a long row, accumulated in memory; a column belongs to one thread.
template <int WIDTH> struct StoredMoments {
    MomentsRow<WIDTH> row;
    unsigned int count = 0;
    unsigned int due = 1;

    __device__ __forceinline__ void add(int column, float value) const {
        ShiftedSums sums;
        if (count > 0) sums = {row.at[column], row.at[WIDTH + column], row.at[2 * WIDTH + column]};
        sums.add(value);
        const float values = float(count + 1);
        if (count == 0) sums.centre_first();
        else if (count + 1 == due) sums.recentre(values, 1.f / values);
        row.at[column] = sums.pivot;
        row.at[WIDTH + column] = sums.sum;
        row.at[2 * WIDTH + column] = sums.squares;
    }

    __device__ __forceinline__ void end_row() {
        if (++count == due) due = PIVOT_HOLDS * count;
    }

    __device__ __forceinline__ void settle(int column) const {
        const ShiftedSums sums = {row.at[column], row.at[WIDTH + column], row.at[2 * WIDTH + column]};
        row.write(column, sums.settled(float(count), 1.f / float(count)));
    }
};

// Block reduction in a fixed order; the result is valid in the first warp.
template <class Op, int THREADS> __device__ __forceinline__ float reduce_block(float* warps, float mine) {
    const float value = lanes_reduce<32, Op>(mine);
    __syncthreads();  // what was gathered before has been read
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
    __syncthreads();
    return lanes_reduce<32, Op>(threadIdx.x < THREADS / 32 ? warps[threadIdx.x] : Op::START);
}

// Swizzle of a row of parts in shared memory: the place of a column, and the column of a place. A
// part is four banks wide, and neighbouring threads store parts that are 4 or 8 columns apart;
// rotated by one per 8 columns, these lie in different banks.
template <int WIDTH> __device__ __forceinline__ int turned(int column) {
    return WIDTH % 8 ? column : (column & ~7) | ((column + (column >> 3)) & 7);
}
template <int WIDTH> __device__ __forceinline__ int turned_back(int place) {
    return WIDTH % 8 ? place : (place & ~7) | ((place - (place >> 3)) & 7);
}

// Merges the moments of WIDTH columns that each of TEAMS thread groups has left, in pairs, into the
// first row. Place k of it is written by thread k % THREADS.
template <int TEAMS, int WIDTH, int THREADS> __device__ __forceinline__ void merge_teams(PartMoments* parts) {
    for (int teams = TEAMS; teams > 1; teams -= teams / 2) {
        __syncthreads();
        const PartMoments* others = parts + (teams - teams / 2) * WIDTH;
        for (int k = threadIdx.x; k < teams / 2 * WIDTH; k += THREADS) {
            parts[k] = merged(parts[k], others[k]);
        }
    }
}

// The moments of the lane `distance` further on.
__device__ __forceinline__ PartMoments shuffle_down(const PartMoments& mine, int distance) {
    return {
        __shfl_down_sync(0xffffffffu, mine.pivot, distance),
        __shfl_down_sync(0xffffffffu, mine.residual, distance),
        __shfl_down_sync(0xffffffffu, mine.squares, distance),
        __shfl_down_sync(0xffffffffu, mine.count, distance)};
}

// Warp merge in a fixed order, for every lane: in two passes, as that of `merged` for any number.
__device__ __forceinline__ PartMoments merge_lanes(const PartMoments& mine) {
    PartMoments all;
    const int first = first_lane(mine.count > 0.f);
    all.pivot = __shfl_sync(0xffffffffu, mine.pivot, first);
    all.count = lanes_reduce<32, Sum>(mine.count);
    const float inverse = all.count > 0.f ? 1.f / all.count : 0.f;
    float apart = (mine.pivot - all.pivot) + mine.residual;
    const float mean = all.pivot + lanes_reduce<32, Sum>(mine.count * apart) * inverse;
    if (is_finite(mean)) all.pivot = mean;
    apart = (mine.pivot - all.pivot) + mine.residual;
    const float sum = lanes_reduce<32, Sum>(mine.count * apart);
    all.squares = lanes_reduce<32, Sum>(mine.squares + mine.count * square(apart));
    all.residual = sum * inverse;
    all.squares = maximum(all.squares - sum * all.residual, 0.f);
    return all;
}

// Block merge in a fixed order; valid in the first warp.
template <int THREADS>
__device__ __forceinline__ PartMoments merge_block(
    PartMoments (&warps)[THREADS / 32], const PartMoments& mine) {
    PartMoments all = merge_lanes(mine);
    __syncthreads();  // what was gathered before has been read
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = all;
    __syncthreads();
    if (threadIdx.x < 32) all = merged(THREADS / 32, [&](int warp) { return warps[warp]; });
    return all;
}
