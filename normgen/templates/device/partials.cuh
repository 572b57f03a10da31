#pragma once
#include "normgen/vector.cuh"

// ---- What blocks leave of sums over rows --------------------------------------------------------
// A row of partials has a float for each of LENGTH columns, and begins where a vector may: threads
// that have N columns side by side, from a multiple of N on, move them in whole words.

// How many floats apart the rows of partials begin.
__host__ __device__ constexpr int partial_pitch(int length) {
    return length > 1 ? (length + 3) / 4 * 4 : 1;
}

// Whoever has the last column fills the row up, so that whole words of it may be read.
template <int LENGTH> __device__ __forceinline__ void store_partial(float* row, int column, float value) {
    row[column] = value;
    if constexpr (LENGTH % 4 > 0) {
        if (column != LENGTH - 1) return;
#pragma unroll
        for (int at = LENGTH; at < partial_pitch(LENGTH); ++at) row[at] = 0.f;
    }
}

template <int LENGTH, int N>
__device__ __forceinline__ void store_partials(float* row, int column, const float (&values)[N]) {
    constexpr int EACH = N % 4 > 0 ? 1 : 4;
#pragma unroll
    for (int first = 0; first < N; first += EACH) {
        if (LENGTH % N > 0 && column + first >= LENGTH) continue;
        if constexpr (EACH == 4) {
            float word[EACH];
            copy_all(values + first, word);
            store_vector(row + column + first, pack<float>(word));
        } else if (column + first < LENGTH) store_partial<LENGTH>(row, column + first, values[first]);
    }
}

template <int LENGTH, int N>
__device__ __forceinline__ void load_partials(const float* row, int column, float (&values)[N]) {
    constexpr int EACH = N < 4 ? N : 4;
    set_all(values, 0.f);
#pragma unroll
    for (int first = 0; first < N; first += EACH) {
        if (LENGTH % N > 0 && column + first >= LENGTH) continue;
        float word[EACH];
        unpack(load_vector<EACH>(row + column + first), word);
#pragma unroll
        for (int i = 0; i < EACH; ++i) values[first + i] = word[i];
    }
}

// The sums themselves, where nobody else has any of them: `results` begin where a vector may.
template <bool ACCUMULATES, int LENGTH, class T, int N>
__device__ __forceinline__ void store_sums(T* results, int column, float (&values)[N]) {
    if constexpr (LENGTH % N > 0) {
        if (column + N > LENGTH) {
#pragma unroll
            for (int i = 0; i < LENGTH % N; ++i) store_scalar<ACCUMULATES>(results + column + i, values[i]);
            return;
        }
    }
    if constexpr (ACCUMULATES) add_stored(results + column, values);
    store_vector(results + column, pack<T>(values));
}
