#pragma once
#include "normgen/accumulators.cuh"
#include "normgen/math.cuh"
#include "normgen/running.cuh"
#include "normgen/statistics.cuh"
#include "normgen/team.cuh"

// ---- Rows split over blocks: a launch for each level of reductions ------------------------------
// MEMBERS blocks have a row, each a share of it. The launch of a level leaves what every block finds
// of its share; the launches that follow combine that, in the order of the blocks. So no block waits
// for another, and any number of them may share a row.

// What the blocks of a row leave: VALUES floats each, those of all levels; those of one begin at
// FIRST. [member][value].
template <int MEMBERS, int VALUES> struct Shares {
    float* at;

    template <class Index>
    __device__ __forceinline__ Shares(float* published, Index row)
        : at(published + row * (MEMBERS * VALUES)) {}

    // Each thread takes what one of the blocks has left, and the last ones nothing.
    template <int FIRST, class... Op, class... Float>
    __device__ __forceinline__ void take(Float&... value) const {
        const bool is_one = threadIdx.x < MEMBERS;
        const float* from = at + (is_one ? int(threadIdx.x) : 0) * VALUES + FIRST;
        ((value = one_of(from++, is_one, Op::START)), ...);
    }

    static __device__ __forceinline__ float one_of(const float* from, bool is_one, float nothing) {
        return is_one ? __ldcg(from) : nothing;
    }

    template <int FIRST, class... Float>
    __device__ __forceinline__ void leave(int member, Float... value) const {
        if (threadIdx.x != 0) return;
        float* to = at + member * VALUES + FIRST;
        ((*to++ = value), ...);
    }
};

// Moments of a row. HERE: of a share that this launch has passed over, else of what others have
// left; LEAVES: for others to combine.
template <
    bool HERE, bool LEAVES, int FIRST, int VEC, int LENGTH, int THREADS, int SLOTS, int MEMBERS, int VALUES>
__device__ __forceinline__ Moments moments_of_row(
    const RunningMoments& running, Exchange<THREADS, THREADS, SLOTS>& exchange, int& side,
    PartMoments (&of_warps)[THREADS / 32], const Shares<MEMBERS, VALUES>& shares, int member) {
    if constexpr (MEMBERS == 1) {
        return running.template over_team<THREADS, VEC, LENGTH>(exchange, side);
    } else {
        PartMoments own;
        if constexpr (HERE) {
            own = running.own.settled();
        } else {
            shares.template take<FIRST, Sum, Sum, Sum, Sum>(
                own.pivot, own.residual, own.squares, own.count);
        }
        // the warps that have any: all, or those that took what others have left
        constexpr int WARPS = HERE || MEMBERS > THREADS ? THREADS / 32 : (MEMBERS + 31) / 32;
        if (int(threadIdx.x) < 32 * WARPS) own = merge_lanes(own);
        __syncthreads();  // those of another row have been read
        if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = own;
        __syncthreads();
        if (LEAVES && threadIdx.x >= 32) return {};  // nobody asks
        const PartMoments all = merged(WARPS, [&](int warp) { return of_warps[warp]; });
        if constexpr (LEAVES) {
            shares.template leave<FIRST>(member, all.pivot, all.residual, all.squares, all.count);
        }
        constexpr float COUNT = float(LENGTH);
        const float mean = all.pivot + all.residual;
        const float missed = if_finite((all.pivot - mean) + all.residual);
        return {mean, missed * COUNT, all.squares + square(missed) * COUNT};
    }
}
