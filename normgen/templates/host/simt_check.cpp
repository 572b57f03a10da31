// The checker: every access of a kernel compiled in checked mode comes here. It finds accesses outside the
// launch's memory, misaligned ones, reads of what nobody wrote, and races.
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include <algorithm>

#include "simt_state.h"

namespace {

enum Fault : uint64_t {
  OVERDUE,
  MISALIGNED,
  OUTSIDE_DYNAMIC,
  OUTSIDE_ARRAY,
  OUTSIDE_BUFFER,
  ILLEGAL,
  READ_ONLY_WRITTEN,
  UNINITIALISED,
  RACE_WITH_WRITE,
  RACE_WITH_READ,
  WRITTEN_TWICE,
  COPY_PENDING,
  BLOCK_GONE,
  NEVER_WRITTEN,
  BLOCK_NOT_STARTED,
  BEFORE_WAITING,
  NEVER_WAITS,
  CONSTANT_LOAD,
  NEVER_MET,
};

const char* const VERB[] = {"read", "write", "atomic", "atomic read"};

// One access: who, what, from where.
struct Event {
  uintptr_t address;
  unsigned bytes;
  SimtAccess access;
  const void* program_counter;

  bool reads() const { return access != SIMT_WRITE; }
  bool writes() const { return access == SIMT_WRITE || access == SIMT_ATOMIC; }
  bool atomic() const { return access == SIMT_ATOMIC || access == SIMT_ATOMIC_READ; }
  uint64_t key(Fault fault) const { return uint64_t(program_counter) * KINDS + fault; }
};

// The shadow of the memory that an access touches. `offset`: of its first byte, from where its memory begins.
struct Place {
  Shadow* first;
  Shadow* end;
  uint64_t offset;
  const char* space;
  uint32_t flags;
  bool shared;
};

[[noreturn]] void fatal(const Event& event, Fault fault, const char* what) {
  report(event.key(fault), "%s (%u-byte %s at <pc:%p>)", what, event.bytes, VERB[event.access],
         event.program_counter);
  simt_abandon();
}

// ---- where an access goes -------------------------------------------------------------------------------

Place shared_place(Block& block, size_t offset, unsigned bytes, const char* space) {
  Shadow* first = &block.shadow[offset];
  return {first, first + bytes, offset, space, SIMT_UNDEFINED, true};
}

void check_shared_bounds(const Event& event, size_t offset) {
  const size_t dynamic = state.module->dynamic_offset;
  if (offset - dynamic < SIMT_DYNAMIC_SHARED) {  // (what lies before it is far beyond that)
    if (offset - dynamic + event.bytes <= state.launch->shared) return;
    char what[120];
    snprintf(what, sizeof what, "out-of-bounds shared access: byte %zu of %u dynamic bytes", offset - dynamic,
             state.launch->shared);
    fatal(event, OUTSIDE_DYNAMIC, what);
  }
  const size_t last = offset + event.bytes - 1;
  const bool inside = last < state.array_at.size() && state.array_at[offset];
  if (!inside || state.array_at[offset] != state.array_at[last])
    fatal(event, OUTSIDE_ARRAY, "out-of-bounds access past a static __shared__ array");
}

SimtBuffer* find_buffer(uintptr_t address) {
  SimtBuffer* last = state.last_buffer;
  if (last && address - uintptr_t(last->address) < last->bytes) return last;
  for (uint64_t i = 0; i < state.launch->buffer_count; i++) {
    SimtBuffer& buffer = state.launch->buffers[i];
    if (address - uintptr_t(buffer.address) < buffer.bytes) return state.last_buffer = &buffer;
  }
  return nullptr;
}

[[noreturn]] void fatal_illegal(const Event& event) {
  uint64_t nearest = 0, distance = ~0ull;
  for (uint64_t i = 0; i < state.launch->buffer_count; i++) {
    const SimtBuffer& buffer = state.launch->buffers[i];
    const uintptr_t begin = uintptr_t(buffer.address), end = begin + buffer.bytes;
    const uint64_t away = event.address < begin ? begin - event.address : event.address - end;
    if (away < distance) distance = away, nearest = i;
  }
  char what[120] = "illegal address: no memory of this launch";
  if (distance != ~0ull)
    snprintf(what, sizeof what, "illegal address, %llu bytes away from <buffer:%llu>",
             (unsigned long long)distance, (unsigned long long)nearest);
  fatal(event, ILLEGAL, what);
}

// Counts what an access takes of a buffer. False: it is read-only, and there is nothing more to check.
bool enter_buffer(const Event& event, SimtBuffer& buffer, Place& place) {
  const uint64_t number = uint64_t(&buffer - state.launch->buffers),
                 offset = event.address - uintptr_t(buffer.address);
  char what[120];
  if (offset + event.bytes > buffer.bytes) {
    snprintf(what, sizeof what, "out-of-bounds access: %llu bytes past the end of <buffer:%llu>",
             (unsigned long long)(offset + event.bytes - buffer.bytes), (unsigned long long)number);
    fatal(event, OUTSIDE_BUFFER, what);
  }
  if (event.reads()) buffer.read_bytes += event.bytes;
  if (event.writes()) buffer.written_bytes += event.bytes;
  const uint64_t first = offset / buffer.item_bytes, end = (offset + event.bytes - 1) / buffer.item_bytes + 1;
  if (buffer.flags & SIMT_READ_ONLY) {
    if (event.writes()) {
      snprintf(what, sizeof what, "write to read-only <buffer:%llu>", (unsigned long long)number);
      fatal(event, READ_ONLY_WRITTEN, what);
    }
    unsigned char* touched = state.touched[number];
    for (uint64_t i = first; i < end; i++) {
      buffer.read_items += !touched[i];
      touched[i] = 1;
    }
    return false;
  }
  Shadow* shadow = state.shadows[number];
  place = {shadow + first, shadow + end, offset, "global", buffer.flags, false};
  for (Shadow* s = place.first; s < place.end; s++) {
    buffer.read_items += event.reads() && !s->reader;
    buffer.written_items += event.writes() && !s->writer;
  }
  return true;
}

// False: memory in which nothing is to be checked (the thread's own stack, constants, inputs).
bool locate(const Event& event, const Thread& t, Place& place) {
  const uintptr_t address = event.address;
  const size_t segment_bytes = state.module->segment_bytes;
  size_t offset = address - uintptr_t(state.segment);
  if (offset < segment_bytes) {
    check_shared_bounds(event, offset);
    place = shared_place(state.blocks[t.slot], offset, event.bytes, "shared");
    return true;
  }
  if (SimtBuffer* buffer = find_buffer(address)) {
    if (state.launch->early && !t.waited)
      report(event.key(BEFORE_WAITING),
             "%s of global memory before the thread has waited for the kernels before, at <pc:%p>",
             VERB[event.access], event.program_counter);
    return enter_buffer(event, *buffer, place);
  }
  for (unsigned slot = 0; state.block_count > 1 && slot < state.block_count; slot++) {
    Block& owner = state.blocks[slot];
    offset = address - uintptr_t(owner.image.data());
    if (offset >= segment_bytes) continue;
    check_shared_bounds(event, offset);
    if (state.cluster_time <= state.blocks[state.block_count - 1].start)
      report(
          event.key(BLOCK_NOT_STARTED),
          "%s of the shared memory of block (%u,%u,%u), which may not have started: "
          "no cluster barrier before <pc:%p>",
          VERB[event.access], owner.index.x, owner.index.y, owner.index.z, event.program_counter);
    owner.remote_time = state.clock;
    place = shared_place(owner, offset, event.bytes, "remote shared");
    return true;
  }
  if (address - uintptr_t(state.module->base) < state.module->image_bytes) return false;
  fatal_illegal(event);
}

void check_byte(const Event& event, const Place& place, Shadow& s, const Thread& t, const Block& block) {
  const uint32_t start = place.shared ? block.start : 0;
  const bool written = s.writer && s.write_time >= start;
  const bool both_atomic = event.atomic() && s.writer & ATOMIC_MARK;
  if (written && s.writer & ASYNC_MARK)
    report(event.key(COPY_PENDING),
           "%s of shared memory that an asynchronous copy is still writing, no wait in between, at <pc:%p>",
           VERB[event.access], event.program_counter);
  else if (event.reads() && !written && place.flags & SIMT_UNDEFINED)
    report(event.key(UNINITIALISED), "%s of uninitialised %s memory at <pc:%p>", VERB[event.access],
           place.space, event.program_counter);
  else if (written && !both_atomic && !ordered(s.writer, s.write_time, t, block, event.atomic()))
    report(event.key(RACE_WITH_WRITE),
           "race on %s memory: %s against a write by block %u thread %u, at <pc:%p>", place.space,
           VERB[event.access], block_number_of(s.writer), rank_of(s.writer), event.program_counter);
  else if (written && event.access == SIMT_WRITE && place.flags & SIMT_WRITE_ONCE &&
           (s.writer & ~MARKS) != mark_of(t))
    report(event.key(WRITTEN_TWICE), "an output element is written by two threads, at <pc:%p>",
           event.program_counter);
}

void check_earlier_reader(const Event& event, const Place& place, uint32_t reader, uint32_t time,
                          const Thread& t, const Block& block) {
  const uint32_t start = place.shared ? block.start : 0;
  const bool both_atomic = event.atomic() && reader & ATOMIC_MARK;
  if (reader && time >= start && !both_atomic && !ordered(reader, time, t, block, event.atomic()))
    report(event.key(RACE_WITH_READ),
           "race on %s memory: %s against a read by block %u thread %u, at <pc:%p>", place.space,
           VERB[event.access], block_number_of(reader), rank_of(reader), event.program_counter);
}

// What decides between readers of a place: no order in which threads run favours any of them, and it is the
// same wherever a launch's arrays lie.
uint32_t lot(uint32_t mark, uint64_t offset) {
  const uint64_t mixed = (uint64_t(mark) << 32 ^ offset) * 0x9e3779b97f4a7c15ull;
  return uint32_t((mixed ^ mixed >> 29) * 0xbf58476d1ce4e5b9ull >> 32);
}

// Two readers are remembered that are not ordered one after the other. Of more it is two by lot, others at
// every place, so that a writer who is not ordered after one of many is found at some place.
void remember_read(Shadow& s, const Event& event, const Place& place, const Thread& t, const Block& block) {
  const uint32_t mark = mark_of(t) | (event.atomic() ? uint32_t(ATOMIC_MARK) : 0), start = place.shared ? block.start : 0;
  const auto replaces = [&](uint32_t reader, uint32_t time) {
    if (!reader || reader == mark || time < start) return true;
    // an atomic read does not stand for a read that is none
    return (reader & ATOMIC_MARK || !event.atomic()) && ordered(reader, time, t, block);
  };
  const bool first = replaces(s.reader, s.read_time);
  if (!first && !replaces(s.other_reader, s.other_read_time)) {
    const uint32_t mine = lot(mark, place.offset), one = lot(s.reader, place.offset),
                   other = lot(s.other_reader, place.offset);
    if (mine < one && mine < other) return;
    if (one < other) s.reader = s.other_reader, s.read_time = s.other_read_time;
  }
  (first ? s.reader : s.other_reader) = mark;
  (first ? s.read_time : s.other_read_time) = state.clock;
}

bool same(const Shadow& a, const Shadow& b) { return memcmp(&a, &b, sizeof a) == 0; }

void check(const Event& event, uint32_t write_mark) {
  const Thread& t = *current;
  const Block& block = state.blocks[t.slot];
  if (event.address - uintptr_t(t.stack) < STACK_BYTES) return;
  if (event.bytes <= 16 && !(event.bytes & (event.bytes - 1)) && event.address & (event.bytes - 1))
    fatal(event, MISALIGNED, "misaligned address");
  Place place;
  if (!locate(event, t, place)) return;
  const uint32_t time = state.clock;
  if (event.atomic() && !place.shared) check_atomic(*current, event.address, event.writes());
  Shadow before = *place.first;
  for (Shadow* s = place.first; s < place.end; s++) {
    if (s > place.first && same(*s, before)) {  // as most bytes of one element are
      *s = s[-1];
      continue;
    }
    before = *s;
    check_byte(event, place, *s, t, block);
    if (!event.writes()) {
      remember_read(*s, event, place, t, block);
    } else {
      check_earlier_reader(event, place, s->reader, s->read_time, t, block);
      check_earlier_reader(event, place, s->other_reader, s->other_read_time, t, block);
      s->writer = mark_of(t) | write_mark;
      s->write_time = time;
    }
  }
}

// Pages of zeros that cost nothing until touched: a buffer may be far larger than the machine's memory.
void* map_zeros(uint64_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                      0);
  return memory == MAP_FAILED ? nullptr : memory;
}

