#pragma once
#include "normgen/accumulators.cuh"
#include "normgen/math.cuh"
#include "normgen/team.cuh"
#include "normgen/vector.cuh"

// ---- Columns: reductions along a strided axis, for neighbouring columns -------------------------
// A thread owns VEC adjacent columns, the LANES threads beside it the columns next to those. TEAM
// members, threads of the same lane, share the elements of their columns: the first takes elements
// 0, TEAM, 2 TEAM, ... An exchange stores every member's values in shared memory, combines each
// column once, in the order of the members, and hands the result to all of them. Of its two
// barriers the second also keeps the next exchange from writing what this one still reads.

template <int LANES, int TEAM, int VEC, int VALUES> struct ColumnExchange {
    static constexpr int COLUMNS = LANES * VEC;
    float found[TEAM][VALUES][COLUMNS];
    float whole[VALUES][COLUMNS];

    // A thread's columns lie LANES apart, so that the threads of a warp write to different banks.
    static __device__ __forceinline__ void put(float* into, const float (&values)[VEC]) {
#pragma unroll
        for (int i = 0; i < VEC; ++i) into[i * LANES + threadIdx.x % LANES] = values[i];
    }
    static __device__ __forceinline__ void take(const float* from, float (&values)[VEC]) {
#pragma unroll
        for (int i = 0; i < VEC; ++i) values[i] = from[i * LANES + threadIdx.x % LANES];
    }
    // Deals the columns of the block out to its threads.
    template <class Combine> __device__ __forceinline__ void each_column(Combine combine) {
        each<1>([&](int, int column) { combine(column); });
    }
    // The first `MANY` values of each column: a thread has one value of one column, and more only
    // if threads are few.
    template <int MANY, class Combine> __device__ __forceinline__ void each(Combine combine) {
        __syncthreads();
        for (int own = threadIdx.x; own < MANY * COLUMNS; own += LANES * TEAM) {
            combine(own / COLUMNS, own % COLUMNS);
        }
        __syncthreads();
    }
};
// A thread that has its columns to itself exchanges nothing.
template <int LANES, int VEC, int VALUES> struct ColumnExchange<LANES, 1, VEC, VALUES> {};

// reduce(exchange, a, b, ...): replaces each column of every array by its reduction over the
// members, one operation per array.
template <class... Op> struct Columns {
    template <int LANES, int TEAM, int VEC, int VALUES, class... Floats>
    static __device__ __forceinline__ void reduce(
        ColumnExchange<LANES, TEAM, VEC, VALUES>& exchange, Floats&... values) {
        if constexpr (TEAM > 1) {
            auto& found = exchange.found[threadIdx.x / LANES];
            int which = 0;
            (exchange.put(found[which++], values), ...);
            exchange.template each<int(sizeof...(Op))>([&](int value, int column) {
                int mine = 0;
                ((value == mine++ ? combine<Op>(exchange, value, column) : void()), ...);
            });
            which = 0;
            (exchange.take(exchange.whole[which++], values), ...);
        }
    }
    template <class One, int LANES, int TEAM, int VEC, int VALUES>
    static __device__ __forceinline__ void combine(
        ColumnExchange<LANES, TEAM, VEC, VALUES>& exchange, int value, int column) {
        float result = exchange.found[0][value][column];
#pragma unroll 8
        for (int member = 1; member < TEAM; ++member) {
            result = One::apply(result, exchange.found[member][value][column]);
        }
        exchange.whole[value][column] = result;
    }
};

// The number of elements of a column that one member owns.
template <int TEAM, int LENGTH> __device__ __forceinline__ int elements_of_member(int member) {
    return LENGTH / TEAM + (member < LENGTH % TEAM ? 1 : 0);
}

// Per column: the mean, and the sums of (x - mean) and (x - mean)^2.
template <int VEC> struct VectorMoments {
    float mean[VEC];
    float centred[VEC];
    float squares[VEC];
};

