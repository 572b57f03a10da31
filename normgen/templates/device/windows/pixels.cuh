#pragma once
#include "normgen/realigned.cuh"
#include "normgen/vector.cuh"
#include "normgen/windows/windows.cuh"

// ---- Pixels: a thread walks along the axis of the windows, and its neighbours are its own -------
// A plane is what lies between one element along the axis and the next, PLANE elements; a pixel is
// a place in it. A thread takes CHUNK channels of its pixel at a time, and works on PART of them:
// arrays over a part may have some of the channels before in front, so that values[N - PART + i] is
// channel `i` of the part.

// The elements of an operand in the next chunk. Those of a part are loaded when the part before in
// their place is done: so registers hold one chunk, and all but a part of it is in flight.
template <bool PRESENT, class T, int CHUNK, int PLANE> struct Coming {
    Vector<T, 1> words[PRESENT ? CHUNK : 1];

    // Loads the channels from `first` on of a chunk that lies inside; `from` is the chunk's first.
    template <int PART> __device__ __forceinline__ void ask(const T* from, int first) {
        if constexpr (PRESENT) {
#pragma unroll
            for (int i = first; i < first + PART; ++i) {
                words[i] = load_vector<1>(from + i * (long long)(PLANE));
            }
        }
    }
    // The same for any chunk: the nearest channels are read in place of those outside.
    template <int PART, class Index>
    __device__ __forceinline__ void ask_nearest(const T* from, int first, Index chunk, Index channels) {
        if constexpr (PRESENT) {
#pragma unroll
            for (int i = first; i < first + PART; ++i) {
                words[i] = load_vector<1>(from + (nearest_inside(chunk + i, channels - 1) - chunk) * PLANE);
            }
        }
    }
    template <int PART, int N>
    __device__ __forceinline__ void take(int first, float missing, float (&values)[N]) const {
#pragma unroll
        for (int i = 0; i < PART; ++i) {
            float value[1];
            unpack_or<PRESENT>(words[PRESENT ? first + i : 0], missing, value);
            values[N - PART + i] = value[0];
        }
    }
};

// Moves the last values of a part in front of the next.
template <int PART, int N> __device__ __forceinline__ void carry_on(float (&values)[N]) {
#pragma unroll
    for (int i = 0; i < N - PART; ++i) values[i] = values[PART + i];
}

// Zeroes the channels of a part that lie outside, where not all of them are known to be `inside`.
template <int PART, int N, class Index>
__device__ __forceinline__ void keep_channels_inside(
    float (&values)[N], bool inside, Index channel, Index channels) {
    if (inside) return;
#if !defined(NORMGEN_HOST)
    asm volatile("");  // a branch that is hardly ever taken, not a selection for each element
#endif
#pragma unroll
    for (int i = 0; i < PART; ++i) {
        if (!is_inside(channel + i, channels)) values[N - PART + i] = 0.f;
    }
}

// sums[i] = values[i] + ... + values[i + COUNT - 1], by halves that neighbours share: 3 additions
// per sum of 5 values, 4 of 9. A sum has the same order wherever it stands.
template <int COUNT, int N, int M>
__device__ __forceinline__ void add_halves(float (&sums)[N], const float (&values)[M]) {
    static_assert(M >= N + COUNT - 1, "each sum has all its values");
    if constexpr (COUNT == 1) {
#pragma unroll
        for (int i = 0; i < N; ++i) sums[i] = values[i];
    } else if constexpr (COUNT % 2 == 0) {
        float halves[N + COUNT / 2];
        add_halves<COUNT / 2>(halves, values);
#pragma unroll
        for (int i = 0; i < N; ++i) sums[i] = __fadd_rn(halves[i], halves[i + COUNT / 2]);
    } else {
        add_halves<COUNT - 1>(sums, values);
#pragma unroll
        for (int i = 0; i < N; ++i) sums[i] = __fadd_rn(sums[i], values[i + COUNT - 1]);
    }
}
template <int COUNT, int PART, int N, int M>
__device__ __forceinline__ void add_windows(float (&sums)[N], const float (&values)[M]) {
    float found[PART];
    add_halves<COUNT>(found, values);
#pragma unroll
    for (int i = 0; i < PART; ++i) sums[N - PART + i] = found[i];
}

// Adds the values that memory holds already, of the rows of a part from `from` to before `to`.
template <int PLANE, class T, int PART>
__device__ __forceinline__ void add_stored_rows(const T* address, float (&values)[PART], int from, int to) {
#pragma unroll
    for (int i = 0; i < PART; ++i) {
        if (i >= from && i < to) values[i] += to_float(address[i * (long long)(PLANE)]);
    }
}

// The results of a block's THREADS pixels in CHUNK channels, one row each, staged through shared
// memory: rows begin at any element, and stored by the threads that computed them they would touch
// one more sector per warp. (Two chunks, so that one barrier per chunk is enough.) Rows are as far
// apart as planes are, modulo a word, and begin where they do in memory: so words of 16 bytes here
// are words there.
template <class T, int CHUNK, int THREADS, int PLANE> struct StagedRows {
    static constexpr int EACH = ELEMENTS_OF_WORD<T>, WARPS = THREADS / 32;
    static constexpr int PITCH = THREADS + PLANE % EACH;
    static constexpr int ROOM = (EACH - 1 + CHUNK * PITCH + EACH - 1) / EACH * EACH;
    T* room;

    // Takes its part of the shared memory.
    __device__ __forceinline__ explicit StagedRows(unsigned char*& shared)
        : room(reinterpret_cast<T*>(shared)) {
        shared += 2 * ROOM * sizeof(T);
    }
    // Where a chunk's first row begins. `rows`: its destination.
    __device__ __forceinline__ T* place(int turn, const T* rows) const {
        return room + turn % 2 * ROOM + shift_of(rows);
    }

    // A thread's results of a part, whose first row is `first`.
    template <int PART>
    __device__ __forceinline__ void leave(
        int turn, const T* rows, int first, const float (&values)[PART]) const {
        T* const own = place(turn, rows) + threadIdx.x;
#pragma unroll
        for (int i = 0; i < PART; ++i) own[(first + i) * PITCH] = from_float<T>(values[i]);
    }
    // Stores the first `count` elements of the rows from `from` to before `to`, a warp per row,
    // once all threads have left theirs.
    __device__ __forceinline__ void store(int turn, T* rows, int from, int to, int count) const {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int first = 0; first < CHUNK; first += WARPS) {
            const int row = first + int(threadIdx.x) / 32;
            if (row < from || row >= to) continue;
            const T* const source = place(turn, rows) + row * PITCH;
            T* const target = rows + row * (long long)(PLANE);
            // elements of a word that begins before the row
            const int before = (EACH - shift_of(target)) % EACH;
            const int opening = before < count ? before : count;
            const int words = (count - opening) / EACH;
#pragma unroll
            for (int word = lane; word - lane < THREADS / EACH; word += 32) {
                const int at = opening + word * EACH;
                if (word < words) {
                    store_word(
                        reinterpret_cast<uint4*>(target + at), *reinterpret_cast<const uint4*>(source + at));
                }
            }
            const int end = lane < opening ? lane : lane + words * EACH;
            if (end < count) target[end] = source[end];
        }
    }
};