uint64_t items_of(const SimtBuffer& buffer) {
  return (buffer.bytes + buffer.item_bytes - 1) / buffer.item_bytes;
}

void check_all_written(uint64_t number) {
  const SimtBuffer& buffer = state.launch->buffers[number];
  const uint64_t items = items_of(buffer);
  if (!(buffer.flags & SIMT_UNDEFINED) || buffer.written_items >= items) return;
  uint64_t first = 0;
  while (state.shadows[number][first].writer) first++;
  report(number * KINDS + NEVER_WRITTEN,
         "%llu of the %llu elements of <buffer:%llu> are never written, the first at %llu",
         (unsigned long long)(items - buffer.written_items), (unsigned long long)items,
         (unsigned long long)number, (unsigned long long)first);
}

}  // namespace

// ---- called for every access ----------------------------------------------------------------------------

void fail_overdue(const void* program_counter) {
  char where[40] = "HostExecutor(checked=True) says where";
  if (state.launch->checked) snprintf(where, sizeof where, "at <pc:%p>", program_counter);
  report(OVERDUE, "endless loop, or a wait for a block that does not run: no end after %.3g s; %s",
         state.launch->maximum_seconds, where);
  simt_abandon();
}

void check_access(const void* address, size_t bytes, SimtAccess access, const void* program_counter) {
  if (!current || !state.launch->checked || !bytes) return;
  if (state.overdue) fail_overdue(program_counter);
  const uint32_t mark = access == SIMT_ATOMIC ? uint32_t(ATOMIC_MARK) : 0;
  check({uintptr_t(address), unsigned(bytes), access, program_counter}, mark);
}

