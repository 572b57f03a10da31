#pragma once
#include "normgen/async.cuh"
#include "normgen/math.cuh"
#include "normgen/vector.cuh"

// ---- Windows: elements and their neighbours -----------------------------------------------------
// An image is a run of `size` contiguous elements in which windows end where the image does: what
// lies outside counts as 0. A span is VEC adjacent elements of it with HALO neighbours on either
// side. Arrays over a span are indexed by HALO + i, where i = 0 is the first of the VEC elements.
// Neighbours are added by __fadd_rn, which no compiler fuses with a product: so the sums have the
// same bits however images are divided.

template <class Index> __device__ __forceinline__ Index first_inside(Index at) { return at < 0 ? 0 : at; }
template <class Index> __device__ __forceinline__ Index last_inside(Index at, Index size) {
    return at < size ? at : size - 1;
}
template <class Index> __device__ __forceinline__ Index nearest_inside(Index at, Index last) {
    return at < 0 ? 0 : at > last ? last : at;
}

// VEC adjacent elements through L1, which serves their neighbours; or the default of a missing
// operand.
template <bool PRESENT, int N, class T>
__device__ __forceinline__ void fetch(float (&values)[N], const T* address, float missing) {
    Vector<T, N> words;
    if constexpr (PRESENT) words = load_vector<N>(address);
    unpack_or<PRESENT>(words, missing, values);
}

// The same where the elements are `stride` apart.
template <bool PRESENT, int N, class T, class Index>
__device__ __forceinline__ void fetch_apart(
    float (&values)[N], const T* address, Index stride, float missing) {
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = PRESENT ? load_scalar(address + i * stride) : missing;
}

template <class T, int VEC, int HALO> struct Span {
    static constexpr int PIECE = HALO == 0 || HALO > VEC ? VEC : HALO;
    static constexpr int PIECES = HALO / PIECE;
    static_assert(HALO % PIECE == 0, "a halo is loaded in pieces that are aligned as the elements are");
    Vector<T, PIECE> left[PIECES + 1];  // (arrays of no elements are not C++)
    Vector<T, VEC> own;
    Vector<T, PIECE> right[PIECES + 1];

    // Elements outside the image are undefined: some other elements of it are loaded.
    template <class Index> __device__ __forceinline__ void load(const T* image, Index at, Index size) {
        own = load_vector<VEC>(image + nearest_inside(at, size - VEC));
#pragma unroll
        for (int piece = 0; piece < PIECES; ++piece) {
            left[piece] = load_vector<PIECE>(image + nearest_inside(at - HALO + piece * PIECE, size - PIECE));
            right[piece] = load_vector<PIECE>(image + nearest_inside(at + VEC + piece * PIECE, size - PIECE));
        }
    }
    __device__ __forceinline__ void unpack_to(float (&values)[VEC + 2 * HALO]) const {
        float middle[VEC], part[PIECE];
        unpack(own, middle);
#pragma unroll
        for (int i = 0; i < VEC; ++i) values[HALO + i] = middle[i];
#pragma unroll
        for (int piece = 0; piece < PIECES; ++piece) {
            unpack(left[piece], part);
#pragma unroll
            for (int i = 0; i < PIECE; ++i) values[piece * PIECE + i] = part[i];
            unpack(right[piece], part);
#pragma unroll
            for (int i = 0; i < PIECE; ++i) values[HALO + VEC + piece * PIECE + i] = part[i];
        }
    }
};

// The values of an operand over a span, or the default of a missing one.
template <bool PRESENT, class T, int VEC, int HALO>
__device__ __forceinline__ void unpack_span(
    const Span<T, VEC, HALO>& span, float missing, float (&values)[VEC + 2 * HALO]) {
    if constexpr (PRESENT) {
        span.unpack_to(values);
    } else {
#pragma unroll
        for (int i = 0; i < VEC + 2 * HALO; ++i) values[i] = missing;
    }
}

// Zeroes the places outside the image, of those up to REACH from the VEC elements at `at`.
template <int VEC, int HALO, int REACH, class Index>
__device__ __forceinline__ void keep_inside(float (&values)[VEC + 2 * HALO], Index at, Index size) {
    if (at >= REACH && at <= size - VEC - REACH) return;
#if !defined(NORMGEN_HOST)
    asm volatile("");  // a branch that is hardly ever taken, not a selection for each element
#endif
#pragma unroll
    for (int i = -REACH; i < VEC + REACH; ++i) {
        if (at + i < 0 || at + i >= size) values[HALO + i] = 0.f;
    }
}

// values[i] = function(values[i]) for i from FIRST to before LAST, in a loop that is not unrolled:
// the elements move along, so that they stay in registers. For rare cases, which would otherwise
// fill the instruction cache.
template <int FIRST, int LAST, int N, class Function>
__device__ __forceinline__ void one_by_one(float (&values)[N], Function function) {
#pragma unroll 1
    for (int turn = FIRST; turn < LAST; ++turn) {
        const float value = function(values[FIRST]);
#pragma unroll
        for (int i = FIRST; i < LAST - 1; ++i) values[i] = values[i + 1];
        values[LAST - 1] = value;
    }
}

