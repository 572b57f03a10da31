// The scheduler: runs the blocks of a launch, one cluster at a time, every thread until it must wait.
#include "simt_state.h"

SimtState state;
Thread* current;

namespace {

// ---- shared memory --------------------------------------------------------------------------------------

// The parts of the segment in use: static arrays around the dynamic memory, and as much of that as was
// asked for.
template <class Action>
void each_part(Action action) {
  const size_t dynamic = state.module->dynamic_offset, after = dynamic + SIMT_DYNAMIC_SHARED;
  action(0, dynamic);
  action(dynamic, state.launch->shared);
  action(after, state.module->segment_bytes - after);
}

void make_resident(unsigned slot) {
  if (state.block_count < 2 || state.resident == slot) return;
  char* leaving = state.blocks[state.resident].image.data();
  const char* entering = state.blocks[slot].image.data();
  each_part([&](size_t offset, size_t bytes) {
    memcpy(leaving + offset, state.segment + offset, bytes);
    memcpy(state.segment + offset, entering + offset, bytes);
  });
  state.resident = slot;
}

// Poison: NaN as a float, -1 as an integer.
void poison(char* segment) {
  each_part([&](size_t offset, size_t bytes) { memset(segment + offset, 0xff, bytes); });
}

// ---- one cluster ----------------------------------------------------------------------------------------

void begin_block(unsigned slot, uint64_t linear) {
  const dim3 grid = state.launch->grid, size = state.launch->block;
  Block& block = state.blocks[slot];
  block.index = {unsigned(linear % grid.x), unsigned(linear / grid.x % grid.y),
                 unsigned(linear / grid.x / grid.y)};
  block.number = uint32_t((linear - state.launch->first_block) % BLOCK_NUMBERS);
  block.start = block.barrier_time = ++state.clock;
  block.remote_time = 0;
  block.predicate = 0;
  block.landings = 0;
  block.arrived.assign(state.warp_count, 0);
  block.warp_time.assign(state.warp_count, state.clock);
  memset(block.named, 0, sizeof block.named);
  block.arrivals.clear();
  uint3 index = {0, 0, 0};
  for (unsigned rank = 0; rank < state.thread_count; rank++) {
    Thread& t = state.threads[slot * state.thread_count + rank];
    t.index = index;
    if (++index.x == size.x) index.x = 0, index.y++;
    if (index.y == size.y) index.y = 0, index.z++;
    t.rank = rank;
    t.lane = rank % LANES;
    t.warp = rank / LANES;
    t.slot = slot;
    t.status = RUNNING;
    t.arrived = t.waited = false;
    t.seen = t.read = t.released = nullptr;
    t.groups = t.sends = t.awaited = t.landed = 0;
    t.copies.clear();
    t.phases.clear();
  }
  if (state.block_count > 1) {
    if (block.image.size() < state.module->segment_bytes) block.image.resize(state.module->segment_bytes);
    poison(block.image.data());
  }
  if (state.launch->checked) check_begin_block(block);
}

std::vector<unsigned> lane_order, warp_order;

// The warp that runs, how many threads it has, and how many of its lanes had their turn.
Thread* warp_threads;
unsigned warp_lanes, turns;

// Runs every thread of a block until none of them can go on. False: nothing could.
bool run_threads(Thread* threads) {
  bool progress = false;
  for (unsigned warp : warp_order) {
    warp_threads = threads + warp * LANES;
    warp_lanes = state.thread_count - warp * LANES;
    for (turns = 0; Thread* first = next_lane(); turns = 0) {
      enter(*first);
      if (state.dead || state.overdue) return true;
      progress = true;
    }
  }
  for (unsigned i = 0; i < state.thread_count; i++) {
    if (threads[i].status != ASLEEP) continue;
    threads[i].status = RUNNING;
    progress = true;
  }
  return progress;
}

unsigned count(const Thread* threads, unsigned thread_count, SimtStatus status) {
  unsigned found = 0;
  for (unsigned i = 0; i < thread_count; i++) found += threads[i].status == status;
  return found;
}

// Opens the block's barrier if all its threads stand there. Strict: all at one line, and none has left.
bool open_block_barrier(Block& block, Thread* threads) {
  const unsigned waiting = count(threads, state.thread_count, AT_BARRIER);
  const unsigned exited = count(threads, state.thread_count, EXITED);
  if (waiting == 0 || waiting + exited < state.thread_count) return false;
  bool together = exited == 0;
  for (unsigned i = 1; i < state.thread_count && together; i++) together = threads[i].line == threads[0].line;
  if (!together) {
    report_stuck(block, "barrier divergence");
    state.dead = true;
    return false;
  }
  block.barrier_time = ++state.clock;
  share_views(threads, state.thread_count, [](const Thread&) { return true; });
  for (unsigned i = 0; i < state.thread_count; i++) {
    threads[i].result = uint64_t(block.predicate);
    threads[i].status = RUNNING;
  }
  block.predicate = 0;
  return true;
}

bool open_cluster_barrier(unsigned all_threads) {
  if (count(state.threads.data(), all_threads, AT_CLUSTER_BARRIER) != all_threads) return false;
  state.cluster_time = ++state.clock;
  for (unsigned slot = 0; slot < state.block_count; slot++) state.blocks[slot].barrier_time = state.clock;
  share_views(state.threads.data(), all_threads, [](const Thread&) { return true; });
  for (unsigned i = 0; i < all_threads; i++) state.threads[i].status = RUNNING;
  return true;
}

// How many messages have come from every warp of the cluster to a block.
unsigned messages_to(unsigned slot) {
  unsigned fewest = ~0u;
  for (unsigned i = slot; i < state.block_count * state.thread_count; i += LANES)
    if (state.threads[i].sends < fewest) fewest = state.threads[i].sends;
  return fewest;
}

// Lets those go on to whose block the messages or copies have come that they await.
bool deliver() {
  bool progress = false;
  for (unsigned slot = 0; slot < state.block_count; slot++) {
    const unsigned messages = messages_to(slot), landings = state.blocks[slot].landings;
    for (unsigned i = slot * state.thread_count; i < (slot + 1) * state.thread_count; i++) {
      Thread& t = state.threads[i];
      const bool told = t.status == AT_SENT && t.awaited < messages;
      if (!told && !(t.status == AT_BULK_COPY && t.landed < landings)) continue;
      t.awaited += told;
      t.status = RUNNING;
      progress = true;
    }
  }
  return progress;
}

void run_cluster(uint64_t first) {
  const unsigned all_threads = state.block_count * state.thread_count;
  state.turn++;
  poison(state.segment);
  state.resident = 0;
  for (unsigned slot = 0; slot < state.block_count; slot++) begin_block(slot, first + slot);
  state.cluster_time = state.clock;
  while (count(state.threads.data(), all_threads, EXITED) < all_threads) {
    bool progress = false;
    for (unsigned slot = 0; slot < state.block_count; slot++) {
      Thread* threads = &state.threads[slot * state.thread_count];
      make_resident(slot);
      progress |= run_threads(threads);
      if (state.overdue && !state.dead) {
        report_stuck(state.blocks[slot], "endless loop, or a wait for a block that does not run,");
        state.dead = true;
      }
      if (!state.dead) progress |= open_block_barrier(state.blocks[slot], threads);
      if (state.dead) return;
    }
    if (deliver()) progress = true;
    if (open_cluster_barrier(all_threads)) progress = true;
    if (progress) continue;
    for (unsigned slot = 0; slot < state.block_count; slot++) report_stuck(state.blocks[slot], "deadlock");
    state.dead = true;
    return;
  }
  if (state.launch->checked) check_end_blocks();
}

// ---- a launch -------------------------------------------------------------------------------------------

uint64_t random_state;

template <class T>
void reorder(std::vector<T>& items) {
  const size_t n = items.size();
  if (state.launch->order == 1)
    for (size_t i = 0; i < n / 2; i++) std::swap(items[i], items[n - 1 - i]);
  if (state.launch->order == 2)
    for (size_t i = n; i > 1; i--) {
      random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
      std::swap(items[i - 1], items[(random_state >> 33) % i]);
    }
}

std::vector<unsigned> ordered_numbers(unsigned n) {
  std::vector<unsigned> numbers(n);
  for (unsigned i = 0; i < n; i++) numbers[i] = i;
  reorder(numbers);
  return numbers;
}

const char* fault_of_configuration(const SimtLaunch& launch) {
  const dim3 grid = launch.grid, block = launch.block;
  uint64_t arrays = 0;
  for (uint64_t i = 0; i < launch.module->array_count; i++) arrays += launch.module->arrays[i].bytes;
  if (uint64_t(block.x) * block.y * block.z > MAXIMUM_THREADS) return "more than 1024 threads in a block";
  if (!block.x || !block.y || !block.z || block.z > 64) return "block size out of range";
  if (!grid.x || !grid.y || !grid.z || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535)
    return "grid size out of range";
  if (!launch.cluster || launch.cluster > 16 || grid.x % launch.cluster)
    return "grid not divisible into clusters";
  if (launch.first_block % launch.cluster || launch.end_block % launch.cluster)
    return "block range splits a cluster";
  if (launch.shared + arrays > SIMT_DYNAMIC_SHARED) return "more than 227 KB of shared memory";
  return nullptr;
}

}  // namespace

