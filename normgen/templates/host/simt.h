// The CUDA language for a C++ compiler (g++ or clang++, C++17): stands in front of a kernel text, which
// compiles unchanged. One CUDA thread is one fiber of the runtime (simt_schedule.cpp); blocks run one after
// the other, those of a cluster together.
//
// __shared__ is thread_local, the only spelling that C++ accepts both for `__shared__ T a[n]` and for
// `extern __shared__ T smem[]`. The library's thread-local segment then *is* the block's shared memory: the
// runtime poisons, bounds and swaps it as one range. The dynamic array must be called `smem` in every
// kernel.
//
// In checked mode the text is compiled with -fsanitize=thread,alignment,... and simt_check.cpp supplies the
// callbacks.
#pragma once

#include "simt_calls.h"
#include "simt_float.h"
#include "simt_math.h"
#include "simt_types.h"

// ---- keywords -------------------------------------------------------------------------------------------

#define NORMGEN_HOST 1
#define __global__
#define __device__
#define __host__
#define __shared__ __attribute__((aligned(128))) thread_local  // 128 leaves gaps, so that overruns are seen
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(n) __attribute__((aligned(n)))

#define threadIdx (simt_thread_index())
#define blockIdx (simt_block_index())
#define blockDim (simt_block_size())
#define gridDim (simt_grid_size())
enum { warpSize = 32 };

// ---- barriers, fences, warp collectives -----------------------------------------------------------------

#define SIMT_LINE int line = __builtin_LINE()

SIMT_INLINE void __syncthreads(SIMT_LINE) { simt_block_barrier(0, 0, line); }
SIMT_INLINE int __syncthreads_or(int predicate, SIMT_LINE) {
  return simt_block_barrier(1, predicate != 0, line) != 0;
}
SIMT_INLINE int __syncthreads_and(int predicate, SIMT_LINE) {
  return simt_block_barrier(1, predicate == 0, line) == 0;
}
SIMT_INLINE int __syncthreads_count(int predicate, SIMT_LINE) {
  return simt_block_barrier(1, predicate != 0, line);
}
SIMT_INLINE void __syncwarp(unsigned mask = ~0u, SIMT_LINE) {
  simt_collective(SIMT_WARP_BARRIER, mask, 0, 0, line);
}
SIMT_INLINE void __threadfence() {
  simt_acquire();
  simt_release();
}
SIMT_INLINE void __threadfence_block() {}
SIMT_INLINE void __nanosleep(unsigned, SIMT_LINE) { simt_sleep(line); }
SIMT_INLINE void __trap(SIMT_LINE) { simt_fail("__trap()", line); }

SIMT_INLINE unsigned __ballot_sync(unsigned mask, int predicate, SIMT_LINE) {
  return unsigned(simt_collective(SIMT_BALLOT, mask, predicate != 0, 0, line));
}
SIMT_INLINE int __any_sync(unsigned mask, int predicate, SIMT_LINE) {
  return simt_collective(SIMT_BALLOT, mask, predicate != 0, 0, line) != 0;
}

template <class T>
SIMT_INLINE T simt_shuffle(unsigned mask, T value, int source_lane, int line) {
  static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(T));
  bits = simt_collective(SIMT_SHUFFLE, mask, bits, source_lane, line);
  memcpy(&value, &bits, sizeof(T));
  return value;
}

template <class T>
SIMT_INLINE T __shfl_sync(unsigned mask, T value, int source, int width = 32, SIMT_LINE) {
  return simt_shuffle(mask, value, (int(simt_lane()) & ~(width - 1)) + (source & (width - 1)), line);
}
template <class T>
SIMT_INLINE T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, SIMT_LINE) {
  const int lane = int(simt_lane()), source = lane ^ bits;
  return simt_shuffle(mask, value, source >= (lane & ~(width - 1)) + width ? lane : source, line);
}
template <class T>
SIMT_INLINE T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, SIMT_LINE) {
  const int lane = int(simt_lane());
  return simt_shuffle(mask, value, (lane & (width - 1)) + int(delta) >= width ? lane : lane + int(delta),
                      line);
}
template <class T>
SIMT_INLINE T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, SIMT_LINE) {
  const int lane = int(simt_lane());
  return simt_shuffle(mask, value, (lane & (width - 1)) < int(delta) ? lane : lane - int(delta), line);
}

// ---- memory ---------------------------------------------------------------------------------------------

// Of memory that nobody may write while the kernel lives.
template <class T>
SIMT_INLINE T __ldg(const T* address) {
  simt_constant_load(address, sizeof(T));
  return *address;
}
template <class T>
SIMT_INLINE T __ldcg(const T* address) {
  return *address;
}
template <class T>
SIMT_INLINE void __stcs(T* address, T value) {
  *address = value;
}

// Launches run one at a time on one OS thread, so a plain update is atomic. Sanitizers must not see it as
// two accesses; out of line, so that the return address is the kernel's.
template <class T, class Update>
__attribute__((no_sanitize("thread", "undefined"), noinline)) static T simt_atomic(T* address,
                                                                                   Update update) {
  simt_access(address, sizeof(T), SIMT_ATOMIC, __builtin_return_address(0));
  volatile T* const place = address;
  const T old = *place;
  *place = update(old);
  return old;
}

