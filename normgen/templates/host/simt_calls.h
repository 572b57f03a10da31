// What kernel text calls in the runtime, through the functions of simt.h. Every call that threads must make
// together carries its source line: threads that meet at different lines have diverged.
#pragma once

#include "simt_types.h"

enum SimtCollective { SIMT_SHUFFLE, SIMT_BALLOT, SIMT_WARP_BARRIER };
enum SimtAccess { SIMT_READ, SIMT_WRITE, SIMT_ATOMIC, SIMT_ATOMIC_READ };

// The value never changes while a thread runs one kernel, so the compiler may keep it in a register across
// barriers.
#define SIMT_CONSTANT __attribute__((const))

#pragma GCC visibility push(default)  // the rest of the runtime stays hidden
uint3 simt_thread_index() SIMT_CONSTANT;
uint3 simt_block_index() SIMT_CONSTANT;
dim3 simt_block_size() SIMT_CONSTANT;
dim3 simt_grid_size() SIMT_CONSTANT;
unsigned simt_lane() SIMT_CONSTANT;
unsigned simt_cluster_rank() SIMT_CONSTANT;
unsigned simt_cluster_blocks() SIMT_CONSTANT;

uint64_t simt_collective(SimtCollective kind, unsigned mask, uint64_t value, int source_lane, int line);
int simt_block_barrier(int counts_predicate, int predicate, int line);
void simt_named_barrier(unsigned barrier, unsigned threads, int line);
void simt_cluster_barrier(int line);
void simt_cluster_arrive(int line);
void simt_cluster_wait(int line);
void simt_sent(int line);
void simt_await_sent(const void* arrival, int line);
void simt_phase(const void* arrival, int parity, int line);
void simt_open_arrivals(const void* first, int count);
void simt_arrivals_fence();
void simt_expect(const void* arrival, int line);
void simt_acquire();
void simt_release();
void simt_sleep(int line);
long long simt_nanoseconds();
void* simt_remote_shared(const void* local, unsigned rank, int line);
void simt_async_copy(void* shared, const void* global, int bytes);
void simt_named(const void* address, uint64_t bytes);
void simt_wait_for_earlier();
void simt_let_next_start(int line);
void simt_constant_load(const void* address, unsigned bytes);
void simt_async_commit();
void simt_async_wait(int pending_groups);
void simt_bulk_wait(int pending_groups, const void* arrival, int line);
void simt_access(const void* address, unsigned bytes, SimtAccess access, const void* program_counter);
[[noreturn]] void simt_fail(const char* message, int line);
#pragma GCC visibility pop
