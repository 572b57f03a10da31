#pragma once

// ---- Programmatic dependent launch: a kernel is started while the one before it ends ------------
// A kernel launched with the attribute may start once every block of the kernel before it has
// called programmatic_launch or has ended. Three rules make that safe, whatever runs before and
// after:
//
// - A kernel waits before its first access to global memory, reads and writes alike. The wait ends
//   when the kernels before have ended and their writes are visible. A thread that touches no
//   memory need not wait, but in every grid some thread does: so a kernel does not end before those
//   ahead of it have, and waiting for the one before is waiting for all.
// - A kernel lets the next one start only after its own wait. So nothing but the kernel just before
//   is still running when a kernel starts, also where that is one of another library that reads its
//   own weights before it waits.
//
// - A kernel loads from memory by ordinary loads alone. Those of memory that nobody writes while the
//   kernel lives (ld.global.nc: __ldg, and what `const` with `__restrict__` becomes) may be moved
//   above the wait, and be answered from lines that were fetched before it. A kernel that starts
//   early lives while the one before it writes.
//
// Weights are not read before the wait, either: the kernel before may have computed them, and even
// one that never calls programmatic_launch may have ended without its writes being visible yet.
//
// A kernel that is launched without the attribute calls neither: the kernel before has then ended.

__device__ __forceinline__ void programmatic_wait() {
#if defined(NORMGEN_HOST)
    normgen_wait_for_earlier();
#elif __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets blocks of the next kernel start as this kernel's blocks end. Called early where blocks are
// persistent, so that the second-stage reduction is resident when they end; after the stores where
// a block has one row.
__device__ __forceinline__ void programmatic_launch() {
#if defined(NORMGEN_HOST)
    normgen_let_next_start();
#elif __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