// ---- called by the scheduler ----------------------------------------------------------------------------

void check_begin_launch() {
  const SimtLaunch& launch = *state.launch;
  // the clock runs on from launch to launch, so that old marks need no clearing
  if (state.clock > 1u << 31) {
    state.clock = 0;
    for (Block& block : state.blocks) block.shadow.assign(block.shadow.size(), Shadow());
  }
  state.views.clear();
  state.published.clear();
  state.array_at.assign(state.module->segment_bytes, 0);
  for (uint64_t i = 0; i < state.module->array_count; i++) {
    const SimtArray& array = state.module->arrays[i];
    std::fill_n(state.array_at.begin() + ptrdiff_t(array.offset), array.bytes, uint16_t(i + 1));
  }
  state.last_buffer = nullptr;
  state.shadows.assign(launch.buffer_count, nullptr);
  state.touched.assign(launch.buffer_count, nullptr);
  for (uint64_t i = 0; i < launch.buffer_count; i++) {
    SimtBuffer& buffer = launch.buffers[i];
    buffer.read_bytes = buffer.written_bytes = buffer.read_items = buffer.written_items = 0;
    const bool read_only = buffer.flags & SIMT_READ_ONLY;
    void* memory = map_zeros(items_of(buffer) * (read_only ? 1 : sizeof(Shadow)) + 1);
    if (!memory) {
      report(i * KINDS + ILLEGAL, "no memory for the shadow of <buffer:%llu>", (unsigned long long)i);
      state.dead = true;
    }
    if (read_only) state.touched[i] = (unsigned char*)memory;
    else state.shadows[i] = (Shadow*)memory;
  }
}