// values[i]^exponent for i from FIRST to before LAST, in place. The exponent is an argument of the
// kernel, so all threads take the same branch, once for all elements.
template <int FIRST, int LAST, int N> __device__ __forceinline__ bool all_normal(const float (&values)[N]) {
    float least = values[FIRST];
#pragma unroll
    for (int i = FIRST + 1; i < LAST; ++i) least = minimum(least, values[i]);
    return least >= LEAST_NORMAL;
}
template <int QUARTERS, int FIRST, int LAST, int N>
__device__ __forceinline__ void raise_quarters(float (&values)[N]) {
    if (all_normal<FIRST, LAST>(values)) {
#pragma unroll
        for (int i = FIRST; i < LAST; ++i) values[i] = normal_quarter_power<QUARTERS>(values[i]);
    } else {
        one_by_one<FIRST, LAST>(values, [](float x) { return quarter_power<QUARTERS>(x); });
    }
}
template <int FIRST, int LAST, int N>
__device__ __forceinline__ void raise_all(float (&values)[N], float exponent) {
    if (exponent == -0.75f) {
        raise_quarters<-3, FIRST, LAST>(values);
    } else if (exponent == -1.75f) {
        raise_quarters<-7, FIRST, LAST>(values);
    } else if (exponent == -0.5f) {
        raise_quarters<-2, FIRST, LAST>(values);
    } else if (exponent == -1.5f) {
        raise_quarters<-6, FIRST, LAST>(values);
    } else {
        one_by_one<FIRST, LAST>(values, [&](float x) { return general_power(x, exponent); });
    }
}

// Two powers of the same numbers whose exponents differ by one, as a derivative needs; their roots
// are shared. Fills `lower`.
template <int QUARTERS, int FIRST, int LAST, int N>
__device__ __forceinline__ void raise_quarters_twice(float (&values)[N], float (&lower)[N]) {
#pragma unroll
    for (int i = FIRST; i < LAST; ++i) lower[i] = values[i];
    if (all_normal<FIRST, LAST>(values)) {
#pragma unroll
        for (int i = FIRST; i < LAST; ++i) {
            values[i] = normal_quarter_power<QUARTERS>(values[i]);
            lower[i] = normal_quarter_power<QUARTERS - 4>(lower[i]);
        }
    } else {
        one_by_one<FIRST, LAST>(values, [](float x) { return quarter_power<QUARTERS>(x); });
        one_by_one<FIRST, LAST>(lower, [](float x) { return quarter_power<QUARTERS - 4>(x); });
    }
}
template <int FIRST, int LAST, int N>
__device__ __forceinline__ void raise_twice(
    float (&values)[N], float (&lower)[N], float exponent, float lower_exponent) {
    if (exponent == -0.75f && lower_exponent == -1.75f) {
        raise_quarters_twice<-3, FIRST, LAST>(values, lower);
    } else if (exponent == -0.5f && lower_exponent == -1.5f) {
        raise_quarters_twice<-2, FIRST, LAST>(values, lower);
    } else {
#pragma unroll
        for (int i = FIRST; i < LAST; ++i) lower[i] = values[i];
        one_by_one<FIRST, LAST>(values, [&](float x) { return general_power(x, exponent); });
        one_by_one<FIRST, LAST>(lower, [&](float x) { return general_power(x, lower_exponent); });
    }
}

// sums[i] = values[i + LOW] + ... + values[i + HIGH], in this order, for the places up to REACH
// from the VEC elements. Both may be the same array.
template <int LOW, int HIGH, int VEC, int HALO, int REACH>
__device__ __forceinline__ void add_window(
    float (&sums)[VEC + 2 * HALO], const float (&values)[VEC + 2 * HALO]) {
    float found[VEC + 2 * REACH];
#pragma unroll
    for (int i = 0; i < VEC + 2 * REACH; ++i) {
        found[i] = values[HALO - REACH + i + LOW];
#pragma unroll
        for (int step = LOW + 1; step <= HIGH; ++step) {
            found[i] = __fadd_rn(found[i], values[HALO - REACH + i + step]);
        }
    }
#pragma unroll
    for (int i = 0; i < VEC + 2 * REACH; ++i) sums[HALO - REACH + i] = found[i];
}

// ---- March: the lanes of a warp hold neighbouring elements --------------------------------------

// An address in global memory as one number: an offset then takes one instruction, where the
// compiler would add up all terms again.
template <class T> __device__ __forceinline__ T* whole_address(T* address) {
#if !defined(NORMGEN_HOST)
    size_t number = __cvta_generic_to_global(address);
    asm("" : "+l"(number));
    address = static_cast<T*>(__cvta_global_to_generic(number));
#endif
    return address;
}

