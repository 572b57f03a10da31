// What a thread calls and may have to wait at: warp collectives, barriers, remote shared memory,
// asynchronous copies.
#include <sched.h>
#include <time.h>

#include "simt_state.h"

namespace {

enum Key : uint64_t { SOURCE_NOT_IN_MASK = 1, FAILURE, LET_IN_BEFORE_WAITING };

uint64_t key_of(Key key, int line) { return uint64_t(line) * KINDS + key; }

void check_agreement(const Thread* warp, unsigned mask, SimtCollective kind, int line) {
  for (unsigned lane = 0; lane < LANES; lane++) {
    if (!(mask >> lane & 1)) continue;
    const Thread& peer = warp[lane];
    if (peer.mask != mask || peer.collective != kind || peer.line != line)
      simt_fail("warp divergence: lanes of one mask meet in different collectives", line);
  }
}

}  // namespace

uint3 simt_thread_index() { return current->index; }
uint3 simt_block_index() { return state.blocks[current->slot].index; }
dim3 simt_block_size() { return state.launch->block; }
dim3 simt_grid_size() { return state.launch->grid; }
unsigned simt_lane() { return current->lane; }
unsigned simt_cluster_rank() { return current->slot; }
unsigned simt_cluster_blocks() { return state.block_count; }

void simt_fail(const char* message, int line) {
  report(key_of(FAILURE, line), "%s at <line:%d>", message, line);
  simt_abandon();
}

// Each lane leaves its value; the last of the mask to come works out everyone's result.
uint64_t simt_collective(SimtCollective kind, unsigned mask, uint64_t value, int source_lane, int line) {
  Thread* t = current;
  Block& block = state.blocks[t->slot];
  uint32_t& arrived = block.arrived[t->warp];
  if (!(mask >> t->lane & 1)) simt_fail("warp collective: the calling lane is not in its own mask", line);
  t->value = value;
  t->source_lane = source_lane;
  t->collective = kind;
  t->line = line;
  t->mask = mask;
  t->status = AT_COLLECTIVE;
  arrived |= 1u << t->lane;
  if ((arrived & mask) != mask) {
    simt_yield();
    return t->result;
  }
  Thread* warp = t - t->lane;
  check_agreement(warp, mask, kind, line);
  uint64_t ballot = 0;
  for (unsigned lane = 0; kind == SIMT_BALLOT && lane < LANES; lane++)
    if (mask >> lane & 1) ballot |= (warp[lane].value & 1) << lane;
  for (unsigned lane = 0; lane < LANES; lane++) {
    if (!(mask >> lane & 1)) continue;
    Thread& peer = warp[lane];
    peer.status = RUNNING;
    peer.result = kind == SIMT_BALLOT ? ballot : ~0ull;
    if (kind != SIMT_SHUFFLE) continue;
    const unsigned source = unsigned(peer.source_lane);
    if (source < LANES && mask >> source & 1)
      peer.result = warp[source].value;
    else
      report(key_of(SOURCE_NOT_IN_MASK, line),
             "shuffle at <line:%d> reads lane %d, which is not in mask %08x", line, peer.source_lane, mask);
  }
  arrived &= ~mask;
  // A shuffle is no memory fence: only __syncwarp orders the lanes' accesses.
  if (kind == SIMT_WARP_BARRIER) {
    block.warp_time[t->warp] = ++state.clock;
    const unsigned lanes = state.thread_count - warp->rank < LANES ? state.thread_count - warp->rank : +LANES;
    share_views(warp, lanes, [mask](const Thread& peer) { return mask >> peer.lane & 1; });
  }
  return t->result;
}

int simt_block_barrier(int counts_predicate, int predicate, int line) {
  Thread* t = current;
  state.blocks[t->slot].predicate += predicate;
  t->counts_predicate = counts_predicate != 0;
  t->line = line;
  t->status = AT_BARRIER;
  simt_yield();
  return int(t->result);
}

void simt_named_barrier(unsigned barrier, unsigned threads, int line) {
  Thread* t = current;
  if (barrier >= NAMED_BARRIERS || threads == 0 || threads % LANES != 0)
    simt_fail("named barrier: needs a number below 16 and whole warps", line);
  Block& block = state.blocks[t->slot];
  NamedBarrier& named = block.named[barrier];
  t->named_barrier = barrier;
  t->named_threads = threads;
  t->line = line;
  t->status = AT_NAMED_BARRIER;
  named.warps |= 1u << t->warp;
  if (++named.arrived < threads) return simt_yield();
  Thread* first = t - t->rank;
  share_views(first, state.thread_count, [barrier](const Thread& peer) {
    return peer.status == AT_NAMED_BARRIER && peer.named_barrier == barrier;
  });
  for (unsigned i = 0; i < state.thread_count; i++) {
    if (first[i].status != AT_NAMED_BARRIER || first[i].named_barrier != barrier) continue;
    if (first[i].named_threads != threads) simt_fail("named barrier: threads expect different numbers", line);
    first[i].status = RUNNING;
  }
  named = {0, 0, ++state.clock, named.warps};
}

void simt_cluster_arrive(int line) {
  if (current->arrived) simt_fail("cluster barrier: arrives again and has not waited", line);
  current->arrived = true;
}

void simt_cluster_wait(int line) {
  if (!current->arrived) simt_fail("cluster barrier: waits and has not arrived", line);
  current->arrived = false;
  simt_cluster_barrier(line);
}