void check_end_launch(bool all_blocks) {
  if (state.launch->early && all_blocks && !state.waited && report_count() == 0)
    report(NEVER_WAITS, "no thread waits for the kernels before: it may end before they do");
  for (uint64_t i = 0; i < state.launch->buffer_count; i++) {
    const uint64_t items = items_of(state.launch->buffers[i]);
    if (all_blocks && report_count() == 0) check_all_written(i);
    if (state.touched[i]) munmap(state.touched[i], items + 1);
    if (state.shadows[i]) munmap(state.shadows[i], items * sizeof(Shadow) + 1);
  }
}

void check_begin_block(Block& block) {
  if (block.shadow.size() < state.module->segment_bytes) block.shadow.resize(state.module->segment_bytes);
}

// Whether a peer's access at that time came before a message that every thread of the block awaited.
bool awaited_by_all(unsigned slot, uint32_t time) {
  const Thread* threads = state.threads.data();
  uint32_t last = 0;
  for (unsigned sender = slot; sender < state.block_count * state.thread_count; sender += LANES) {
    const Thread& from = threads[sender];
    for (unsigned rank = 0; rank < state.thread_count; rank++)
      if (threads[slot * state.thread_count + rank].awaited < from.sends) return false;
    if (from.sends && from.sent[(from.sends - 1) % REMEMBERED_SENDS].time > last)
      last = from.sent[(from.sends - 1) % REMEMBERED_SENDS].time;
  }
  return time < last;
}

