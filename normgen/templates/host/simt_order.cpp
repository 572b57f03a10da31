// Which accesses are ordered one after the other.
//
// A race is two accesses, at least one a write and not both atomic, that nothing orders. Two accesses are
// ordered if one thread made both; if both are of one block (or cluster) and its barrier was passed in
// between; if both are of one warp and __syncwarp was; if the earlier one comes before a message to the
// block, or is a copy into it, that the later one awaited; or if the earlier one was released, published by
// an atomic, read by an atomic on the same address, and acquired before the later one.
//
// - A release (a fence, or `.release` of an atomic) is of what its thread did so far, and of what comes
//   before that. The thread's later atomics publish it; so do those of threads that it meets at a barrier.
// - What a thread's atomics have read counts from its next acquire on (a fence, or `.acquire`). The thread's
//   atomic writes need none: no device writes before it knows that it will.
//
// That depends on the program's synchronisation alone, not on the order in which the fibers happened to run.
#include "simt_state.h"

namespace {

bool ordered_by_named_barrier(const Block& block, unsigned earlier_warp, uint32_t time, unsigned warp) {
  for (const NamedBarrier& named : block.named)
    if (time < named.time && named.last_warps >> earlier_warp & 1 && named.last_warps >> warp & 1)
      return true;
  return false;
}

// Whether an access in this cluster comes before the last message of its warp to the block of `t` that `t`
// awaited.
bool ordered_by_message(const Thread& t, unsigned slot, unsigned rank, uint32_t time) {
  if (t.awaited == 0) return false;
  const unsigned sender = rank / LANES * LANES + t.slot;
  const Sent& sent = state.threads[slot * state.thread_count + sender]
                         .sent[(t.awaited - 1) % REMEMBERED_SENDS];
  return time < (rank == sender ? sent.time : sent.warp_time);
}

// Whose accesses a view is about: of a thread, of a warp, or of a block.
enum : uint64_t { WARPS = MAXIMUM_THREADS, ALL = 2 * MAXIMUM_THREADS, KEYS = 4 * MAXIMUM_THREADS };

bool has(const View* view, uint64_t key, uint32_t time) {
  const auto found = view->find(key);
  return found != view->end() && time < found->second;
}

bool has_access(const View* view, unsigned number, unsigned rank, uint32_t time) {
  const uint64_t of_block = number * KEYS;
  return view && (has(view, of_block + rank, time) || has(view, of_block + WARPS + rank / LANES, time) ||
                  has(view, of_block + ALL, time));
}

}  // namespace

// The accesses that one of two views has.
const View* joined(const View* a, const View* b) {
  if (!a || !b || a == b) return a ? a : b;
  View both = *a;
  bool more = false;
  for (const auto& [key, until] : *b) {
    uint32_t& mine = both[key];
    if (mine < until) mine = until, more = true;
  }
  if (!more) return a;
  state.views.push_back(both);
  return &state.views.back();
}

bool ordered(uint32_t mark, uint32_t time, const Thread& t, const Block& block, bool atomic) {
  const unsigned number = block_number_of(mark), rank = rank_of(mark);
  const unsigned slot = number - state.blocks[0].number;
  if (slot < state.block_count && ordered_by_message(t, slot, rank, time)) return true;
  if (number == block.number) {
    if (rank == 0 && t.landed && time < block.landing_time[(t.landed - 1) % REMEMBERED_SENDS]) return true;
    if (rank == t.rank || time < block.barrier_time) return true;
    if (rank / LANES == t.warp && time < block.warp_time[t.warp]) return true;
    return ordered_by_named_barrier(block, rank / LANES, time, t.warp);
  }
  if (slot < state.block_count && time < state.cluster_time) return true;
  return has_access(t.seen, number, rank, time) || (atomic && has_access(t.read, number, rank, time));
}

void simt_acquire() { current->seen = joined(current->seen, current->read); }

void simt_release() {
  if (!state.launch->checked) return;
  Thread& t = *current;
  const Block& block = state.blocks[t.slot];
  const uint64_t of_block = block.number * KEYS;
  state.views.push_back({{of_block + t.rank, ++state.clock},
                         {of_block + WARPS + t.warp, block.warp_time[t.warp]},
                         {of_block + ALL, block.barrier_time}});
  t.released = joined(t.released, joined(t.seen, &state.views.back()));
}

// An atomic on global memory.
void check_atomic(Thread& t, uintptr_t address, bool writes) {
  const View*& published = state.published[address];
  t.read = joined(t.read, published);
  if (writes) published = joined(published, t.released);
}
