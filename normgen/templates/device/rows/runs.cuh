#pragma once

// ---- Sums over parts of a row -------------------------------------------------------------------

// N values of every lane, added up over runs of RUN lanes. Each step leaves a lane half the values,
// of twice the lanes: 5 values take 8 exchanges, where one by one they would take 25. In the end
// lanes have different values, and store them together.
template <int RUN, int N> __device__ __forceinline__ void add_runs(float (&values)[N]) {
    int count = N;
#pragma unroll
    for (int distance = RUN / 2; distance > 0; distance /= 2) {
        const bool upper = threadIdx.x & distance;
        const int kept = (count + 1) / 2;
#pragma unroll
        for (int i = 0; i < kept; ++i) {
            const float other = i + kept < count ? values[i + kept] : 0.f;
            const float given = upper || count == 1 ? values[i] : other;
            values[i] = (upper && count > 1 ? other : values[i])
                + __shfl_xor_sync(0xffffffffu, given, distance);
        }
        count = kept;
    }
}

// The value, of the N, that a lane has in the end in place `i`; N where it has none.
template <int RUN, int N> __device__ __forceinline__ int value_of_run(int i) {
    int number = i;
#pragma unroll
    for (int lanes = RUN; lanes > 1; lanes /= 2) {  // the last step first
        const int count = (N + lanes / 2 - 1) / (lanes / 2), kept = (N + lanes - 1) / lanes;
        if (threadIdx.x & (RUN / lanes)) number += kept;
        if (number >= count) number = N;
    }
    return number;
}

// Leaves what each vector of a row adds to the sum of its part, once runs of lanes have been added
// up: `value(i)` of what `add_runs` left in place `i`. A part has SPAN elements, in runs of RUN
// vectors of neighbouring lanes. Partials lie as [run of a part][row][part], so that the second
// stage finds neighbouring parts side by side.
template <class Layout, int RUN, int VEC, int SPAN, int LENGTH, int ITEMS, class Index, class Value>
__device__ __forceinline__ void put_runs(
    float* partial, Index rows, Index row, int lane, bool live, Value value) {
    constexpr int RUNS = SPAN / (RUN * VEC);
    static_assert(SPAN % (RUN * VEC) == 0 && LENGTH % SPAN == 0 && RUN <= Layout::LANES);
#pragma unroll
    for (int i = 0; i < (ITEMS + RUN - 1) / RUN; ++i) {
        const int item = value_of_run<RUN, ITEMS>(i);
        const int run = Layout::column(item, lane) / (RUN * VEC);
        if (live && item < ITEMS && run < LENGTH / (RUN * VEC)) {
            partial[(run % RUNS * rows + row) * (LENGTH / SPAN) + run / RUNS] = value(i);
        }
    }
}
