// The state of the runtime. One launch runs at a time, on one OS thread (the executor holds a lock): plain
// globals do.
#pragma once

#include <deque>
#include <map>
#include <vector>

#include "simt_calls.h"
#include "simt_launch.h"

enum SimtStatus {
  RUNNING,
  ASLEEP,
  AT_COLLECTIVE,
  AT_BARRIER,
  AT_NAMED_BARRIER,
  AT_CLUSTER_BARRIER,
  AT_SENT,
  AT_BULK_COPY,
  EXITED
};

enum : unsigned { LANES = 32, MAXIMUM_THREADS = 1024, NAMED_BARRIERS = 16, STACK_BYTES = 64 * 1024 };
// Of a thread's last messages to other blocks, and of a block's last bulk copies.
enum : unsigned { REMEMBERED_SENDS = 8 };
// What a shadow mark has room for; further blocks of a launch share these numbers.
enum : uint32_t { BLOCK_NUMBERS = 1 << 19 };

struct AsyncCopy {
  char* shared;
  const char* global;
  unsigned bytes;
  unsigned group;
  const void* program_counter;
};

// When a thread sent something to a block of its cluster, and the last __syncwarp of its warp then.
struct Sent {
  uint32_t time, warp_time;
};

// An mbarrier: who opened it when, and how many of its phases expect something.
struct Arrival {
  const void* at;
  uint32_t opener, time;
  bool fenced;
  int expected;
};

// How many phases of an mbarrier a thread has awaited.
struct Phases {
  const void* arrival;
  int awaited;
};

// Accesses: of whom (see simt_order.cpp), those before which time.
typedef std::map<uint64_t, uint32_t> View;

// One CUDA thread, run by one fiber. In front, in one line of the cache, is what a switch and a warp
// collective need.
struct alignas(64) Thread {
  SimtStatus status;
  int line;  // where it waits
  // What it brings to the collective at which it waits, and what it takes away.
  SimtCollective collective;
  unsigned mask;
  int source_lane;
  unsigned lane, warp;
  unsigned slot;  // which of the blocks that run together
  uint64_t value, result;
  void* stack_pointer;
  unsigned rank;
  char* stack;
  uint3 index;
  bool counts_predicate;
  unsigned named_barrier, named_threads;
  bool arrived;  // at a cluster barrier, for which it is still to wait
  bool waited;   // for the kernels before this one
  // Of other blocks' accesses, those that come before what it does; before what it writes by atomics, which
  // wait for what its atomics have read; and of all accesses those that come before its atomics.
  const View *seen, *read, *released;
  // messages to the block of its lane's number, and those to its own that it awaited
  unsigned sends, awaited;
  unsigned landed;                // bulk copies of its block that it awaited
  std::vector<Phases> phases;     // of the mbarriers at which it waited
  unsigned groups;                // of asynchronous copies, committed so far
  std::vector<AsyncCopy> copies;  // not yet made, oldest first
  Sent sent[REMEMBERED_SENDS];    // the last of its messages
};

// Who last touched a byte of shared memory or an element of a buffer, and when. A thread is its block's
// number times 1024 plus its rank plus 1, so 0 is nobody; the flags are of writers.
struct Shadow {
  uint32_t writer, write_time;
  uint32_t reader, read_time;
  uint32_t other_reader, other_read_time;  // one that is not ordered with `reader`
};

enum : uint32_t { ATOMIC_MARK = 1u << 31, ASYNC_MARK = 1u << 30, MARKS = ATOMIC_MARK | ASYNC_MARK };

struct NamedBarrier {
  unsigned arrived, warps, time, last_warps;  // bit sets of warps: waiting now, and released at `time`
};

// One of the blocks that run together.
struct Block {
  uint3 index;
  uint32_t number;             // in this launch
  uint32_t start;              // when it began: older marks in `shadow` are of other blocks
  uint32_t barrier_time;       // of its last barrier
  uint32_t remote_time;        // when a peer last touched its shared memory
  int predicate;
  unsigned landings;           // bulk copies that have landed
  uint32_t landing_time[REMEMBERED_SENDS];  // of the last of them
  std::vector<uint32_t> arrived;    // by warp: the lanes that wait at a collective
  std::vector<uint32_t> warp_time;  // by warp: its last __syncwarp
  std::vector<Shadow> shadow;       // of each byte of its shared memory
  std::vector<char> image;          // its shared memory while another block of the cluster runs
  NamedBarrier named[NAMED_BARRIERS];
  std::vector<Arrival> arrivals;
};

