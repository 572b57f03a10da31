// Collects faults as text, one line each.
#include <stdarg.h>
#include <stdio.h>

#include "simt_state.h"

namespace {

enum : size_t { ROOM = 1 << 15, LONGEST = 400, KEYS = 64 };

char text[ROOM];
size_t length;
int count;
uint64_t keys[KEYS];
unsigned key_count;

void append(const char* format, va_list arguments) {
  const int written = vsnprintf(text + length, LONGEST, format, arguments);
  length += written < int(LONGEST) ? size_t(written) : size_t(LONGEST) - 1;
}

__attribute__((format(printf, 1, 2))) void append(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  append(format, arguments);
  va_end(arguments);
}

bool told_before(uint64_t key) {
  for (unsigned i = 0; i < key_count; i++)
    if (keys[i] == key) return true;
  if (key_count < KEYS) keys[key_count++] = key;
  return false;
}

const char* describe(SimtStatus status) {
  switch (status) {
    case RUNNING: return "running";
    case ASLEEP: return "asleep";
    case AT_COLLECTIVE: return "warp collective";
    case AT_BARRIER: return "__syncthreads";
    case AT_NAMED_BARRIER: return "named barrier";
    case AT_CLUSTER_BARRIER: return "cluster barrier";
    case AT_SENT: return "messages of other blocks";
    case AT_BULK_COPY: return "bulk copy";
    case EXITED: return "exited";
  }
  return "";
}

}  // namespace

void report(uint64_t key, const char* format, ...) {
  count++;
  if (told_before(key) || length + 3 * LONGEST > ROOM) return;
  if (const Thread* t = current) {
    const uint3 block = state.blocks[t->slot].index;
    append("block (%u,%u,%u) thread (%u,%u,%u): ", block.x, block.y, block.z, t->index.x, t->index.y,
           t->index.z);
  }
  va_list arguments;
  va_start(arguments, format);
  append(format, arguments);
  va_end(arguments);
  append("\n");
}

// Where the threads of a block stand, as a histogram.
void report_stuck(const Block& block, const char* what) {
  const Thread* threads = &state.threads[size_t(&block - &state.blocks[0]) * state.thread_count];
  bool told[MAXIMUM_THREADS] = {};
  count++;
  if (length + 3 * LONGEST > ROOM) return;
  append("%s in block (%u,%u,%u):", what, block.index.x, block.index.y, block.index.z);
  for (unsigned i = 0; i < state.thread_count && length + 2 * LONGEST < ROOM; i++) {
    if (told[i]) continue;
    const bool exited = threads[i].status == EXITED;
    unsigned alike = 0;
    for (unsigned j = i; j < state.thread_count; j++) {
      if (threads[j].status != threads[i].status || (!exited && threads[j].line != threads[i].line)) continue;
      told[j] = true;
      alike++;
    }
    append(" [%u threads from %u: %s", alike, i, describe(threads[i].status));
    if (exited) append("]");
    else append(" at <line:%d>]", threads[i].line);
  }
  append("\n");
}

void report_clear() {
  length = 0;
  count = 0;
  key_count = 0;
  text[0] = 0;
}

int report_count() { return count; }

extern "C" __attribute__((visibility("default"))) const char* simt_report() { return text; }
