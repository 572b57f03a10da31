// Calls of norms that were made before, without Python: keys, results, launches.
//
// A call is known by how its tensors lie. What Python prepared for it once is kept here under that key. The
// driver is reached through the address of its function, so that nothing of CUDA is needed to build this;
// PyTorch's own libraries are.
#pragma once

#include <ATen/EmptyTensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <array>
#include <deque>
#include <optional>
#include <unordered_map>

#ifdef NORMGEN_CUDA
#include <ATen/cuda/EmptyTensor.h>
extern "C" int aoti_torch_get_current_cuda_stream(int32_t device, void** stream);
#endif

namespace normgen {

using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;
namespace py = pybind11;

// As in cuda.h: CUlaunchAttribute, CUlaunchConfig, and how arguments go in one buffer.
struct Attribute {
  int id = 0;
  char pad[4] = {};
  union {
    char pad[64];
    int allowed;
  } value = {};
};
struct Configuration {
  unsigned grid[3], block[3], shared;
  void* stream;
  const Attribute* attributes;
  unsigned attribute_count;
};
using LaunchKernel = int (*)(const Configuration*, void* function, void** arguments, void** extra);
using IsCapturing = int (*)(void* stream, int* status);
enum { BUFFER_POINTER = 1, BUFFER_SIZE = 2, EARLY_START = 6 };
constexpr uint64_t GRANULE = 256;  // to which scratch memory is aligned

struct Launch {
  uint64_t function;  // its address
  std::array<unsigned, 3> grid, block;
  unsigned shared;
  bool early, clears;
  std::string arguments;
  std::vector<std::array<size_t, 3>> patches;  // where in them a word of the pool goes, which, its bytes
};

// A result to make. One that is `within` another, by its place, has no tensor: it begins so many bytes behind.
struct Layout {
  std::vector<int64_t> shape, strides;
  at::ScalarType dtype;
  int within = -1;
  uint64_t offset = 0;
};

// Two operands, of which one is written, overlap where the second is further than `least` and less far than
// `most` from the first, unless that is by `same`.
struct Guard {
  size_t first, second;
  int64_t least, most, same;
};

// Where a scratch array lies in memory of the call, and in memory that is zeros; -1: not there.
struct Place {
  int64_t offset, zeros;
};

// Memory that is zeros whenever no kernel of a stream runs.
struct Zeros {
  int64_t stream;
  uint64_t address;
  py::object owner;
};

// A call without its addresses. Its pool is that of a prepared call in Python, up to the constants: addresses of
// operands, numbers, addresses of results and of scratch memory.
struct Prepared {
  uint64_t launch = 0, capturing = 0;  // addresses of functions; no `capturing` where there are no graphs
  int device = -1;                     // -1: the host
  size_t operands = 0;
  std::vector<size_t> numbers;  // which of a call's
  std::vector<Layout> made;
  std::vector<int> fields;  // for each result of the direction its place among those made; -1: none
  std::vector<Guard> guards;
  std::vector<Launch> launches;
  std::vector<Place> scratch;
  int64_t size = 0;  // bytes that a call allocates for these
  // stream -> the address of zeros and its owner, or None; None where none are needed
  py::object zeros = py::none();
  py::object clear;  // (address, stream): makes them zeros again
  py::object owner;  // what the functions live in
  mutable std::mutex guard;
  mutable std::vector<Zeros> known_zeros;

  ~Prepared() {  // in any thread
    py::gil_scoped_acquire gil;
    known_zeros.clear();
    zeros = clear = owner = py::object();
  }

