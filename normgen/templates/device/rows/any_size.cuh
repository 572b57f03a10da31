#pragma once
#include "normgen/accumulators.cuh"
#include "normgen/async.cuh"
#include "normgen/cluster.cuh"
#include "normgen/math.cuh"
#include "normgen/realigned.cuh"
#include "normgen/statistics.cuh"
#include "normgen/team.cuh"
#include "normgen/vector.cuh"

// ---- Rows whose length is an argument -----------------------------------------------------------
// A thread group is `team` lanes of a warp, or a block, or several blocks with `team` threads each:
// where they exchange something, those of a cluster, of MEMBERS. It goes over its row in rounds, in
// each of which a thread has some vectors: a row of one round stays in registers.

// Where the vectors of a row lie, which may come in pieces of `length` elements. REALIGNED: pieces
// begin anywhere in a word of memory, and vectors where words do: `shift` elements ahead of a
// piece is the first, and vectors at the ends of a piece are the row's in part. (So the order in
// which elements are added up depends on where a row begins.)
template <int VEC, bool REALIGNED> struct AnyRow {
    int length, each, vectors, stride, lane;

    // `live`: whether the thread has a row at all. `team`: threads of the group in each of so many
    // blocks, of which this is one.
    __device__ __forceinline__ AnyRow(int length, int pieces, int team, int blocks, int block, bool live)
        : length(length) {
        // as many vectors of each piece, wherever it begins
        each = (length + VEC - 1 + (REALIGNED ? VEC - 1 : 0)) / VEC;
        vectors = live ? each * pieces : 0;
        stride = team * blocks;
        lane = block * team + int(threadIdx.x) % team;
    }
    // How many rounds of ITEMS vectors per thread the row takes.
    template <int ITEMS> __device__ __forceinline__ int rounds() const {
        return (vectors + stride * ITEMS - 1) / (stride * ITEMS);
    }
    // The number of a thread's `item`-th vector, and whether there is one.
    __device__ __forceinline__ int vector(int item) const { return item * stride + lane; }
    __device__ __forceinline__ bool has(int item) const { return vector(item) < vectors; }
    // The piece that a vector is of, and the column of the piece at which it begins.
    __device__ __forceinline__ int piece(int item) const {
        return int((unsigned int)vector(item) / (unsigned int)each);
    }
    __device__ __forceinline__ int column(int item, int piece, int shift) const {
        return (vector(item) - piece * each) * VEC - (REALIGNED ? shift : 0);
    }
    __device__ __forceinline__ bool whole(int column) const {
        return !REALIGNED || (column >= 0 && column + VEC <= length);
    }
    // Which elements of a vector are the row's.
    __device__ __forceinline__ int begin(int column) const { return column < 0 ? -column : 0; }
    __device__ __forceinline__ int end(int column) const {
        const int left = length - column;
        return left < VEC ? left : VEC;
    }
    __device__ __forceinline__ bool inside(int column) const {
        return !REALIGNED || (unsigned int)column < (unsigned int)length;
    }
    // A vector of an operand, of which elements that are not the row's are zero.
    template <class T> __device__ __forceinline__ Vector<T, VEC> load(const T* row, int column) const {
        if constexpr (REALIGNED) {
            if (!whole(column)) {
                Vector<T, VEC> vector;
                vector.word[0] = load_elements(row + column, begin(column), end(column));
                return vector;
            }
        }
        return ::load_vector<VEC>(row + column);
    }
    template <class T>
    __device__ __forceinline__ void store(T* row, int column, const Vector<T, VEC>& vector) const {
        if constexpr (REALIGNED) {
            if (!whole(column)) {
                store_elements(row + column, vector.word[0], begin(column), end(column));
                return;
            }
        }
        ::store_vector(row + column, vector);
    }
    // Adds the values that memory holds already.
    template <class T>
    __device__ __forceinline__ void add_stored(const T* row, int column, float (&values)[VEC]) const {
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            if (inside(column + i)) values[i] += to_float(row[column + i]);
        }
    }
};

// The elements of an operand that a vector needs which `span` neighbours of a row share, if they
// are VEC or more: that of its first element, and if REALIGNED that of those from `until` on.
template <bool REALIGNED> struct Run {
    int first, next, until;

    __device__ __forceinline__ Run(int column, int span, int length) {
        first = column < 0 ? 0 : column;
        until = int((unsigned int)first / (unsigned int)span + 1) * span - column;
        next = column + until < length ? column + until : first;
    }
    __device__ __forceinline__ float of(int i, float here, float there) const {
        return !REALIGNED || i < until ? here : there;
    }
};

// ---- What the threads of such a group exchange --------------------------------------------------

template <int MEMBERS, int THREADS, int VALUES>
using AnyExchange = Exchange<MEMBERS * THREADS, THREADS, VALUES>;

template <int MEMBERS, int VALUES> __device__ __forceinline__ int bytes_of_any() {
    return MEMBERS * int(blockDim.x) / 32 * int(sizeof(Given<VALUES, true>));
}

