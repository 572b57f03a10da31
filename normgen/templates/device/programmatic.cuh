// ---- Programmatic dependent launch: a kernel is started while the one before it ends ------------------------------------------
// A kernel launched with that permission may start once every block of the kernel before it has called programmatic_launch or
// has ended. Two rules make that safe, whatever came before and whatever comes after:
//
// - A kernel waits before its first access to global memory, reads and writes alike. The wait ends when the kernels before have
//   ended and their writes can be seen. A thread that touches no memory need not wait, but in every grid some thread does: so a
//   kernel does not end before those ahead of it have, and waiting for the one before is waiting for all.
// - A kernel lets the next one start only after its own wait. So nothing but the kernel just before is still running when a
//   kernel starts, also where that is one of another library that reads its own weights before it waits.
//
// Weights are not read before the wait, either: nothing says that the kernel before did not compute them, and even one that
// never calls programmatic_launch may have ended without its writes being visible yet.
//
// Without the permission both do nothing: then the kernel before has ended anyway, and nobody waits to be let in.

template <bool PROGRAMMATIC> __device__ __forceinline__ void programmatic_wait() {
#if !defined(NORMGEN_HOST) && __CUDA_ARCH__ >= 900
    if constexpr (PROGRAMMATIC) asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The next kernel may take the places that this one's blocks leave. Called early where blocks stay for many rows, so that the
// kernel that finalises their sums is there when they end; after the stores where a block has one row (prototypes on an H200, in
// chains of small kernels: 1.28 us each without all this, 0.97 when called at the start, 0.95 after the stores).
template <bool PROGRAMMATIC> __device__ __forceinline__ void programmatic_launch() {
#if !defined(NORMGEN_HOST) && __CUDA_ARCH__ >= 900
    if constexpr (PROGRAMMATIC) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