struct SimtState {
  const SimtLaunch* launch;
  const SimtModule* module;
  unsigned thread_count, warp_count, block_count;  // of a block; of a block; that run together
  std::vector<Thread> threads;                     // of all blocks that run together
  std::vector<Block> blocks;
  char* segment;        // the shared memory of the block that runs
  unsigned resident;    // its slot
  uint32_t clock;       // advances at every barrier, __syncwarp and atomic; never 0
  uint32_t cluster_time;
  std::deque<View> views;                          // all that there are
  std::map<uintptr_t, const View*> published;      // what the atomics on an address have released
  std::vector<uint16_t> array_at;  // by byte of the segment: the number of its static array, from 1, or 0
  std::vector<Shadow*> shadows;  // by buffer
  std::vector<unsigned char*> touched;  // by read-only buffer and element
  SimtBuffer* last_buffer;
  uint64_t turn;  // which cluster runs, and waits for which other process
  volatile bool overdue;  // it takes longer than it may
  bool waited;  // whether any thread has waited for the kernels before this one
  bool dead;  // a fault after which the launch cannot go on
};

extern SimtState state;
extern Thread* current;  // null while the scheduler runs

// Whose a shadow's mark is.
inline uint32_t mark_of(const Thread& t) { return (state.blocks[t.slot].number << 10) + t.rank + 1; }
inline unsigned block_number_of(uint32_t mark) { return ((mark & ~MARKS) - 1) >> 10; }
inline unsigned rank_of(uint32_t mark) { return ((mark & ~MARKS) - 1) & 1023; }

// simt_order.cpp. `ordered`: whether an access of the thread `mark` at `time` comes before whatever `t`
// does now.
bool ordered(uint32_t mark, uint32_t time, const Thread& t, const Block& block, bool atomic = false);
void check_atomic(Thread& t, uintptr_t address, bool writes);
const View* joined(const View* a, const View* b);

// simt_fiber.cpp
bool prepare_threads(size_t count, bool fresh);
void enter(Thread& t);
void simt_yield();

// simt_schedule.cpp
Thread* next_lane();  // of the warp that runs: the next that can, or null
// The threads of a barrier: each sees from now on what one of them saw, and releases what one released.
template <class Takes>
void share_views(Thread* threads, unsigned count, Takes takes_part) {
  const View *seen = nullptr, *released = nullptr;
  for (unsigned i = 0; i < count; i++) {
    if (!takes_part(threads[i])) continue;
    seen = joined(seen, threads[i].seen);
    released = joined(released, threads[i].released);
  }
  for (unsigned i = 0; i < count; i++)
    if (takes_part(threads[i])) threads[i].seen = seen, threads[i].released = released;
}
[[noreturn]] void simt_abandon();

// simt_watch.cpp
void watch();
void end_watch();

// simt_check.cpp
[[noreturn]] void fail_overdue(const void* program_counter);
void check_access(const void* address, size_t bytes, SimtAccess access, const void* program_counter);
void check_begin_launch();
void check_end_launch(bool all_blocks);
void check_begin_block(Block& block);
void check_end_blocks();
void check_exit();
void check_async_issue(const AsyncCopy& copy);
void check_named(const void* address, uint64_t bytes, const void* program_counter);
void check_constant_load(const void* address, unsigned bytes, const void* program_counter);
void check_async_complete(const AsyncCopy& copy);

// simt_report.cpp. A fault is told once for each distinct `key`, which is a place times KINDS and its kind. In its text <pc:N>, <line:N> and
// <buffer:N> stand for what the executor can tell better: a place in the source by address, by line, and a
// parameter.
enum : uint64_t { KINDS = 32 };
void report(uint64_t key, const char* format, ...) __attribute__((format(printf, 2, 3)));
void report_stuck(const Block& block, const char* what);
void report_clear();
int report_count();