template <class T>
SIMT_INLINE T atomicAdd(T* address, T value) {
  return simt_atomic(address, [value](T old) { return T(old + value); });
}
template <class T>
SIMT_INLINE T atomicMax(T* address, T value) {
  return simt_atomic(address, [value](T old) { return old < value ? value : old; });
}
template <class T>
SIMT_INLINE T atomicOr(T* address, T value) {
  return simt_atomic(address, [value](T old) { return T(old | value); });
}
template <class T>
SIMT_INLINE T atomicExch(T* address, T value) {
  return simt_atomic(address, [value](T) { return value; });
}
template <class T>
SIMT_INLINE T atomicCAS(T* address, T expected, T value) {
  return simt_atomic(address, [expected, value](T old) { return old == expected ? value : old; });
}
SIMT_INLINE unsigned atomicInc(unsigned* address, unsigned limit) {
  return simt_atomic(address, [limit](unsigned old) { return old >= limit ? 0u : old + 1; });
}

// ---- what CUDA reaches by PTX only: the device header calls these under NORMGEN_HOST --------------------

// A copy is made when the thread waits for its group, as late as the hardware may make it: without the wait
// the thread reads what was there before.
SIMT_INLINE void normgen_async_copy(void* shared, const void* global, int bytes) {
  simt_async_copy(shared, global, bytes);
}
SIMT_INLINE void normgen_async_commit() { simt_async_commit(); }
SIMT_INLINE void normgen_async_wait(int pending_groups) { simt_async_wait(pending_groups); }
// mbarriers, one after the other: initialised by one thread, whose fence makes that visible; and told to
// expect one more phase.
SIMT_INLINE void normgen_open_arrivals(const void* first, int count) { simt_open_arrivals(first, count); }
SIMT_INLINE void normgen_arrivals_fence() { simt_arrivals_fence(); }
SIMT_INLINE void normgen_expect(const void* arrival, SIMT_LINE) { simt_expect(arrival, line); }
// By all threads of a block: until copies of its first thread are made. Nothing else is ordered by that.
// `arrival`, `parity`: the mbarrier that counts them, and of which phase.
SIMT_INLINE void normgen_bulk_wait(int pending_groups, const void* arrival, int parity, SIMT_LINE) {
  simt_phase(arrival, parity, line);
  simt_bulk_wait(pending_groups, arrival, line);
}

SIMT_INLINE long long normgen_nanoseconds() { return simt_nanoseconds(); }

// What a hint to the caches is about: memory of the launch, which is not touched.
SIMT_INLINE void normgen_named(const void* address, unsigned long long bytes) { simt_named(address, bytes); }

// Programmatic dependent launch: griddepcontrol.wait, and .launch_dependents.
SIMT_INLINE void normgen_wait_for_earlier() { simt_wait_for_earlier(); }
SIMT_INLINE void normgen_let_next_start(SIMT_LINE) { simt_let_next_start(line); }

// `bar.sync barrier, threads`: a barrier of some of the block's warps.
SIMT_INLINE void normgen_named_barrier(unsigned barrier, unsigned threads, SIMT_LINE) {
  simt_named_barrier(barrier, threads, line);
}

// The order of an atomic: a release before it (`.release`), an acquire after it (`.acquire`).
SIMT_INLINE void normgen_release() { simt_release(); }
SIMT_INLINE void normgen_acquire() { simt_acquire(); }
template <class T>
__attribute__((no_sanitize("thread", "undefined"), noinline)) static T normgen_atomic_load(const volatile T* address) {
  simt_access(const_cast<const T*>(address), sizeof(T), SIMT_ATOMIC_READ, __builtin_return_address(0));
  return *address;
}

SIMT_INLINE unsigned normgen_cluster_rank() { return simt_cluster_rank(); }
SIMT_INLINE void normgen_cluster_arrive(SIMT_LINE) { simt_cluster_arrive(line); }
SIMT_INLINE void normgen_cluster_wait(SIMT_LINE) { simt_cluster_wait(line); }
// Messages that are counted where they arrive: by lane k of every warp of the cluster to block k, then
// awaited there by every thread. What a sender did before, and its warp before its last __syncwarp, comes
// before what follows the wait.
SIMT_INLINE void normgen_sent(SIMT_LINE) { simt_sent(line); }
SIMT_INLINE void normgen_await_sent(const void* arrival, int parity, SIMT_LINE) {
  simt_phase(arrival, parity, line);
  simt_await_sent(arrival, line);
}
template <class T>
SIMT_INLINE T* normgen_remote_shared(T* local, unsigned rank, SIMT_LINE) {
  return (T*)simt_remote_shared(local, rank, line);
}

// ---- cooperative groups ---------------------------------------------------------------------------------

namespace cooperative_groups {

struct cluster_group {
  SIMT_METHOD void sync(SIMT_LINE) const { simt_cluster_barrier(line); }
  SIMT_METHOD unsigned block_rank() const { return simt_cluster_rank(); }
  SIMT_METHOD unsigned num_blocks() const { return simt_cluster_blocks(); }
  template <class T>
  SIMT_METHOD T* map_shared_rank(T* local, unsigned rank, SIMT_LINE) const {
    return (T*)simt_remote_shared(local, rank, line);
  }
};

SIMT_INLINE cluster_group this_cluster() { return {}; }

}  // namespace cooperative_groups