// An operand's vectors of the last SLOTS steps, in shared memory, where they arrive asynchronously
// and take no registers; each thread reads what it copied itself. Vectors narrower than the
// hardware copies stay in registers.
template <bool PRESENT, class T, int VEC, int SLOTS, int THREADS> struct Steps {
    static constexpr bool COPIED = VEC * sizeof(T) >= 4;
    static constexpr int BYTES = PRESENT && COPIED ? SLOTS * THREADS * VEC * int(sizeof(T)) : 0;
    using Slots = Pipeline<T, VEC, THREADS>;
    unsigned char* pipeline;
    Vector<T, VEC> kept[COPIED ? 1 : SLOTS];

    // Takes its part of the shared memory.
    __device__ __forceinline__ explicit Steps(unsigned char*& shared) : pipeline(shared) { shared += BYTES; }

    __device__ __forceinline__ void load(int slot, const T* source) {
        if constexpr (PRESENT && COPIED) Slots::fill(pipeline, slot, source);
        if constexpr (PRESENT && !COPIED) kept[slot] = load_vector<VEC>(source);
    }
    // For steps before the first.
    __device__ __forceinline__ void clear(int slot) {
        if constexpr (PRESENT && COPIED) Slots::write(pipeline, slot, Vector<T, VEC>{});
        if constexpr (PRESENT && !COPIED) kept[slot] = {};
    }
    __device__ __forceinline__ void read(int slot, float missing, float (&values)[VEC]) const {
        if constexpr (PRESENT && COPIED) {
            unpack(Slots::read(pipeline, slot), values);
        } else {
            unpack_or<PRESENT>(kept[COPIED ? 0 : slot], missing, values);
        }
    }
};

// The VEC elements of a thread with LEFT before and RIGHT behind them, from other lanes. At the
// ends of a warp there are none: those lanes get something else.
template <int LEFT, int RIGHT, int VEC>
__device__ __forceinline__ void with_neighbours(
    const float (&own)[VEC], float (&around)[LEFT + VEC + RIGHT]) {
#pragma unroll
    for (int i = 0; i < VEC; ++i) around[LEFT + i] = own[i];
#pragma unroll
    for (int i = 1; i <= LEFT; ++i) {
        around[LEFT - i] = __shfl_up_sync(~0u, own[(VEC - i % VEC) % VEC], (i + VEC - 1) / VEC);
    }
#pragma unroll
    for (int i = 0; i < RIGHT; ++i) around[LEFT + VEC + i] = __shfl_down_sync(~0u, own[i % VEC], i / VEC + 1);
}

// sums[i] = values[i + LOW] + ... + values[i + HIGH], in this order.
template <int LOW, int HIGH, int VEC> __device__ __forceinline__ void add_across(float (&values)[VEC]) {
    constexpr int LEFT = LOW < 0 ? -LOW : 0, RIGHT = HIGH > 0 ? HIGH : 0;
    float around[LEFT + VEC + RIGHT];
    with_neighbours<LEFT, RIGHT>(values, around);
#pragma unroll
    for (int i = 0; i < VEC; ++i) {
        values[i] = around[LEFT + i + LOW];
#pragma unroll
        for (int step = LOW + 1; step <= HIGH; ++step) {
            values[i] = __fadd_rn(values[i], around[LEFT + i + step]);
        }
    }
}

// Adds the values of one step to the sums of all steps whose windows hold it: windows from LOW to
// HIGH steps. Elements that face each other lie DRIFT further along per step. A step's sum begins
// with its lowest neighbour.
template <int LOW, int HIGH, int DRIFT, int VEC, int SLOTS>
__device__ __forceinline__ void add_to_windows(
    float (&sums)[SLOTS][VEC], int slot, const float (&values)[VEC]) {
    constexpr int FIRST = DRIFT < 0 ? DRIFT * HIGH : DRIFT * LOW,
                  LAST = DRIFT < 0 ? DRIFT * LOW : DRIFT * HIGH;
    constexpr int LEFT = FIRST < 0 ? -FIRST : 0, RIGHT = LAST > 0 ? LAST : 0;
    float around[LEFT + VEC + RIGHT];
    with_neighbours<LEFT, RIGHT>(values, around);
#pragma unroll
    for (int step = LOW; step <= HIGH; ++step) {
        float(&sum)[VEC] = sums[(slot - step + 2 * SLOTS) % SLOTS];
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            const float value = around[LEFT + i + DRIFT * step];
            sum[i] = step == LOW ? value : __fadd_rn(sum[i], value);
        }
    }
}

__device__ __forceinline__ bool is_inside(int at, int size) {
    return static_cast<unsigned int>(at) < static_cast<unsigned int>(size);
}
__device__ __forceinline__ bool is_inside(long long at, long long size) {
    return static_cast<unsigned long long>(at) < static_cast<unsigned long long>(size);
}

// Zeroes a vector that lies outside of `size` elements. Vectors lie inside or outside as a whole.
template <int VEC, class Index>
__device__ __forceinline__ void keep_vector_inside(float (&values)[VEC], Index at, Index size) {
    if (is_inside(at, size)) return;
#if !defined(NORMGEN_HOST)
    asm volatile("");  // a branch that is hardly ever taken, not a selection for each element
#endif
#pragma unroll
    for (int i = 0; i < VEC; ++i) values[i] = 0.f;
}