// Merges the moments of the members by Chan's rule in one exchange. A member gives its mean in two
// parts, of which the second is small, so that a column of mean 1e6 and deviation 1 is as accurate
// as any. The first is finite: an infinity is in the second, and stays in all sums.
template <int LENGTH, int LANES, int TEAM, int VEC, int VALUES>
__device__ __forceinline__ VectorMoments<VEC> merge_members(
    ColumnExchange<LANES, TEAM, VEC, VALUES>& exchange, const PartMoments (&parts)[VEC]) {
    VectorMoments<VEC> moments;
    if constexpr (TEAM == 1) {
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            const float whole = parts[i].pivot + parts[i].residual;
            const float left = if_finite((parts[i].pivot - whole) + parts[i].residual);
            moments.mean[i] = whole;
            moments.centred[i] = left * float(LENGTH);
            moments.squares[i] = parts[i].squares + square(left) * float(LENGTH);
        }
        return moments;
    } else {
        constexpr float INVERSE_LENGTH = 1.f / float(LENGTH);
        auto& mine = exchange.found[threadIdx.x / LANES];
        float pivot[VEC], residual[VEC], squares[VEC];
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            pivot[i] = parts[i].pivot, residual[i] = parts[i].residual, squares[i] = parts[i].squares;
        }
        exchange.put(mine[0], pivot);
        exchange.put(mine[1], residual);
        exchange.put(mine[2], squares);
        exchange.each_column([&](int column) {
            // about the mean as first computed, and not about one member's, from which the others
            // may all lie on one side
            float origin = 0.f, offset = 0.f, total = 0.f;
#pragma unroll 4
            for (int member = 0; member < TEAM; ++member) {
                const float weight = float(elements_of_member<TEAM, LENGTH>(member));
                if (weight == 0.f) break;  // nor have the members after this one any element
                origin += weight * exchange.found[member][0][column];
            }
            origin *= INVERSE_LENGTH;
#pragma unroll 4
            for (int member = 0; member < TEAM; ++member) {
                const float weight = float(elements_of_member<TEAM, LENGTH>(member));
                if (weight == 0.f) break;
                const auto& theirs = exchange.found[member];
                const float apart = (theirs[0][column] - origin) + theirs[1][column];
                offset += weight * apart;
                total += theirs[2][column] + weight * square(apart);
            }
            offset *= INVERSE_LENGTH;
            const float whole = origin + offset;
            const float left = if_finite((origin - whole) + offset);
            exchange.whole[0][column] = whole;
            exchange.whole[1][column] = left * float(LENGTH);
            exchange.whole[2][column] = total + (square(left) - square(offset)) * float(LENGTH);
        });
        exchange.take(exchange.whole[0], moments.mean);
        exchange.take(exchange.whole[1], moments.centred);
        exchange.take(exchange.whole[2], moments.squares);
        return moments;
    }
}

// Two-pass moments of each member's elements, then one exchange. `each(visit)` visits the values of
// this thread.
template <int LENGTH, int LANES, int TEAM, int VEC, int VALUES, class Visit>
__device__ __forceinline__ VectorMoments<VEC> column_moments(
    ColumnExchange<LANES, TEAM, VEC, VALUES>& exchange, Visit each) {
    const int count = elements_of_member<TEAM, LENGTH>(threadIdx.x / LANES);
    const float inverse = count > 0 ? 1.f / float(count) : 0.f;
    VectorMoments<VEC> own = {};
    each([&](int i, float x) { own.mean[i] += x; });
#pragma unroll
    for (int i = 0; i < VEC; ++i) own.mean[i] *= inverse;
    each([&](int i, float x) {
        const float c = x - own.mean[i];
        own.centred[i] += c;
        own.squares[i] += square(c);
    });
    if constexpr (TEAM == 1) {
#pragma unroll
        for (int i = 0; i < VEC; ++i) own.centred[i] = if_finite(own.centred[i]);
        return own;
    } else {
        PartMoments parts[VEC];
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            const float residual = own.centred[i] * inverse;
            parts[i] = part_about(
                own.mean[i], residual, own.squares[i] - own.centred[i] * residual, float(count));
        }
        return merge_members<LENGTH>(exchange, parts);
    }
}

