// ---- Running statistics: of values that pass by once ----------------------------------------------------------------------------

// Mean and squares, vector by vector, merged by Chan's rule. The mean is kept as a distance from that of the first vector, which
// keeps its rounding errors as small as the spread of the values.
struct RunningMoments {
    float origin = 0.f;
    float offset = 0.f;
    float squares = 0.f;
    float count = 0.f;

    template <int N> __device__ __forceinline__ void add(const float (&values)[N]) {
        float sum = 0.f;
#pragma unroll
        for (int i = 0; i < N; ++i) sum += values[i];
        const float mean = sum * (1.f / float(N));
        float centred = 0.f, around = 0.f;
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const float c = values[i] - mean;
            centred += c;
            around += square(c);
        }
        if (count == 0.f) origin = mean;
        const float residual = centred * (1.f / float(N));
        const float distance = ((mean - origin) + residual) - offset;
        const float share = float(N) / (count + float(N));
        offset += distance * share;
        squares += (around - centred * residual) + square(distance) * count * share;
        count += float(N);
    }

    template <int TEAM, int VEC, int LENGTH, int THREADS, int VALUES>
    __device__ __forceinline__ Moments over_team(Exchange<TEAM, THREADS, VALUES>& exchange, int& half) const {
        static_assert(TEAM > 32, "a row that streams has a block of its own");
        using Layout = RowPlaces<TEAM, THREADS, VEC, 1, LENGTH, false>;
        const int elements = Layout::elements_of_warp(threadIdx.x % TEAM / 32);
        const float inverse = elements > 0 ? 1.f / float(elements) : 0.f;
        // about the mean of the warp, so that a thread's unlucky first value costs no accuracy
        const float mean = lanes_reduce<32, Sum>(count > 0.f ? count * (origin + offset) : 0.f) * inverse;
        const float apart = (origin - mean) + offset;
        const float residual = lanes_reduce<32, Sum>(count > 0.f ? count * apart : 0.f) * inverse;
        const float around = lanes_reduce<32, Sum>(count > 0.f ? squares + count * square(apart - residual) : 0.f);
        hand_in(exchange, half, mean, residual, around);
        return merge_warps<Layout>(exchange, half);
    }
};

// The maximum, and the sum of the exponentials of the distances from it.
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
    __device__ __forceinline__ void over_team(Exchange<TEAM, THREADS, VALUES>& exchange, int& half) {
        const float own = top;
        Team<Max>::reduce(exchange, half, top);
        if (own != top) total *= expf(own - top);
        Team<Sum>::reduce(exchange, half, total);
        total += top - top;  // NaN where all values are -inf, or one is inf
    }
};