  void check(size_t given) const {
    for (size_t place : numbers) TORCH_CHECK_VALUE(place < given, "a number is not given");
    for (const Layout& layout : made)
      TORCH_CHECK_VALUE(layout.within < 0 || ((size_t)layout.within < made.size() && made[layout.within].within < 0),
                        "a result lies in none");
    size_t pool = operands + numbers.size() + made.size() + scratch.size();
    for (const Launch& launch : launches)
      for (auto [offset, source, bytes] : launch.patches)
        TORCH_CHECK_VALUE(source < pool && bytes <= 8 && offset + bytes <= launch.arguments.size(),
                          "an argument has no place");
  }
};
constexpr size_t MOST_STREAMS = 256;  // whose zeros a call keeps

// An error that Python has set becomes an exception, which autograd takes from thread to thread.
[[noreturn]] inline void raise_set_error() {
  python_error error;
  error.persist();
  throw error;
}

inline bool is_current(int device) {
  return device < 0 || c10::impl::getDeviceGuardImpl(c10::kCUDA)->getDevice().index() == device;
}

inline void* current_stream(int device) {
  void* stream = nullptr;
#ifdef NORMGEN_CUDA
  if (device >= 0) aoti_torch_get_current_cuda_stream(device, &stream);
#endif
  return stream;
}

// A number of the current stream that no other gets; -1 for streams that PyTorch has not made, whose handles
// may come again.
inline int64_t stream_name(int device) {
  if (device < 0) return 0;
  c10::Device place(c10::kCUDA, (c10::DeviceIndex)device);
  int64_t name = c10::impl::getDeviceGuardImpl(c10::kCUDA)->getStream(place).id();
  return name == 0 || name & 1 ? name : -1;
}

// The address of memory that is zeros whenever no kernel of the current stream runs. 0 where there is none:
// then kernels clear memory of their own, as in a graph, which runs beside its stream.
inline uint64_t zeros_of(const Prepared& prepared, void* stream) {
  int64_t name = stream_name(prepared.device);
  int status = 0;
  auto* capturing = (IsCapturing)prepared.capturing;
  if (name < 0 || (capturing && (capturing(stream, &status) || status))) return 0;
  {
    std::lock_guard<std::mutex> lock(prepared.guard);
    for (const Zeros& each : prepared.known_zeros)
      if (each.stream == name) return each.address;
  }
  py::gil_scoped_acquire gil;
  py::object told = prepared.zeros((uint64_t)(uintptr_t)stream);
  if (told.is_none()) return 0;
  auto [address, owner] = told.cast<std::pair<uint64_t, py::object>>();
  std::lock_guard<std::mutex> lock(prepared.guard);
  if (prepared.known_zeros.size() >= MOST_STREAMS) prepared.known_zeros.clear();
  prepared.known_zeros.push_back({name, address, std::move(owner)});
  return address;
}

inline Tensor allocated(const Layout& layout, int device) {
#ifdef NORMGEN_CUDA
  if (device >= 0)
    return Tensor(at::detail::empty_strided_cuda(
        layout.shape, layout.strides, layout.dtype, c10::Device(c10::kCUDA, (c10::DeviceIndex)device)));
#endif
  return Tensor(at::detail::empty_strided_cpu(layout.shape, layout.strides, layout.dtype));
}

using Operands = c10::SmallVector<const Tensor*, 8>;  // in order, null for those left out
using Numbers = c10::ArrayRef<double>;
using Results = c10::SmallVector<Tensor, 8>;          // likewise, undefined ones

// Run a call. False where Python is to make it, or to say why it cannot be made. What is written has memory of
// its own: reading leaves lazy clones as they are.
inline bool run(const Prepared& prepared, const Operands& operands, Numbers numbers, Results& results) {
  std::optional<c10::DeviceGuard> elsewhere;
  if (!is_current(prepared.device))
    elsewhere.emplace(c10::Device(c10::kCUDA, (c10::DeviceIndex)prepared.device));
  c10::SmallVector<uint64_t, 32> pool;
  for (const Tensor* operand : operands)
    if (operand) pool.push_back((uint64_t)operand->const_data_ptr());
  for (const Guard& guard : prepared.guards) {
    int64_t distance = (int64_t)(pool[guard.second] - pool[guard.first]);
    if (guard.least < distance && distance < guard.most && distance != guard.same) return false;
  }
  for (size_t place : prepared.numbers) {
    auto number = (float)numbers[place];
    memcpy(&pool.emplace_back(0), &number, sizeof number);
  }
  void* stream = current_stream(prepared.device);
  uint64_t zeros = !prepared.zeros.is_none() ? zeros_of(prepared, stream) : 0;
  c10::SmallVector<Tensor, 8> made;
  for (const Layout& layout : prepared.made)
    made.push_back(layout.within < 0 ? allocated(layout, prepared.device) : Tensor());
  for (size_t i = 0; i < made.size(); i++) {
    const Layout& layout = prepared.made[i];
    pool.push_back((uint64_t)made[layout.within < 0 ? i : layout.within].data_ptr() + layout.offset);
  }
  Tensor passing;  // what is freed here is used again by what follows on the stream, if at all
  auto in_zeros = [&](const Place& place) { return zeros && place.zeros >= 0; };
  if (!std::all_of(prepared.scratch.begin(), prepared.scratch.end(), in_zeros))
    passing = allocated({{prepared.size}, {1}, at::kByte}, prepared.device);
  uint64_t base = passing.defined() ? ((uint64_t)passing.data_ptr() + GRANULE - 1) / GRANULE * GRANULE : 0;
  for (const Place& place : prepared.scratch)
    pool.push_back(in_zeros(place) ? zeros + (uint64_t)place.zeros : base + (uint64_t)place.offset);
  static const Attribute early = [] {
    Attribute attribute;
    attribute.id = EARLY_START;
    attribute.value.allowed = 1;
    return attribute;
  }();
  // A full queue makes the driver wait.
  PyThreadState* python = PyGILState_Check() ? PyEval_SaveThread() : nullptr;
  auto* start = (LaunchKernel)prepared.launch;
  int code = 0;
  size_t count = 0;
  for (const Launch& launch : prepared.launches) {
    if (zeros && launch.clears) continue;
    c10::SmallVector<char, 512> arguments(launch.arguments.begin(), launch.arguments.end());
    size_t size = arguments.size();
    for (auto [offset, source, bytes] : launch.patches) memcpy(&arguments[offset], &pool[source], bytes);
    auto [x, y, z] = launch.grid;
    auto [threads, rows, planes] = launch.block;
    Configuration configuration = {{x, y, z}, {threads, rows, planes}, launch.shared, stream, &early, launch.early};
    void* extra[] = {(void*)BUFFER_POINTER, arguments.data(), (void*)BUFFER_SIZE, &size, nullptr};
    if ((code = start(&configuration, (void*)launch.function, nullptr, extra))) break;
    count++;
  }
  if (python) PyEval_RestoreThread(python);
  if (code && zeros) {  // what has begun may have left words there that no kernel clears any more
    py::gil_scoped_acquire gil;
    prepared.clear(zeros, (uint64_t)(uintptr_t)stream);
  }
  // A call that has begun is not made again: it may have written states.
  TORCH_CHECK(!code || !count, "CUDA: launch ", count + 1, " of a call failed with error ", code);
  if (code) return false;
  for (int place : prepared.fields) results.push_back(place < 0 ? Tensor() : made[place]);
  return true;
}

// Whether a tensor is nothing but strided memory on a device. Others may have no sizes, or no address.
inline bool is_plain(const Tensor& tensor) {
  static const DispatchKeySet allowed =
      DispatchKeySet({DispatchKey::Dense, DispatchKey::AutogradFunctionality, DispatchKey::ADInplaceOrView,
                      DispatchKey::AutocastCPU, DispatchKey::AutocastCUDA});
  DispatchKeySet others = tensor.key_set() - allowed;
  return (tensor.is_cpu() || tensor.is_cuda()) && (others.raw_repr() & ~c10::full_backend_mask) == 0;
}

// The results that a call is to compute, as bits, and the element types of those that no operand tells: for
// each operand that is not given and whose gradient is wanted, by the gradient's place.
struct Wanted {
  uint64_t results;
  c10::SmallVector<std::pair<int, at::ScalarType>, 4> types;
};

// What a call is known by: what is wanted, and how each tensor lies. Empty where a tensor is no plain
// one: no such call is known.
using Key = c10::SmallVector<int64_t, 96>;

inline Key key_of(Wanted wanted, const Operands& operands) {
  Key key;
  key.push_back((int64_t)wanted.results);
  key.push_back((int64_t)wanted.types.size());
  std::sort(wanted.types.begin(), wanted.types.end());
  for (auto [place, dtype] : wanted.types) key.push_back((int64_t)place << 8 | (int64_t)dtype);
  for (const Tensor* operand : operands) {
    if (!operand) {
      key.push_back(0);
      continue;
    }
    if (!is_plain(*operand)) return {};
    c10::TensorImpl* tensor = operand->unsafeGetTensorImpl();
    auto sizes = tensor->sizes(), strides = tensor->strides();
    auto dtype = (int64_t)c10::typeMetaToScalarType(tensor->dtype());
    auto alignment = (int64_t)((uintptr_t)operand->const_data_ptr() & 15);
    auto device = (int64_t)(tensor->is_cpu() ? 255 : (uint8_t)tensor->device().index());
    key.push_back(dtype << 32 | device << 24 | alignment << 16 | (int64_t)sizes.size());
    key.append(sizes.begin(), sizes.end());
    key.append(strides.begin(), strides.end());
  }
  return key;
}

// The calls of one direction: at most so many, of which the oldest go.
struct Calls {
  using Call = std::shared_ptr<const Prepared>;
  struct Hash {
    size_t operator()(const Key& key) const {
      uint64_t hash = key.size();
      for (int64_t word : key) hash = (hash ^ (uint64_t)word) * 0x9E3779B97F4A7C15u, hash ^= hash >> 29;
      return hash;
    }
  };
  size_t most;
  std::vector<std::pair<double, double>> bounds;  // of numbers, beyond which Python looks at them
  std::mutex guard;  // backwards look here without Python's lock
  std::unordered_map<Key, Call, Hash> known;
  std::deque<Key> order;

  Calls(size_t most, std::vector<std::pair<double, double>> bounds) : most(most), bounds(std::move(bounds)) {}

  Call find(const Wanted& wanted, Numbers numbers, const Operands& operands) {
    for (size_t i = 0; i < bounds.size(); i++)
      if (!(bounds[i].first <= numbers[i] && numbers[i] <= bounds[i].second)) return nullptr;
    return find(key_of(wanted, operands));
  }

  Call find(const Key& key) {
    std::lock_guard<std::mutex> lock(guard);
    auto found = known.find(key);
    return found == known.end() ? nullptr : found->second;
  }

  void keep(const Key& key, Call call) {
    Call gone;  // which goes when nobody waits
    std::lock_guard<std::mutex> lock(guard);
    auto [place, is_new] = known.try_emplace(key);
    if (is_new) order.push_back(key);
    std::swap(place->second, call);
    if (known.size() <= most) return;
    gone = std::move(known.extract(order.front()).mapped());
    order.pop_front();
  }

  void forget() {
    decltype(known) all;
    std::lock_guard<std::mutex> lock(guard);
    known.swap(all);
    order.clear();
  }
};

}  // namespace normgen