// Mean and squares of values that are seen once.
template <int VEC> struct RunningColumnMoments {
    ColumnMoments<VEC> own;

    __device__ __forceinline__ void add(const float (&values)[VEC]) {
#pragma unroll
        for (int i = 0; i < VEC; ++i) own.add(i, values[i]);
        own.end_row();
    }
    template <int LENGTH, int LANES, int TEAM, int VALUES>
    __device__ __forceinline__ VectorMoments<VEC> over_team(
        ColumnExchange<LANES, TEAM, VEC, VALUES>& exchange) const {
        const float inverse = 1.f / float(own.count);
        PartMoments parts[VEC];
#pragma unroll
        for (int i = 0; i < VEC; ++i) parts[i] = own.settled(i, inverse);
        return merge_members<LENGTH>(exchange, parts);
    }
};

// Online softmax per column: the maximum, and the sum of the exponentials of the distances from it.
template <int VEC> struct RunningColumnExponentials {
    float top[VEC];
    float total[VEC] = {};

    __device__ __forceinline__ RunningColumnExponentials() {
#pragma unroll
        for (int i = 0; i < VEC; ++i) top[i] = -INFINITY;
    }
    __device__ __forceinline__ void add(const float (&values)[VEC]) {
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            const float higher = maximum(top[i], values[i]);
            if (higher == -INFINITY) continue;
            if (top[i] != higher) total[i] *= expf(top[i] - higher);
            total[i] += expf(values[i] - higher);
            top[i] = higher;
        }
    }
    template <int LANES, int TEAM, int VALUES>
    __device__ __forceinline__ void over_team(ColumnExchange<LANES, TEAM, VEC, VALUES>& exchange) {
        if constexpr (TEAM > 1) {
            auto& mine = exchange.found[threadIdx.x / LANES];
            exchange.put(mine[0], top);
            exchange.put(mine[1], total);
            exchange.each_column([&](int column) {
                float highest = exchange.found[0][0][column], sum = 0.f;
#pragma unroll 8
                for (int member = 1; member < TEAM; ++member)
                    highest = maximum(highest, exchange.found[member][0][column]);
#pragma unroll 4
                for (int member = 0; member < TEAM; ++member) {
                    const auto& theirs = exchange.found[member];
                    const float below = theirs[0][column];
                    sum += below == highest ? theirs[1][column] : theirs[1][column] * expf(below - highest);
                }
                exchange.whole[0][column] = highest;
                exchange.whole[1][column] = sum;
            });
            exchange.take(exchange.whole[0], top);
            exchange.take(exchange.whole[1], total);
        }
#pragma unroll
        // NaN where all values are -inf, or one is inf
        for (int i = 0; i < VEC; ++i) total[i] += top[i] - top[i];
    }
};

// Sum over the lanes of a member, in a fixed order; all threads of a warp take part.
template <int LANES> __device__ __forceinline__ float lanes_total(float value) {
    static_assert(LANES <= 32, "the lanes of a member lie in one warp");
    return lanes_reduce<LANES, Sum>(value);
}

// Block sum in a fixed order, valid in thread 0.
template <int WARPS> __device__ __forceinline__ float block_total(float (&scratch)[WARPS], float value) {
    const float sum = lanes_reduce<32, Sum>(value);
    __syncthreads();  // the scratch of the sum before has been read
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = sum;
    __syncthreads();
    float total = 0.f;
    if (threadIdx.x == 0) {
        for (int warp = 0; warp < WARPS; ++warp) total += scratch[warp];
    }
    return total;
}

// The values of an operand that has one per column.
template <class T, int N>
__device__ __forceinline__ void load_columns(const T* address, float (&values)[N]) {
    unpack(load_vector<N>(address), values);
}

template <int N> __device__ __forceinline__ void copy_columns(const float (&from)[N], float (&to)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = from[i];
}

template <int N> __device__ __forceinline__ void fill_columns(float (&values)[N], float value) {
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = value;
}
