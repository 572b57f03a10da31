#pragma once
#include "normgen/accumulators.cuh"
#include "normgen/math.cuh"
#include "normgen/places.cuh"
#include "normgen/statistics.cuh"
#include "normgen/team.cuh"

// ---- Running statistics of values that are seen once --------------------------------------------

// Mean and squares: of each thread's values, then of its warp's.
struct RunningMoments {
    ValueMoments own;

    template <int N> __device__ __forceinline__ void add(const float (&values)[N]) { own.add(values); }

    template <int TEAM, int VEC, int LENGTH, int THREADS, int VALUES>
    __device__ __forceinline__ Moments over_team(Exchange<TEAM, THREADS, VALUES>& exchange, int& side) const {
        static_assert(TEAM > 32, "a row that streams has a block of its own");
        const PartMoments warp = merge_lanes(own.settled());
        hand_in(exchange, side, warp.pivot, warp.residual, warp.squares);
        return merge_warps<RowPlaces<TEAM, VEC, 1, LENGTH>>(exchange, side);
    }
};

// Online softmax: the maximum, and the sum of the exponentials of the distances from it.
struct RunningExponentials {
    float top = -INFINITY;
    float total = 0.f;

    template <int N> __device__ __forceinline__ void add(const float (&values)[N]) {
        float higher = top;
#pragma unroll
        for (int i = 0; i < N; ++i) higher = maximum(higher, values[i]);
        if (higher == -INFINITY) return;
        if (top != higher) total *= expf(top - higher);
#pragma unroll
        for (int i = 0; i < N; ++i) total += expf(values[i] - higher);
        top = higher;
    }

    template <int TEAM, int THREADS, int VALUES>
    __device__ __forceinline__ void over_team(Exchange<TEAM, THREADS, VALUES>& exchange, int& side) {
        const float own = top;
        Team<Max>::reduce(exchange, side, top);
        if (own != top) total *= expf(own - top);
        Team<Sum>::reduce(exchange, side, total);
    }
    // That of a whole row: NaN where all values are -inf, or one is inf.
    __device__ __forceinline__ float of_row() const { return total + (top - top); }
};
