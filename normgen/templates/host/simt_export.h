// How the host calls a kernel: SIMT_EXPORT(kernel), after the kernel text, makes the library's two entry
// points.
#pragma once

#include "simt_types.h"

template <int... I>
struct SimtIndices {};
template <int n, int... I>
struct SimtIndexRange : SimtIndexRange<n - 1, n - 1, I...> {};
template <int... I>
struct SimtIndexRange<0, I...> {
  typedef SimtIndices<I...> type;
};

// A parameter's size and kind, by which the host checks what it packs: a byte count, then i, f, p or s (a
// structure).
template <class T>
struct SimtKind {
  static constexpr char kind = __is_class(T) ? 's' : 'i';
};
template <class T>
struct SimtKind<T*> {
  static constexpr char kind = 'p';
};
template <>
struct SimtKind<float> {
  static constexpr char kind = 'f';
};
template <>
struct SimtKind<double> {
  static constexpr char kind = 'f';
};

template <class... A>
static int simt_list_parameters(void (*)(A...), unsigned* sizes, char* kinds, int room) {
  const unsigned all_sizes[] = {unsigned(sizeof(A))..., 0};
  const char all_kinds[] = {SimtKind<A>::kind..., 0};
  const int count = int(sizeof...(A));
  for (int i = 0; i < count && i < room; i++) sizes[i] = all_sizes[i], kinds[i] = all_kinds[i];
  return count;
}

// The convention of cuLaunchKernel: one pointer for each parameter.
template <class... A, int... I>
__attribute__((no_sanitize("thread", "undefined"))) static void simt_spread(void (*kernel)(A...),
                                                                            void** arguments,
                                                                            SimtIndices<I...>) {
  (void)arguments;
  kernel(*(A*)arguments[I]...);
}
template <class... A>
__attribute__((no_sanitize("thread", "undefined"))) static void simt_call(void (*kernel)(A...),
                                                                          void** arguments) {
  simt_spread(kernel, arguments, typename SimtIndexRange<int(sizeof...(A))>::type());
}

#define SIMT_EXPORT(kernel)                                                             \
  extern "C" __attribute__((visibility("default"))) void simt_entry(void** arguments) { \
    simt_call(kernel, arguments);                                                       \
  }                                                                                     \
  extern "C" __attribute__((visibility("default"))) int simt_parameters(                \
      unsigned* sizes, char* kinds, int room) {                                         \
    return simt_list_parameters(kernel, sizes, kinds, room);                            \
  }
