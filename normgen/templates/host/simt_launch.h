// What the host gives the runtime for one launch. The executor's ctypes structures mirror these, field by
// field.
#pragma once

#include "simt_types.h"

// What a block may have on sm_90: 227 KB, static and dynamic together.
enum : uint32_t { SIMT_DYNAMIC_SHARED = 227 * 1024 };

// A static __shared__ array: its place in the library's thread-local segment.
struct SimtArray {
  uint64_t offset, bytes;
};

// A loaded kernel library.
struct SimtModule {
  void (*entry)(void**);
  char* (*shared_memory)();     // the calling OS thread's `smem`
  char* base;                   // where the library lies
  uint64_t image_bytes;         // and how far it reaches
  uint64_t segment_bytes;       // its thread-local segment
  uint64_t dynamic_offset;      // `smem` in that segment
  const SimtArray* arrays;
  uint64_t array_count;
};

enum : uint32_t {
  SIMT_READ_ONLY = 1,   // a write is a fault
  SIMT_UNDEFINED = 2,   // a read before a write is a fault, and so is an element left unwritten
  SIMT_WRITE_ONCE = 4,  // a write by a second thread is a fault, also after a barrier
};

// Memory that the launch may touch; the runtime adds up what it touches.
struct SimtBuffer {
  char* address;
  uint64_t bytes;
  uint32_t item_bytes, flags;
  uint64_t read_bytes, written_bytes;  // all accesses
  uint64_t read_items, written_items;  // distinct elements
};

struct SimtLaunch {
  const SimtModule* module;
  void** arguments;
  SimtBuffer* buffers;
  uint64_t buffer_count;
  uint64_t first_block, end_block;  // the blocks to run, numbered with x fastest
  double maximum_seconds;           // of processor time, of one block or cluster
  dim3 grid, block;
  uint32_t cluster;  // blocks of a cluster, along x
  uint32_t shared;   // bytes of dynamic shared memory
  uint32_t order;    // of lanes, warps and blocks: 0 ascending, 1 descending, 2 random
  uint32_t seed;
  uint32_t checked;
  uint32_t early;  // it may start while the kernel before it still writes
};
