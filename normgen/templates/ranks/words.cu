// What ranks exchange by words in each other's memory (peers.cuh): all have what each has told, or
// the sum of that. A preamble includes peers.cuh and vector.cuh, and defines RANKS, the type
// `Element` of what is added up, and THREADS. Threads have EACH words of a chunk.

constexpr int EACH = 4, CHUNK = THREADS * EACH;

// Slots of ranks that there are not are null.
#define PEERS                                                                                       \
    tagged_t *slots0, tagged_t *slots1, tagged_t *slots2, tagged_t *slots3, tagged_t *slots4, tagged_t *slots5, \
        tagged_t *slots6, tagged_t *slots7
#define SLOTS slots0, slots1, slots2, slots3, slots4, slots5, slots6, slots7

struct Slots {
    tagged_t* of[8];
};

__device__ __forceinline__ Channel<RANKS> channel_of(const Slots& slots, unsigned* counters, tagged_t* fault,
                                                     long long capacity, long long patience, int rank) {
    Channel<RANKS> channel = {{}, nullptr, counters, fault, capacity, patience, rank, 0};
#pragma unroll
    for (int k = 0; k < RANKS; ++k) {
        channel.slots[k] = slots.of[k];
        if (k == rank) channel.own = slots.of[k];
    }
    channel.begin();
    return channel;
}

__device__ __forceinline__ unsigned bits_of(float value) { return __float_as_uint(value); }
template <class T> __device__ __forceinline__ unsigned bits_of(T value) {
    unsigned short bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

template <class T> __device__ __forceinline__ T element_of(unsigned bits) {
    T value;
    memcpy(&value, &bits, sizeof(value));  // the lower bytes
    return value;
}

// For each chunk of `count` words: tells `value(place)`, and hands `use` what all ranks have told at a
// place, in their order, as words: those that are not there did not come in time.
template <class Value, class Use>
__device__ __forceinline__ void exchange(const Channel<RANKS>& channel, unsigned& shared, long long count,
                                         Value value, Use use) {
    const long long chunks = (count + CHUNK - 1) / CHUNK;
    for (long long chunk = channel.take(shared); chunk < chunks; chunk = channel.take(shared)) {
        const long long first = chunk * CHUNK + threadIdx.x;
        tagged_t words[RANKS][EACH];  // a value of one's own and places beyond the last are there
#pragma unroll
        for (int k = 0; k < EACH; ++k) {
            const long long place = first + k * THREADS;
            const unsigned mine = place < count ? value(place) : 0u;
            if (place < count) channel.tell(place, mine);
#pragma unroll
            for (int from = 0; from < RANKS; ++from) {
                words[from][k] = from == channel.rank || place >= count ? channel.word(mine) : 0;
            }
        }
        channel.await(words, first, THREADS);
#pragma unroll
        for (int k = 0; k < EACH; ++k) {
            if (first + k * THREADS >= count) continue;
            tagged_t at_place[RANKS];
#pragma unroll
            for (int from = 0; from < RANKS; ++from) at_place[from] = words[from][k];
            use(first + k * THREADS, at_place);
        }
    }
    channel.end();
}

// `gathered` becomes [RANKS][count].
extern "C" __global__ void __launch_bounds__(THREADS)
normgen_gather_words(const float* told, float* gathered, PEERS, unsigned* counters, tagged_t* fault,
                     long long count, long long capacity, long long patience, int rank) {
    __shared__ unsigned shared;
    const Channel<RANKS> channel = channel_of({{SLOTS}}, counters, fault, capacity, patience, rank);
    exchange(
        channel, shared, count, [&](long long place) { return __float_as_uint(told[place]); },
        [&](long long place, const tagged_t(&words)[RANKS]) {
#pragma unroll
            for (int from = 0; from < RANKS; ++from) {
                const unsigned bits = channel.is_there(words[from]) ? unsigned(words[from]) : NOTHING;
                gathered[from * count + place] = __uint_as_float(bits);
            }
        });
}

// `total` becomes the sum of the ranks' parts of `count` elements, added up in float32 and in the
// order of ranks, and rounded once. A word has as many elements as there is room for.
extern "C" __global__ void __launch_bounds__(THREADS)
normgen_sum_words(const Element* part, Element* total, PEERS, unsigned* counters, tagged_t* fault,
                  long long count, long long capacity, long long patience, int rank) {
    constexpr int PER = 4 / int(sizeof(Element)), BITS = 32 / PER % 32;
    __shared__ unsigned shared;
    const Channel<RANKS> channel = channel_of({{SLOTS}}, counters, fault, capacity, patience, rank);
    exchange(
        channel, shared, (count + PER - 1) / PER,
        [&](long long place) {
            unsigned bits = 0;
#pragma unroll
            for (int k = 0; k < PER; ++k) {
                if (place * PER + k < count) bits |= bits_of(part[place * PER + k]) << k * BITS;
            }
            return bits;
        },
        [&](long long place, const tagged_t(&words)[RANKS]) {
#pragma unroll
            for (int k = 0; k < PER; ++k) {
                float sum = 0.f;
#pragma unroll
                for (int from = 0; from < RANKS; ++from) {
                    const float told = to_float(element_of<Element>(unsigned(words[from]) >> k * BITS));
                    const float value = channel.is_there(words[from]) ? told : __uint_as_float(NOTHING);
                    sum = from == 0 ? value : sum + value;
                }
                if (place * PER + k < count) total[place * PER + k] = from_float<Element>(sum);
            }
        });
}
