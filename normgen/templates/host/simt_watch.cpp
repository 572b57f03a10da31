// The watch: ends a launch of which a block, or a cluster, takes longer than it may.
//
// A timer of the processor time of this OS thread ticks a few times in as long as that. Where all of these ticks
// fall into one cluster, with no wait for another process between them, its threads go round in a loop that does
// not end. A kernel may have compiled to a jump to itself, so it is abandoned from within the signal's handler.
// Where the signal comes while the runtime is at work, that finds the launch overdue itself.
#include <errno.h>
#include <fenv.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "simt_state.h"

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

namespace {

enum : unsigned { TICKS = 4 };  // in the time that a cluster may take
const timespec AGAIN = {0, 10 * 1000 * 1000};  // from one tick to the next of what is overdue

bool watched;  // false: there is no timer
int timer;
uint64_t last_turn;
unsigned ticks;  // since that began
sigset_t usual_mask;
fenv_t usual_floats;

void tick_every(timespec time) {
  const itimerspec times = {time, time};
  syscall(SYS_timer_settime, timer, 0, &times, nullptr);
}

void tick(int, siginfo_t*, void* context) {
  const int code = errno;
  if (state.turn != last_turn) ticks = 0;
  last_turn = state.turn;
  if (++ticks > TICKS) {
    state.overdue = true;
    const uintptr_t at = uintptr_t(((const ucontext_t*)context)->uc_mcontext.gregs[REG_RIP]);
    if (at - uintptr_t(state.module->base) < state.module->image_bytes) fail_overdue((const void*)at);
    tick_every(AGAIN);
  }
  errno = code;
}

// A signal that nobody has a use for, with `tick` as its handler; 0, with which there is no timer, where there
// is none.
int signal_number() {
  for (int number = SIGRTMAX; number > SIGRTMIN; number--) {
    struct sigaction known, own = {};
    if (sigaction(number, nullptr, &known) || known.sa_handler != SIG_DFL) continue;
    own.sa_sigaction = tick;
    own.sa_flags = SA_SIGINFO | SA_RESTART | SA_NODEFER;  // it may not return
    if (!sigaction(number, &own, nullptr)) return number;
  }
  return 0;
}

}  // namespace

void watch() {
  static const int number = signal_number();
  sigevent event = {};
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = number;
  event.sigev_notify_thread_id = int(syscall(SYS_gettid));
  state.overdue = false;
  ticks = 0;
  watched = !syscall(SYS_timer_create, CLOCK_THREAD_CPUTIME_ID, &event, &timer);
  if (!watched) return;
  sigset_t own;
  sigemptyset(&own);
  sigaddset(&own, number);
  sigprocmask(SIG_UNBLOCK, &own, &usual_mask);
  fegetenv(&usual_floats);
  const double seconds = state.launch->maximum_seconds / TICKS;
  tick_every({time_t(seconds), long((seconds - double(time_t(seconds))) * 1e9)});
}

void end_watch() {
  if (!watched) return;
  syscall(SYS_timer_delete, timer);
  sigprocmask(SIG_SETMASK, &usual_mask, nullptr);
  // a handler that does not return leaves its own behind
  if (state.overdue) fesetenv(&usual_floats);
}
