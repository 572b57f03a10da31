// Fibers: a stack for each CUDA thread that may have to wait, and the switch between them.
#include <sys/mman.h>

#include "simt_state.h"

#ifndef __x86_64__
#error "the fiber switch is written for x86-64"
#endif

// Saves the callee-saved registers and the stack pointer, and goes on where `to` was saved. (swapcontext
// would make two system calls each time, ten times slower.)
asm(R"(
.text
.type simt_switch, @function
simt_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
.size simt_switch, . - simt_switch
)");
extern "C" void simt_switch(void** save, void* to);

namespace {

enum : size_t { GUARD_BYTES = 4096 };

void* scheduler_stack_pointer;

// Of stacks mapped so far; they are kept for later launches.
size_t stack_count;

// A fiber runs one CUDA thread after the other.
void fiber() {
  for (;;) {
    state.module->entry(state.launch->arguments);
    if (state.launch->checked) check_exit();
    current->status = EXITED;
    simt_yield();
  }
}

void prepare_fiber(Thread& t, size_t number) {
  // Different offsets, or all stacks would compete for the same few lines of the cache.
  void** top = (void**)(t.stack + STACK_BYTES - 64 - number % 61 * 256);
  memset(top, 0, 64);
  top[6] = (void*)fiber;  // where simt_switch returns to, above the six registers
  t.stack_pointer = top;
}

}  // namespace

bool prepare_threads(size_t count, bool fresh) {
  const int protection = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  if (count > state.threads.size()) state.threads.resize(count);
  // After a fault every fiber may stand anywhere: all begin anew, those that this launch does not need too.
  for (size_t i = 0; fresh && i < stack_count; i++) prepare_fiber(state.threads[i], i);
  for (; stack_count < count; stack_count++) {
    void* memory = mmap(nullptr, STACK_BYTES + GUARD_BYTES, protection, flags, -1, 0);
    if (memory == MAP_FAILED) return false;
    mprotect(memory, GUARD_BYTES, PROT_NONE);
    state.threads[stack_count].stack = (char*)memory + GUARD_BYTES;
    prepare_fiber(state.threads[stack_count], stack_count);
  }
  return true;
}

void enter(Thread& t) {
  current = &t;
  simt_switch(&scheduler_stack_pointer, t.stack_pointer);
}

// To the lane whose turn it is next, without a detour by the scheduler, to which the last of a warp returns.
void simt_yield() {
  Thread* const leaving = current;
  current = state.dead || state.overdue ? nullptr : next_lane();
  simt_switch(&leaving->stack_pointer, current ? current->stack_pointer : scheduler_stack_pointer);
}

void simt_abandon() {
  state.dead = true;
  simt_yield();
  __builtin_unreachable();
}