// Opens exchanges, ahead of loads, and waits until every block of the cluster runs.
template <int MEMBERS, int THREADS, int VALUES>
__device__ __forceinline__ void open_any(AnyExchange<MEMBERS, THREADS, VALUES>& exchange) {
    if constexpr (MEMBERS > 1) {
        if (threadIdx.x == 0) {
            open_arrivals(exchange.arrival, 2);
            for (int part = 0; part < 2; ++part) {
                expect_bytes(&exchange.arrival[part], bytes_of_any<MEMBERS, VALUES>());
            }
        }
        cluster_arrive();
    }
}
template <int MEMBERS> __device__ __forceinline__ void join_any() {
    if constexpr (MEMBERS > 1) cluster_wait();
}

// What every warp of the group has given, once all have.
template <int MEMBERS, int THREADS, int VALUES, class... Float>
__device__ __forceinline__ const Given<VALUES, (MEMBERS > 1)>* given_by_any(
    AnyExchange<MEMBERS, THREADS, VALUES>& exchange, int& side, Float... value) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if constexpr (MEMBERS > 1) {
        const int part = side % 2;
        auto& place = exchange.slot[part][cluster_rank() * int(blockDim.x / 32) + warp];
        arrival_t* const arrival = &exchange.arrival[part];
        __syncwarp();  // what other lanes did before comes before what a receiver does after
        if (lane < MEMBERS) {
            const Given<VALUES, true> given{value...};
            send_to_block(place.value, given.value, arrival, lane);
            end_message();
        }
        await_sent(arrival, side / 2);
        if (threadIdx.x == 0) expect_bytes(arrival, bytes_of_any<MEMBERS, VALUES>());
        side = (side + 1) % 4;
        return exchange.slot[part];
    } else {
        const auto* slot = exchange.slot[side];
        if (lane == 0) exchange.slot[side][warp] = Given<VALUES, false>{value...};
        __syncthreads();
        side ^= 1;
        return slot;
    }
}

// Whether the group is more than a warp.
template <int MEMBERS> __device__ __forceinline__ bool in_warps(int team) { return MEMBERS > 1 || team > 32; }

template <class Op> __device__ __forceinline__ float some_lanes_reduce(float value, int lanes) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        if (distance < lanes) value = Op::apply(value, __shfl_xor_sync(0xffffffffu, value, distance));
    }
    return value;
}

// Replaces every value by its reduction over the group, in a fixed order, in one exchange.
template <class... Op> struct AnyTeam {
    template <int MEMBERS, int THREADS, int VALUES, class... Float>
    static __device__ __forceinline__ void reduce(
        AnyExchange<MEMBERS, THREADS, VALUES>& exchange, int& side, int team, Float&... value) {
        ((value = some_lanes_reduce<Op>(value, team)), ...);
        if (!in_warps<MEMBERS>(team)) return;
        const auto* slot = given_by_any<MEMBERS, THREADS, VALUES>(exchange, side, value...);
        const int warps = MEMBERS * int(blockDim.x) / 32;
        ((value = Op::START), ...);
        for (int warp = threadIdx.x % 32; warp < warps; warp += 32) {
            int which = 0;
            ((value = Op::apply(value, slot[warp][which++])), ...);
        }
        ((value = lanes_reduce<32, Op>(value)), ...);
    }
};

// Moments of the values of a thread, of vectors that may be the row's in part.
template <int VEC> struct AnyMoments {
    ValueMoments own;

    template <class Row>
    __device__ __forceinline__ void add(const float (&values)[VEC], const Row& row, int column) {
        if (row.whole(column)) {
            own.add(values);
            return;
        }
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            if (!row.inside(column + i)) continue;
            const float one[1] = {values[i]};
            own.add(one);
        }
    }
    // Of the whole group: the mean of its row, and the sums about it.
    template <int MEMBERS, int THREADS, int VALUES>
    __device__ __forceinline__ Moments over_team(
        AnyExchange<MEMBERS, THREADS, VALUES>& exchange, int& side, int team, int count) const {
        PartMoments all = own.settled();
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2) {
            if (distance < team) all = merged(all, shuffle_down(all, distance));
        }
        all = of_lane(all, team < 32 ? int(threadIdx.x % 32) / team * team : 0);
        if (in_warps<MEMBERS>(team)) {
            const auto* slot = given_by_any<MEMBERS, THREADS, VALUES>(
                exchange, side, all.pivot, all.residual, all.squares, all.count);
            const int warps = MEMBERS * int(blockDim.x) / 32;
            all = {};
            for (int warp = threadIdx.x % 32; warp < warps; warp += 32) {
                const auto theirs = slot[warp];
                all = merged(all, PartMoments{theirs[0], theirs[1], theirs[2], theirs[3]});
            }
            all = merge_lanes(all);
        }
        const float mean = all.pivot + all.residual;
        const float left = if_finite((all.pivot - mean) + all.residual);
        return {mean, left * float(count), all.squares + square(left) * float(count)};
    }
};