Thread* next_lane() {
  while (turns < LANES) {
    const unsigned lane = lane_order[turns++];
    if (lane < warp_lanes && warp_threads[lane].status == RUNNING) return &warp_threads[lane];
  }
  return nullptr;
}

// Runs a launch and returns how many faults there were; simt_report() tells them.
extern "C" __attribute__((visibility("default"))) int simt_run(const SimtLaunch* launch) {
  static bool fresh = true;  // no fiber to be continued: all begin at the start of `fiber`
  report_clear();
  if (const char* fault = fault_of_configuration(*launch)) {
    report(1, "invalid launch: %s", fault);
    return report_count();
  }
  state.launch = launch;
  state.module = launch->module;
  state.thread_count = launch->block.x * launch->block.y * launch->block.z;
  state.warp_count = (state.thread_count + LANES - 1) / LANES;
  state.block_count = launch->cluster;
  state.segment = launch->module->shared_memory() - launch->module->dynamic_offset;
  state.dead = state.waited = false;
  if (state.blocks.size() < state.block_count) state.blocks.resize(state.block_count);
  if (!prepare_threads(size_t(state.block_count) * state.thread_count, fresh)) {
    report(2, "no memory for the stacks of %u threads", state.block_count * state.thread_count);
    return report_count();
  }
  watch();
  fresh = false;
  if (launch->checked) check_begin_launch();

  random_state = launch->seed * 2ull + 1;
  lane_order = ordered_numbers(LANES);
  warp_order = ordered_numbers(state.warp_count);
  std::vector<uint64_t> clusters;
  for (uint64_t block = launch->first_block; block < launch->end_block; block += launch->cluster)
    clusters.push_back(block);
  reorder(clusters);
  for (size_t i = 0; i < clusters.size() && !state.dead; i++) run_cluster(clusters[i]);

  const uint64_t blocks = uint64_t(launch->grid.x) * launch->grid.y * launch->grid.z;
  if (launch->checked)
    check_end_launch(launch->first_block == 0 && launch->end_block == blocks);
  fresh = state.dead;
  end_watch();
  return report_count();
}
