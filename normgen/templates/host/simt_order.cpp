// Which accesses are ordered one after the other.
//
// A race is two accesses, at least one a write and not both atomic, that nothing orders. Two accesses are
// ordered if one thread made both; if both are of one block (or cluster) and its barrier was passed in
// between; if both are of one warp and __syncwarp was; if the earlier one comes before a message to the
// block, or is a copy into it, that the later one awaited; or if a thread that the earlier one is ordered
// before made a fence and then an atomic, and one that is ordered before the later one an atomic after that
// (whichever address: an approximation). That depends on the program's synchronisation alone, not on the
// order in which the fibers happened to run.
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

// Whether an access of a block that may have ended is ordered before what `t` does, by a release and an
// acquisition.
bool released_to(const Thread& t, unsigned number, unsigned rank, uint32_t time) {
  const BlockReleases& releases = state.releases[number];
  if (time < releases.all.until && t.acquired >= releases.all.time) return true;
  if (rank >= releases.threads.size()) return false;
  const Release& own = releases.threads[rank];
  return time < own.until && t.acquired >= own.time;
}

}  // namespace

bool ordered(uint32_t mark, uint32_t time, const Thread& t, const Block& block) {
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
  return released_to(t, number, rank, time);
}

// A fence and an atomic: what the thread did so far, and what a barrier has ordered before it, is released.
void release(const Thread& t, const Block& block) {
  BlockReleases& releases = state.releases[block.number];
  releases.threads.resize(state.thread_count);
  releases.all = {state.clock, block.barrier_time};
  const unsigned first = t.rank - t.lane;
  const uint32_t warp_time = block.warp_time[t.warp];
  for (unsigned rank = first; rank < first + LANES && rank < state.thread_count; rank++)
    if (warp_time > releases.threads[rank].until) releases.threads[rank] = {state.clock, warp_time};
  releases.threads[t.rank] = {state.clock, state.clock};
}
