#pragma once
#include "normgen/accumulators.cuh"
#include "normgen/math.cuh"
#include "normgen/team.cuh"

// ---- Statistics of a row in one exchange: mean and squares about it; maximum and sum of exponentials 

// The mean of a row, and the sums of (x - mean) and (x - mean)^2 about it.
struct Moments {
    float mean;
    float centred;
    float squares;
};

// Merges the moments of a group's warps in one exchange, by Chan's rule: each lane takes some
// warps, then lanes are reduced. A warp's mean is in two parts, of which the second is small, so
// that a row of mean 1e6 and deviation 1 is as accurate as any. The first is finite: an infinity is
// in the second, and stays in all sums.
template <class Layout, class Scratch>
__device__ __forceinline__ Moments merge_warps(Scratch& exchange, int& side) {
    constexpr int WARPS = Scratch::TEAM / 32;
    constexpr int TAKEN = WARPS <= 2 ? 2 : WARPS <= 4 ? 4 : WARPS <= 8 ? 8 : WARPS <= 16 ? 16 : 32;
    constexpr int ROUNDS = (WARPS + TAKEN - 1) / TAKEN;
    constexpr float LENGTH = float(Layout::ELEMENTS), INVERSE_LENGTH = 1.f / LENGTH;
    const auto* slot = hand_out(exchange, side);
    const int taken = threadIdx.x % TAKEN;
    const auto place = [&](int k) -> const auto& {
        const int warp = k * TAKEN + taken;
        return slot[WARPS % TAKEN == 0 || warp < WARPS ? warp : 0];
    };
    // Each value is loaded when it is needed, since registers are scarce.
    const auto given = [&](int k, int which) {
        return *static_cast<const volatile float*>(&place(k).value[which]);
    };
    const float origin = slot[0][0];
    float offset = 0.f;
    float weight[ROUNDS], apart[ROUNDS];
#pragma unroll
    for (int k = 0; k < ROUNDS; ++k) {
        const int warp = k * TAKEN + taken;
        const bool present = WARPS % TAKEN == 0 || warp < WARPS;
        const float mean = given(k, 0), residual = given(k, 1);
        weight[k] = present ? float(Layout::elements_of_warp(warp)) : 0.f;
        apart[k] = (mean - origin) + residual;
        offset += weight[k] > 0.f ? weight[k] * apart[k] : 0.f;
    }
    offset = lanes_reduce<TAKEN, Sum>(offset) * INVERSE_LENGTH;
    float total = 0.f;
#pragma unroll
    for (int k = 0; k < ROUNDS; ++k) {
        const float squares = given(k, 2);
        total += weight[k] > 0.f ? squares + weight[k] * square(apart[k] - offset) : 0.f;
    }
    total = lanes_reduce<TAKEN, Sum>(total);
    const float whole = origin + offset;
    const float left = if_finite((origin - whole) + offset);
    return {whole, left * LENGTH, total + square(left) * LENGTH};
}

// Two-pass moments of a warp's part of a row, or of a thread group's within one: the mean, and the
// sums of differences from it and of their squares. `each(visit)` visits the values of this thread.
template <class Layout, class Scratch, class Visit>
__device__ __forceinline__ Moments warp_moments(Visit each, float& inverse) {
    constexpr int LANES = Scratch::TEAM < 32 ? Scratch::TEAM : 32;
    const int count = Scratch::TEAM > 32 ? Layout::elements_of_warp(Scratch::lane() / 32) : Layout::ELEMENTS;
    inverse = count > 0 ? 1.f / float(count) : 0.f;
    float sum = 0.f;
    each([&](float x, auto...) { sum += x; });
    const float mean = lanes_reduce<LANES, Sum>(sum) * inverse;
    float centred = 0.f, squares = 0.f;
    each([&](float x, auto...) {
        const float c = x - mean;
        centred += c;
        squares += square(c);
    });
    centred = if_finite(lanes_reduce<LANES, Sum>(centred));
    return {mean, centred, lanes_reduce<LANES, Sum>(squares)};
}

// The same in one pass, about a pivot that may move once per TURN vectors: for values that each
// pass reads from shared memory. `each(visit)` visits them with their number.
template <int VEC, int TURN, class Visit>
__device__ __forceinline__ PartMoments warp_moments_in_one(Visit each) {
    ValueMoments own;
    each([&](float x, int k) { own.template add_next<VEC, TURN>(x, k); });
    return merge_lanes(own.settled());
}

// The moments of a row, in one exchange.
template <class Layout, class Scratch, class Visit>
__device__ __forceinline__ Moments team_moments(Scratch& exchange, int& side, Visit each) {
    float inverse;
    const Moments own = warp_moments<Layout, Scratch>(each, inverse);
    if constexpr (Scratch::TEAM <= 32) {
        return own;
    } else {
        const float residual = own.centred * inverse;
        const PartMoments part = part_about(own.mean, residual, own.squares - own.centred * residual, 0.f);
        hand_in(exchange, side, part.pivot, part.residual, part.squares);
        return merge_warps<Layout>(exchange, side);
    }
}

// The maximum of a row, the sum of exp(x - maximum), and the factor for exponentials that a thread
// has kept.
struct Exponentials {
    float top;
    float total;
    float scale;
};

// Exponentials of the distances from each warp's maximum, then one exchange, which scales the
// warps' sums to the maximum of the row. `each(visit)` visits the values of this thread with their
// numbers; `keep(k, e)` may keep an exponential. NARROW: elements have 2 bytes.
template <bool NARROW, class Scratch, class Visit, class Keep>
__device__ __forceinline__ Exponentials team_exponentials(
    Scratch& exchange, int& side, Visit each, Keep keep) {
    constexpr int TEAM = Scratch::TEAM;
    float own = -INFINITY;
    each([&](float x, int) { own = maximum(own, x); });
    own = lanes_reduce<(TEAM < 32 ? TEAM : 32), Max>(own);
    // where a warp has nothing but -inf, the row may have more
    const float base = own == -INFINITY ? 0.f : own;
    float total = 0.f;
    each([&](float x, int k) {
        const float e = exponential<NARROW>(x - base);
        total += e;
        keep(k, e);
    });
    total = lanes_reduce<(TEAM < 32 ? TEAM : 32), Sum>(total);
    if constexpr (TEAM <= 32) {
        return {own, total + (own - own), 1.f};  // NaN where all values are -inf, or one is inf
    } else {
        constexpr int WARPS = TEAM / 32;
        constexpr int TAKEN = WARPS <= 2 ? 2 : WARPS <= 4 ? 4 : WARPS <= 8 ? 8 : WARPS <= 16 ? 16 : 32;
        hand_in(exchange, side, own, total);
        const auto* slot = hand_out(exchange, side);
        const int taken = threadIdx.x % TAKEN;
        float top = slot[0][0];
#pragma unroll
        for (int warp = taken; warp < WARPS; warp += TAKEN) top = maximum(top, slot[warp][0]);
        top = lanes_reduce<TAKEN, Max>(top);
        total = 0.f;
#pragma unroll
        for (int warp = taken; warp < WARPS; warp += TAKEN) {
            const auto theirs = slot[warp];
            total += theirs[1] * expf(theirs[0] - top);
        }
        return {top, lanes_reduce<TAKEN, Sum>(total), expf(own - top)};
    }
}
