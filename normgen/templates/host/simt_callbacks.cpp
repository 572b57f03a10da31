// What a kernel compiled with -fsanitize=thread,... calls at every access, and where its behaviour is
// undefined. With these in place of the sanitizers' own run time libraries, a kernel loads
// into any process.
#include "simt_state.h"

#define SIMT_CALLBACK extern "C" __attribute__((visibility("default")))
#define SIMT_CALLER __builtin_return_address(0)

void simt_access(const void* address, unsigned bytes, SimtAccess access, const void* program_counter) {
  check_access(address, bytes, access, program_counter);
}

#define SIMT_TSAN(n) \
  SIMT_CALLBACK void __tsan_read##n(void* p) { check_access(p, n, SIMT_READ, SIMT_CALLER); } \
  SIMT_CALLBACK void __tsan_write##n(void* p) { check_access(p, n, SIMT_WRITE, SIMT_CALLER); } \
  SIMT_CALLBACK void __tsan_unaligned_read##n(void* p) { check_access(p, n, SIMT_READ, SIMT_CALLER); } \
  SIMT_CALLBACK void __tsan_unaligned_write##n(void* p) { check_access(p, n, SIMT_WRITE, SIMT_CALLER); }

SIMT_TSAN(1)
SIMT_TSAN(2)
SIMT_TSAN(4)
SIMT_TSAN(8)
SIMT_TSAN(16)

SIMT_CALLBACK void __tsan_init() {}
SIMT_CALLBACK void __tsan_func_entry(void*) {}
SIMT_CALLBACK void __tsan_func_exit() {}
SIMT_CALLBACK void __tsan_read_range(void* p, size_t n) { check_access(p, n, SIMT_READ, SIMT_CALLER); }
SIMT_CALLBACK void __tsan_write_range(void* p, size_t n) { check_access(p, n, SIMT_WRITE, SIMT_CALLER); }

SIMT_CALLBACK void* __tsan_memcpy(void* to, const void* from, size_t n) {
  check_access(from, n, SIMT_READ, SIMT_CALLER);
  check_access(to, n, SIMT_WRITE, SIMT_CALLER);
  return memcpy(to, from, n);
}
SIMT_CALLBACK void* __tsan_memmove(void* to, const void* from, size_t n) {
  check_access(from, n, SIMT_READ, SIMT_CALLER);
  check_access(to, n, SIMT_WRITE, SIMT_CALLER);
  return memmove(to, from, n);
}
SIMT_CALLBACK void* __tsan_memset(void* to, int value, size_t n) {
  check_access(to, n, SIMT_WRITE, SIMT_CALLER);
  return memset(to, value, n);
}

namespace {

void undefined_behaviour(const char* what, const void* program_counter) {
  report(uint64_t(program_counter) * KINDS + KINDS - 1, "%s at <pc:%p>", what, program_counter);
  if (current) simt_abandon();
}

}  // namespace

#define SIMT_UBSAN(name, what)                                            \
  SIMT_CALLBACK void __ubsan_handle_##name(void*, uintptr_t, uintptr_t) { \
    undefined_behaviour(what, SIMT_CALLER);                               \
  }

SIMT_UBSAN(type_mismatch_v1, "misaligned or null pointer")
SIMT_UBSAN(out_of_bounds, "array index out of bounds")
SIMT_UBSAN(add_overflow, "signed integer overflow in an addition")
SIMT_UBSAN(sub_overflow, "signed integer overflow in a subtraction")
SIMT_UBSAN(mul_overflow, "signed integer overflow in a multiplication")
SIMT_UBSAN(negate_overflow, "signed integer overflow in a negation")
SIMT_UBSAN(divrem_overflow, "integer division by zero, or its overflow")
SIMT_UBSAN(shift_out_of_bounds, "shift by a negative or too large number of bits")
SIMT_UBSAN(pointer_overflow, "pointer overflow")
SIMT_UBSAN(float_cast_overflow, "conversion of a float to an integer that cannot hold it")
SIMT_UBSAN(builtin_unreachable, "unreachable code reached")
SIMT_UBSAN(load_invalid_value, "invalid value of a bool or enum")
SIMT_UBSAN(vla_bound_not_positive, "array of negative length")