void simt_cluster_barrier(int line) {
  current->line = line;
  current->status = AT_CLUSTER_BARRIER;
  simt_yield();
}

void simt_sent(int line) {
  Thread& t = *current;
  if (t.lane >= state.block_count) simt_fail("message to another block: no block of the lane's number", line);
  t.sent[t.sends++ % REMEMBERED_SENDS] = {++state.clock, state.blocks[t.slot].warp_time[t.warp]};
}

void simt_open_arrivals(const void* first, int count) {
  for (int i = 0; i < count; i++)
    state.blocks[current->slot].arrivals.push_back(
        {(const char*)first + 8 * i, mark_of(*current), state.clock, false, 0});
}

void simt_arrivals_fence() {
  for (Arrival& each : state.blocks[current->slot].arrivals)
    if (each.opener == mark_of(*current)) each.fenced = true;
}

// An mbarrier of the block, as a thread may use it.
static Arrival& opened(const void* arrival, int line) {
  Block& block = state.blocks[current->slot];
  size_t which = 0;
  while (which < block.arrivals.size() && block.arrivals[which].at != arrival) which++;
  if (which == block.arrivals.size()) simt_fail("mbarrier: nobody has opened it", line);
  Arrival& found = block.arrivals[which];
  if (!found.fenced) simt_fail("mbarrier: no fence after it was opened", line);
  if (!ordered(found.opener, found.time, *current, block)) simt_fail("mbarrier: no barrier after it was opened", line);
  return found;
}

void simt_expect(const void* arrival, int line) { opened(arrival, line).expected++; }

// After a wait: something was to come.
static void check_expected(const void* arrival, int line) {
  for (const Phases& each : current->phases)
    if (each.arrival == arrival && each.awaited > opened(arrival, line).expected)
      simt_fail("wait for a phase of an mbarrier that expects nothing", line);
}

// Phases of an mbarrier have parity 0 and 1 in turn. A thread that asks for the other one goes on at once, or
// never.
void simt_phase(const void* arrival, int parity, int line) {
  std::vector<Phases>& all = current->phases;
  size_t which = 0;
  while (which < all.size() && all[which].arrival != arrival) which++;
  if (which == all.size()) all.push_back({arrival, 0});
  opened(arrival, line);
  if (parity != (all[which].awaited++ & 1)) simt_fail("wait for the other parity of an mbarrier", line);
}

void simt_await_sent(const void* arrival, int line) {
  current->line = line;
  current->status = AT_SENT;
  simt_yield();
  check_expected(arrival, line);
}


// Lets every other thread run first: a spin-wait inside the block makes progress.
void simt_sleep(int line) {
  current->line = line;
  current->status = ASLEEP;
  simt_yield();
}

// The time, for waits that end. Who asks for it waits for another process, which is to run first.
long long simt_nanoseconds() {
  state.turn++;
  sched_yield();
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000ll + now.tv_nsec;
}

void* simt_remote_shared(const void* local, unsigned rank, int line) {
  if (rank >= state.block_count) simt_fail("remote shared memory: no block of that rank", line);
  if (rank == current->slot) return const_cast<void*>(local);
  return &state.blocks[rank].image[size_t((const char*)local - state.segment)];
}

void simt_async_copy(void* shared, const void* global, int bytes) {
  const AsyncCopy copy = {(char*)shared, (const char*)global, unsigned(bytes), current->groups,
                          __builtin_return_address(0)};
  if (bytes < 1 || bytes > 16 || bytes & (bytes - 1))
    simt_fail("asynchronous copy: moves 1, 2, 4, 8 or 16 bytes", 0);
  if (state.launch->checked) check_async_issue(copy);
  current->copies.push_back(copy);
}

void simt_named(const void* address, uint64_t bytes) {
  if (state.launch->checked) check_named(address, bytes, __builtin_return_address(0));
}

void simt_wait_for_earlier() { current->waited = state.waited = true; }

void simt_let_next_start(int line) {
  if (state.launch->early && !current->waited)
    report(key_of(LET_IN_BEFORE_WAITING, line),
           "lets the next kernel start before it has waited for those before, at <line:%d>", line);
}

void simt_constant_load(const void* address, unsigned bytes) {
  if (state.launch->checked) check_constant_load(address, bytes, __builtin_return_address(0));
}

void simt_async_commit() { current->groups++; }

void simt_async_wait(int pending_groups) {
  std::vector<AsyncCopy>& copies = current->copies;
  size_t made = 0;
  while (made < copies.size() && int(current->groups - copies[made].group) > pending_groups) {
    const AsyncCopy copy = copies[made++];
    memcpy(copy.shared, copy.global, copy.bytes);
    if (state.launch->checked) check_async_complete(copy);
  }
  copies.erase(copies.begin(), copies.begin() + ptrdiff_t(made));
}

void simt_bulk_wait(int pending_groups, const void* arrival, int line) {
  Thread& t = *current;
  Block& block = state.blocks[t.slot];
  if (t.rank == 0) {
    simt_async_wait(pending_groups);
    block.landing_time[block.landings++ % REMEMBERED_SENDS] = ++state.clock;
  } else if (block.landings <= t.landed) {
    t.line = line;
    t.status = AT_BULK_COPY;
    simt_yield();
  }
  t.landed++;
  check_expected(arrival, line);
}
