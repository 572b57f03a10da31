#pragma once
#include "normgen/accumulators.cuh"
#include "normgen/math.cuh"
#include "normgen/places.cuh"
#include "normgen/statistics.cuh"
#include "normgen/team.cuh"

// ---- Rows split over blocks: a cooperative grid without a cooperative launch --------------------
// A row too long for a cluster is split over MEMBERS blocks. Each reduces its slice, publishes the
// partial in memory, and waits for the others' partials. Nothing guarantees that all of them run at
// once: kernels of another stream may hold the multiprocessors that the rest would need, and wait
// in the same way. So a block waits for a limited time only. Then it reduces a slice whose partial
// is missing, publishes that in its owner's place, and returns to its own; it never waits for a
// block that does not run. Partials are combined in the order of the slices, whoever computed them,
// so the bits of the results are the same either way.
//
// Bits of flag words tell which partials are there, so that waiting reads one word again and again,
// and not all partials. The flags are zero before the kernel starts and when it ends: the last
// block of a row that has seen all partials clears them, so that no kernel need do so ahead of this
// one.

using word_t = unsigned long long;
constexpr int WORD_BITS = 64;

__device__ __forceinline__ void set_bit(word_t* word, int bit) {
    const word_t value = word_t(1) << bit;
#if defined(NORMGEN_HOST)
    normgen_release();
    atomicOr(word, value);
#else
    asm volatile("red.release.gpu.global.or.b64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
#endif
}

__device__ __forceinline__ word_t read_word(word_t* word) {
#if defined(NORMGEN_HOST)
    const word_t value = normgen_atomic_load(word);
    normgen_acquire();
    return value;
#else
    word_t value;
    asm volatile("ld.acquire.gpu.global.b64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
#endif
}

// Counts one more, and returns how many there were (release: this thread's earlier reads come
// first).
__device__ __forceinline__ int count_one(word_t* word) {
#if defined(NORMGEN_HOST)
    normgen_release();
    return int(atomicAdd(word, word_t(1)));
#else
    word_t before;
    asm volatile("atom.release.gpu.global.add.u64 %0, [%1], 1;" : "=l"(before) : "l"(word) : "memory");
    return int(before);
#endif
}

__device__ __forceinline__ void fence_acquire() {
#if defined(NORMGEN_HOST)
    __threadfence();
#else
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
#endif
}

// Zero, for the kernel that comes next. (On the host by a store that is no atomic, so that the checker
// holds it against every access of other blocks.)
__device__ __forceinline__ void reset_word(word_t* word) {
#if defined(NORMGEN_HOST)
    *word = 0;
#else
    atomicExch(word, word_t(0));
#endif
}

// The same number, but opaque to the compiler, which then does not reuse what it computed from it.
__device__ __forceinline__ int forgotten(int value) {
#if !defined(NORMGEN_HOST)
    asm volatile("" : "+r"(value));
#endif
    return value;
}

// How often a block polls for partials before it helps. Blocks of the host run one after the other.
#if defined(NORMGEN_HOST)
[[maybe_unused]] constexpr int PATIENCE = 1;
#else
[[maybe_unused]] constexpr int PATIENCE = 1000;
#endif

// Shared scratch of the warps of a block.
template <int THREADS, int VALUES> struct CooperativeScratch {
    Exchange<THREADS, THREADS, VALUES> block;
    float whole[VALUES];
    int away;
    int next;
};

// One of the blocks that share a row. `slice` is the one that it reduces now, `home` its own; while
// it is `away` it does not have the values of the whole row yet. `words` are flags of the partials
// that are there, then a count of blocks that need the flags no more; `parts` are [value][member].
template <int MEMBERS, int THREADS, int VALUES> struct CooperativeRow {
    static constexpr int WORDS = (MEMBERS + WORD_BITS - 1) / WORD_BITS;
    static constexpr int ROUNDS = (MEMBERS + 31) / 32;
    CooperativeScratch<THREADS, VALUES>& scratch;
    word_t* words;
    float* parts;
    int home;
    int slice;
    bool come = false;
    bool away = false;

    template <class Index>
    __device__ __forceinline__ CooperativeRow(
        CooperativeScratch<THREADS, VALUES>& scratch, word_t* words, float* parts, Index row, int home)
        : scratch(scratch),
          words(words + row * (WORDS + 1)),
          parts(parts + row * (VALUES * MEMBERS)),
          home(home),
          slice(home) {}

    // Before a slice is loaded: a partial that a helper has published is not published again.
    __device__ __forceinline__ void begin() { come = threadIdx.x == 0 && has_come(); }
    __device__ __forceinline__ bool has_come() const {
        return read_word(words + slice / WORD_BITS) >> slice % WORD_BITS & 1;
    }

    __device__ __forceinline__ int lane() const { return slice * THREADS + int(threadIdx.x); }

    // Replaces each value by its reduction over the row.
    template <class... Op, class... Float>
    __device__ __forceinline__ void reduce(int& side, Float&... value) {
        Team<Op...>::reduce(scratch.block, side, value...);
        if (threadIdx.x < 32) {
            leave(value...);
            const int missing = look();
            int which = 0;
            if (missing == MEMBERS) ((value = combined<Op>(which++)), ...);
            settle(missing, value...);
        }
        __syncthreads();
        int which = 0;
        ((value = scratch.whole[which++]), ...);
        go_on();
    }

    // Publishes the partial of this slice. Its owner may overwrite the slice as soon as all
    // partials are there, so a helper looks again: if this partial has come in the meantime, its
    // own is dropped. (Otherwise both are the same.)
    template <class... Float> __device__ __forceinline__ void leave(Float... value) const {
        if (threadIdx.x == 0) {
            int which = 0;
            if (!(slice == home ? come : has_come())) {
                ((parts[which++ * MEMBERS + slice] = value), ...);
                set_bit(words + slice / WORD_BITS, slice % WORD_BITS);
            }
        }
    }

    // The first member after this block's own, cyclically, whose partial is missing; MEMBERS where
    // none is.
    __device__ __forceinline__ int look() const {
        const int first = int(threadIdx.x) * WORD_BITS;  // of the members that a lane looks after
        word_t missing = 0;
        for (int times = 0; times < PATIENCE; ++times) {
            if (first < MEMBERS) {
                const int members = MEMBERS - first < WORD_BITS ? MEMBERS - first : WORD_BITS;
                missing = ~read_word(words + threadIdx.x) & ~word_t(0) >> (WORD_BITS - members);
            }
            if (!__any_sync(0xffffffffu, missing != 0)) {
                __syncwarp();  // what one lane has seen, the others see
                return MEMBERS;
            }
        }
        float distance = float(MEMBERS);
        for (int member = first; missing; ++member, missing >>= 1) {
            if (missing & 1) distance = fminf(distance, float((member + MEMBERS - home) % MEMBERS));
        }
        return int(lanes_reduce<32, Min>(distance));
    }

    // A partial that another block has published; lanes take members in turn.
    __device__ __forceinline__ float part(int k, int which) const {
        const int member = k * 32 + int(threadIdx.x);
        return member < MEMBERS ? __ldcg(parts + which * MEMBERS + member) : 0.f;
    }
    static __device__ __forceinline__ bool counts(int k) { return k * 32 + int(threadIdx.x) < MEMBERS; }

    template <class Op> __device__ __forceinline__ float combined(int which) const {
        float value = Op::START;
#pragma unroll
        for (int k = 0; k < ROUNDS; ++k) {
            const float other = part(k, which);
            value = counts(k) ? Op::apply(value, other) : value;
        }
        return lanes_reduce<32, Op>(value);
    }

    template <class... Float> __device__ __forceinline__ void settle(int missing, Float... value) const {
        if (threadIdx.x != 0) return;
        int which = 0;
        ((scratch.whole[which++] = value), ...);
        scratch.away = missing < MEMBERS || slice != home;
        scratch.next = missing < MEMBERS ? (home + missing) % MEMBERS : home;
    }

    // Counts blocks that have seen all partials and need the flags no more; returns how many did so
    // before. (The last thread asks, since it is often idle then, and waits at once, which takes no
    // register.)
    __device__ __forceinline__ int depart() const {
        return threadIdx.x == THREADS - 1 ? count_one(words + WORDS) : 0;
    }
    __device__ __forceinline__ void clear(int departed) const {
        if (departed < MEMBERS - 1) return;
        fence_acquire();
        for (int k = 0; k <= WORDS; ++k) reset_word(words + k);
    }

    // After a barrier: either this slice's results may be computed, or another slice is next.
    __device__ __forceinline__ void go_on() {
        away = scratch.away;
        slice = scratch.next;
    }
};

// Chan merge over a warp: `part(k, which)` gives a lane's pivots, residuals and squares, `count(k)`
// their counts. The pivot is finite.
template <int ROUNDS, class Part, class Count>
__device__ __forceinline__ PartMoments merge_rounds(float total, Part part, Count count) {
    float pivot[ROUNDS], apart[ROUNDS], squares[ROUNDS], weight[ROUNDS];
#pragma unroll
    for (int k = 0; k < ROUNDS; ++k) {
        pivot[k] = part(k, 0), apart[k] = part(k, 1), squares[k] = part(k, 2), weight[k] = float(count(k));
    }
    const float origin = __shfl_sync(0xffffffffu, pivot[0], 0), inverse = 1.f / total;
    float offset = 0.f;
#pragma unroll
    for (int k = 0; k < ROUNDS; ++k) {
        apart[k] += pivot[k] - origin;
        offset += weight[k] > 0.f ? weight[k] * apart[k] : 0.f;
    }
    offset = lanes_reduce<32, Sum>(offset) * inverse;
    float sum = 0.f;
#pragma unroll
    for (int k = 0; k < ROUNDS; ++k) {
        sum += weight[k] > 0.f ? squares[k] + weight[k] * square(apart[k] - offset) : 0.f;
    }
    return {origin, offset, lanes_reduce<32, Sum>(sum), total};
}

// Moments of a row that is split over blocks.
template <class Layout, int TURN, int MEMBERS, int THREADS, int VALUES, class Visit>
__device__ __forceinline__ Moments team_moments(
    CooperativeRow<MEMBERS, THREADS, VALUES>& cooperative, int& side, Visit each) {
    using Rows = CooperativeRow<MEMBERS, THREADS, VALUES>;
    constexpr int WARPS = THREADS / 32, SLICE = Layout::SLICE * Layout::VECTOR;
    const auto elements_of = [](int member) {
        return member < MEMBERS ? clamped(Layout::ELEMENTS - member * SLICE, SLICE) : 0;
    };
    const auto elements_of_warp = [&](int warp) {
        return warp < WARPS ? Layout::elements_of_warp(cooperative.slice * WARPS + warp) : 0;
    };
    const PartMoments own = warp_moments_in_one<Layout::VECTOR, TURN>(each);
    hand_in(cooperative.scratch.block, side, own.pivot, own.residual, own.squares);
    const auto* of_warps = hand_out(cooperative.scratch.block, side);
    if (threadIdx.x < 32) {
        const int lane = threadIdx.x;
        const auto of_warp = [&](int, int which) { return of_warps[lane < WARPS ? lane : 0][which]; };
        const PartMoments block = merge_rounds<1>(
            float(elements_of(cooperative.slice)), of_warp, [&](int) { return elements_of_warp(lane); });
        cooperative.leave(block.pivot, block.residual, block.squares);
        const int missing = cooperative.look();
        PartMoments all;
        if (missing == MEMBERS) {
            const auto count = [&](int k) { return elements_of(k * 32 + lane); };
            all = merge_rounds<Rows::ROUNDS>(
                float(Layout::ELEMENTS), [&](int k, int which) { return cooperative.part(k, which); }, count);
        }
        cooperative.settle(missing, all.pivot, all.residual, all.squares);
    }
    __syncthreads();
    constexpr float LENGTH = float(Layout::ELEMENTS);
    const float pivot = cooperative.scratch.whole[0], apart = cooperative.scratch.whole[1],
                squares = cooperative.scratch.whole[2];
    cooperative.go_on();
    const float mean = pivot + apart;
    const float left = if_finite((pivot - mean) + apart);
    return {mean, left * LENGTH, squares + square(left) * LENGTH};
}