// Shared memory is gone when its block exits, whether or not a peer still needs it.
void check_end_blocks() {
  for (unsigned slot = 0; slot < state.block_count; slot++) {
    const Block& block = state.blocks[slot];
    if (block.remote_time >= state.cluster_time && !awaited_by_all(slot, block.remote_time))
      report(
          BLOCK_GONE,
          "block (%u,%u,%u) may exit while a peer still uses its shared memory: "
             "no cluster barrier after the last "
          "remote access",
          block.index.x, block.index.y, block.index.z);
  }
}

void check_exit() {
  if (current->arrived) report(NEVER_MET, "exits and has not waited at a cluster barrier");
  if (current->copies.empty()) return;
  const void* place = current->copies[0].program_counter;
  report(uint64_t(place) * KINDS + COPY_PENDING, "exits without waiting for its asynchronous copy at <pc:%p>",
         place);
}

// The copy may write at any time from now on, so what is there must be free to be overwritten already.
void check_async_issue(const AsyncCopy& copy) {
  check_access(copy.global, copy.bytes, SIMT_READ, copy.program_counter);
  const Event event = {uintptr_t(copy.shared), copy.bytes, SIMT_WRITE, copy.program_counter};
  if (event.address - uintptr_t(state.segment) >= state.module->segment_bytes)
    fatal(event, ILLEGAL, "asynchronous copy to an address outside shared memory");
  check(event, ASYNC_MARK);
}

// Memory that is neither read nor written, but must be there.
void check_named(const void* address, uint64_t bytes, const void* program_counter) {
  const Event event = {uintptr_t(address), unsigned(bytes), SIMT_READ, program_counter};
  const SimtBuffer* buffer = find_buffer(event.address);
  if (!buffer || event.address - uintptr_t(buffer->address) + bytes > buffer->bytes) fatal_illegal(event);
}

// Such a load may be made before the thread has waited, and answered with what was there before.
void check_constant_load(const void* address, unsigned bytes, const void* program_counter) {
  const Event event = {uintptr_t(address), bytes, SIMT_READ, program_counter};
  if (state.launch->early && find_buffer(event.address))
    report(event.key(CONSTANT_LOAD),
           "non-coherent load of global memory that the kernels before may still write, at <pc:%p>",
           program_counter);
}

// From now on it is a write like any other of this thread.
void check_async_complete(const AsyncCopy& copy) {
  Shadow* shadow = &state.blocks[current->slot].shadow[size_t(copy.shared - state.segment)];
  for (unsigned i = 0; i < copy.bytes; i++) {
    shadow[i].writer = mark_of(*current);
    shadow[i].write_time = state.clock;
  }
}
