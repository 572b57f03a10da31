// What ranks exchange by words in each other's memory (peers.cuh): all have what each has told, or
// the sum of that. A preamble defines RANKS, the type `Element` of what is added up, THREADS, TICKETS
// and PROGRAMMATIC. Threads have EACH words of a chunk.

constexpr int EACH = 4, CHUNK = THREADS * EACH;

// Slots of ranks that there are not are null. (`own` is one of them: to look it up takes memory.)
#define PEERS                                                                                       \
    tagged_t *slots0, tagged_t *slots1, tagged_t *slots2, tagged_t *slots3, tagged_t *slots4, tagged_t *slots5, \
        tagged_t *slots6, tagged_t *slots7
#define SLOTS slots0, slots1, slots2, slots3, slots4, slots5, slots6, slots7

struct Slots {
    tagged_t* of[8];
};

__device__ __forceinline__ Channel<RANKS> channel_of(const Slots& slots, tagged_t* own, unsigned* counters,
                                                     tagged_t* fault, long long capacity, long long timeout,
                                                     int rank) {
    if constexpr (PROGRAMMATIC) programmatic_wait();  // before anything is read
    Channel<RANKS> channel = {{}, own, counters, fault, capacity, timeout, rank, 0};
#pragma unroll
    for (int k = 0; k < RANKS; ++k) channel.slots[k] = slots.of[k];
    return channel;
}

// Elements as they lie in a word.
constexpr int PER = 4 / int(sizeof(Element));
using InWord = Vector<Element, PER>;

// The word at a place of `count` elements, of which the last may leave room in it.
__device__ __forceinline__ unsigned word_of(const Element* part, int place, int count) {
    const Element* const first = part + place * PER;
    if (PER == 1 || place * PER + PER <= count) return load_vector<PER>(first).word[0];
    unsigned short bits;
    memcpy(&bits, first, sizeof(bits));
    return bits;
}

__device__ __forceinline__ void put_word(Element* total, int place, int count, const float (&sums)[PER]) {
    Element* const first = total + place * PER;
    if (PER == 1 || place * PER + PER <= count) store_vector(first, pack<Element, PER>(sums));
    else *first = from_float<Element>(sums[0]);
}

// The chunk that a block begins with. With tickets it may have none, and yet be the last to end.
__device__ __forceinline__ int first_chunk(Channel<RANKS>& channel, unsigned& shared) {
    if constexpr (!TICKETS) return int(blockIdx.x);
    channel.begin();
    return int(channel.take(shared));
}

// For each chunk of `count` words: tells `value(place)`, and hands `use` what all ranks have told at a
// place, in their order, as words: those that are not there did not come in time. Blocks take chunks
// by TICKETS, or else as they are numbered: all of them then run at the same time sooner or later. The
// next kernel may start when what peers tell is there: earlier it could have the room that an exchange
// over another group needs, for which a peer may be waiting.
template <class Value, class Use>
__device__ __forceinline__ void exchange(Channel<RANKS>& channel, unsigned& shared, int count,
                                         Value value, Use use) {
    const int chunks = (count + CHUNK - 1) / CHUNK;
    for (int chunk = first_chunk(channel, shared); chunk < chunks;
         chunk = TICKETS ? int(channel.take(shared)) : chunk + int(gridDim.x)) {
        const int first = chunk * CHUNK + int(threadIdx.x);
        unsigned mine[EACH];  // all are read before any is told: the compiler reads nothing across that
#pragma unroll
        for (int k = 0; k < EACH; ++k) {
            const int place = first + k * THREADS;
            mine[k] = place < count ? value(place) : 0u;
        }
        if constexpr (!TICKETS) channel.begin();  // not before: what is told is on its way meanwhile
        tagged_t words[RANKS][EACH];  // a value of one's own and places beyond the last are there
#pragma unroll
        for (int k = 0; k < EACH; ++k) {
            const int place = first + k * THREADS;
            if (place < count) channel.tell(place, mine[k]);
#pragma unroll
            for (int from = 0; from < RANKS; ++from) {
                words[from][k] = from == channel.rank || place >= count ? channel.word(mine[k]) : 0;
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
    if constexpr (PROGRAMMATIC) programmatic_launch();
    channel.end();
}

// `gathered` becomes [RANKS][count].
extern "C" __global__ void __launch_bounds__(THREADS)
normgen_gather_words(const float* told, float* gathered, PEERS, tagged_t* own, unsigned* counters,
                     tagged_t* fault, int count, long long capacity, long long timeout, int rank) {
    __shared__ unsigned shared;
    Channel<RANKS> channel = channel_of({{SLOTS}}, own, counters, fault, capacity, timeout, rank);
    exchange(
        channel, shared, count, [&](int place) { return __float_as_uint(told[place]); },
        [&](int place, const tagged_t(&words)[RANKS]) {
#pragma unroll
            for (int from = 0; from < RANKS; ++from) {
                const unsigned bits = channel.is_there(words[from]) ? unsigned(words[from]) : NOTHING;
                gathered[from * static_cast<long long>(count) + place] = __uint_as_float(bits);
            }
        });
}

// `total` becomes the sum of the ranks' parts of `count` elements, added up in float32 and in the
// order of ranks, and rounded once. Both begin where a word may.
extern "C" __global__ void __launch_bounds__(THREADS)
normgen_sum_words(const Element* part, Element* total, PEERS, tagged_t* own, unsigned* counters,
                  tagged_t* fault, int count, long long capacity, long long timeout, int rank) {
    __shared__ unsigned shared;
    Channel<RANKS> channel = channel_of({{SLOTS}}, own, counters, fault, capacity, timeout, rank);
    exchange(
        channel, shared, (count + PER - 1) / PER,
        [&](int place) { return word_of(part, place, count); },
        [&](int place, const tagged_t(&words)[RANKS]) {
            float sums[PER];
#pragma unroll
            for (int from = 0; from < RANKS; ++from) {
                float values[PER];
                unpack(InWord{{unsigned(words[from])}}, values);
#pragma unroll
                for (int k = 0; k < PER; ++k) {
                    const float value = channel.is_there(words[from]) ? values[k] : __uint_as_float(NOTHING);
                    sums[k] = from == 0 ? value : sums[k] + value;
                }
            }
            put_word(total, place, count, sums);
        });
}
