// Calls of norms that were made before, without Python: keys, results, launches, and a node of autograd.
//
// A call is known by how its tensors lie. What Python prepared for it once is kept here under that key, and
// whatever has no key here (other layouts, transforms, modes, kinds of tensor) is answered with None, after
// which Python makes the call. So nothing here decides what is allowed. The driver is reached through the
// address of its function, so that nothing of CUDA is needed to build this; PyTorch's own libraries are.
#define PY_SSIZE_T_CLEAN
#include <torch/csrc/Dtype.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>
#include <ATen/EmptyTensor.h>
#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>
#include <unordered_map>

#ifdef NORMGEN_CUDA
#include <ATen/cuda/EmptyTensor.h>
extern "C" int aoti_torch_get_current_cuda_stream(int32_t device, void** stream);
#endif

namespace torch::autograd {
void deleteNode(Node*);  // of the releases whose nodes have shared pointers
}

namespace {

using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;
using torch::autograd::Edge;
using torch::autograd::InputMetadata;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
namespace compiled = torch::dynamo::autograd;
using NodePointer = decltype(Edge::function);  // a shared_ptr, or in newer releases an intrusive_ptr

// ------------------------------------------------------------------ launches

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
enum { BUFFER_POINTER = 1, BUFFER_SIZE = 2, EARLY_START = 6 };
constexpr size_t MOST_ARGUMENTS = 4096;
constexpr uint64_t GRANULE = 256;  // to which scratch memory is aligned

struct Launch {
  void* function;
  Configuration configuration;
  bool early;
  std::string arguments;
  std::vector<std::pair<size_t, size_t>> patches;  // where in them an address goes, and which
};

struct Layout {
  std::vector<int64_t> shape, strides;
  at::ScalarType dtype;
};

// Two operands, of which one is written, overlap where the second is further than `least` and less far than
// `most` from the first, unless that is by `same`.
struct Guard {
  size_t first, second;
  int64_t least, most, same;
};

// A call without its addresses. In these, operands come first, then results, then scratch memory.
struct Prepared {
  LaunchKernel launch;
  int device;  // -1: the host
  std::vector<Layout> made;
  std::vector<int> fields;  // for each result of the direction its place among those made; -1: none
  std::vector<Guard> guards;
  std::vector<Launch> launches;
  PyObject* scratch;  // stream -> where scratch memory is, which is kept, or None where there is none now
  std::vector<int64_t> offsets;  // without that: of the scratch arrays in memory for one call,
  int64_t size;                  // and its bytes
  uint64_t number;

  ~Prepared() {
    if (!scratch) return;
    pybind11::gil_scoped_acquire gil;
    Py_DECREF(scratch);
  }
};

// The addresses of scratch memory by call and stream. A thread has its own, as the memory is the thread's.
thread_local std::unordered_map<uint64_t, std::unordered_map<void*, std::vector<uint64_t>>> known_scratch;

// An error that Python has set becomes an exception, which autograd takes from thread to thread.
[[noreturn]] void raise_set_error() {
  python_error error;
  error.persist();
  throw error;
}

const std::vector<uint64_t>* scratch_of(const Prepared& prepared, void* stream) {
  auto& streams = known_scratch[prepared.number];
  auto known = streams.find(stream);
  if (known != streams.end()) return &known->second;
  pybind11::gil_scoped_acquire gil;
  auto told = pybind11::reinterpret_steal<pybind11::object>(
      PyObject_CallFunction(prepared.scratch, "K", (unsigned long long)(uintptr_t)stream));
  if (!told) raise_set_error();
  if (told.is_none()) return nullptr;
  std::vector<uint64_t> found;
  for (Py_ssize_t i = 0; i < PyTuple_Size(told.ptr()); i++)
    found.push_back(PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(told.ptr(), i)));
  if (PyErr_Occurred()) raise_set_error();
  return &(streams[stream] = std::move(found));
}

bool is_current(int device) {
  return device < 0 || c10::impl::getDeviceGuardImpl(c10::kCUDA)->getDevice().index() == device;
}

void* current_stream(int device) {
  void* stream = nullptr;
#ifdef NORMGEN_CUDA
  if (device >= 0) aoti_torch_get_current_cuda_stream(device, &stream);
#endif
  return stream;
}

Tensor allocated(const Layout& layout, int device) {
#ifdef NORMGEN_CUDA
  if (device >= 0)
    return Tensor(at::detail::empty_strided_cuda(
        layout.shape, layout.strides, layout.dtype, c10::Device(c10::kCUDA, (c10::DeviceIndex)device)));
#endif
  return Tensor(at::detail::empty_strided_cpu(layout.shape, layout.strides, layout.dtype));
}

using Operands = c10::SmallVector<const Tensor*, 8>;  // in order, null for those left out
using Results = c10::SmallVector<Tensor, 8>;          // likewise, undefined ones

// Run a call. False where Python is to make it, or to say why it cannot be made.
bool run(const Prepared& prepared, const Operands& operands, Results& results) {
  if (!is_current(prepared.device)) return false;
  c10::SmallVector<uint64_t, 32> addresses;
  for (const Tensor* operand : operands)
    if (operand) addresses.push_back((uint64_t)operand->data_ptr());
  for (const Guard& guard : prepared.guards) {
    int64_t distance = (int64_t)(addresses[guard.second] - addresses[guard.first]);
    if (guard.least < distance && distance < guard.most && distance != guard.same) return false;
  }
  void* stream = current_stream(prepared.device);
  const std::vector<uint64_t>* scratch = nullptr;
  if (prepared.scratch && !(scratch = scratch_of(prepared, stream))) return false;
  c10::SmallVector<Tensor, 8> made;
  for (const Layout& layout : prepared.made) {
    made.push_back(allocated(layout, prepared.device));
    addresses.push_back((uint64_t)made.back().data_ptr());
  }
  if (scratch) addresses.append(scratch->begin(), scratch->end());
  Tensor passing;  // what is freed here is used again by what follows on the stream, if at all
  if (!prepared.offsets.empty()) {
    passing = allocated({{prepared.size}, {1}, at::kByte}, prepared.device);
    uint64_t base = ((uint64_t)passing.data_ptr() + GRANULE - 1) / GRANULE * GRANULE;
    for (int64_t offset : prepared.offsets) addresses.push_back(base + (uint64_t)offset);
  }
  static const Attribute early = [] {
    Attribute attribute;
    attribute.id = EARLY_START;
    attribute.value.allowed = 1;
    return attribute;
  }();
  // A full queue makes the driver wait.
  PyThreadState* python = PyGILState_Check() ? PyEval_SaveThread() : nullptr;
  int code = 0;
  size_t count = 0;
  for (const Launch& launch : prepared.launches) {
    char arguments[MOST_ARGUMENTS];
    size_t size = launch.arguments.size();
    memcpy(arguments, launch.arguments.data(), size);
    for (auto [offset, source] : launch.patches) memcpy(arguments + offset, &addresses[source], 8);
    Configuration configuration = launch.configuration;
    configuration.stream = stream;
    configuration.attributes = &early;
    configuration.attribute_count = launch.early;
    void* extra[] = {(void*)BUFFER_POINTER, arguments, (void*)BUFFER_SIZE, &size, nullptr};
    if ((code = prepared.launch(&configuration, launch.function, nullptr, extra))) break;
    count++;
  }
  if (python) PyEval_RestoreThread(python);
  // A call that has begun is not made again: it may have written states.
  TORCH_CHECK(!code || !count, "CUDA: launch ", count + 1, " of a call failed with error ", code);
  if (code) return false;
  for (int place : prepared.fields) results.push_back(place < 0 ? Tensor() : made[place]);
  return true;
}

// ------------------------------------------------------------------ keys

// What a call is known by: numbers, which results are wanted, and how each tensor lies.
using Key = c10::SmallVector<int64_t, 96>;

Key key_of(uint64_t wanted, c10::ArrayRef<double> numbers, const Operands& operands) {
  Key key;
  key.push_back((int64_t)wanted);
  for (double number : numbers) {
    int64_t bits;
    memcpy(&bits, &number, 8);
    key.push_back(bits);
  }
  for (const Tensor* operand : operands) {
    if (!operand) {
      key.push_back(0);
      continue;
    }
    c10::TensorImpl* tensor = operand->unsafeGetTensorImpl();
    key.push_back((int64_t)tensor->key_set().raw_repr());
    auto sizes = tensor->sizes(), strides = tensor->strides();
    auto dtype = (int64_t)c10::typeMetaToScalarType(tensor->dtype());
    auto alignment = (int64_t)((uintptr_t)operand->data_ptr() & 15);
    auto device = (int64_t)(uint8_t)tensor->device().index();
    key.push_back(dtype << 32 | device << 24 | alignment << 16 | (int64_t)sizes.size());
    key.append(sizes.begin(), sizes.end());
    key.append(strides.begin(), strides.end());
  }
  return key;
}

// Whether a tensor is nothing but strided memory on a device. All that it may be else is in its keys, which
// are part of the call's, so that it is enough to ask where a call is learnt.
bool is_plain(const Tensor& tensor) {
  static const DispatchKeySet allowed =
      DispatchKeySet({DispatchKey::Dense, DispatchKey::AutogradFunctionality, DispatchKey::ADInplaceOrView,
                      DispatchKey::AutocastCPU, DispatchKey::AutocastCUDA});
  DispatchKeySet others = tensor.key_set() - allowed;
  return (tensor.is_cpu() || tensor.is_cuda()) && (others.raw_repr() & ~c10::full_backend_mask) == 0;
}

// The calls of one direction.
struct Calls {
  struct Hash {
    size_t operator()(const Key& key) const {
      uint64_t hash = key.size();
      for (int64_t word : key) hash = (hash ^ (uint64_t)word) * 0x9E3779B97F4A7C15u, hash ^= hash >> 29;
      return hash;
    }
  };
  std::mutex guard;  // backwards look here without Python's lock
  std::unordered_map<Key, std::shared_ptr<const Prepared>, Hash> known;

  std::shared_ptr<const Prepared> find(const Key& key) {
    std::lock_guard<std::mutex> lock(guard);
    auto found = known.find(key);
    return found == known.end() ? nullptr : found->second;
  }
};

// ------------------------------------------------------------------ functions and nodes

// A norm as a function of tensors: its calls, and how its gradients are made.
struct Function {
  std::string name;
  size_t operand_count, least_operands;
  std::vector<bool> is_state, is_updated;
  std::vector<PyObject*> attrs;  // interned names
  std::vector<double> defaults;
  bool widened;  // by autocast
  uint64_t plain, recorded;          // the results to compute without and with a node
  std::vector<bool> differentiable;  // of each output: the first results
  std::shared_ptr<Calls> calls, backward;  // no backward: never recorded here
  std::vector<size_t> kept;  // places among operands, then results
  std::vector<std::pair<bool, size_t>> taken;  // by the backward: cotangents, or else of what was kept
  std::vector<int> gradients;  // for each operand its place in the results of the backward; -1: none
  PyObject* slow;  // (what was kept, numbers, cotangents, which are needed) -> gradients
  PyObject* together;  // a tuple of outputs -> what a call returns, or None where there is one
};

// Whether no transform, mode or guard is there that wants to see operators.
bool nobody_watches(bool widened) {
  c10::impl::LocalDispatchKeySet local = c10::impl::tls_local_dispatch_key_set();
  if (!(local.included_ - c10::default_included_set).empty()) return false;
  DispatchKeySet excluded = local.excluded_;
  if (c10::InferenceMode::is_enabled()) excluded = excluded - c10::autograd_dispatch_keyset;
  if (!(excluded - c10::default_excluded_set).empty()) return false;
  return !widened || excluded == c10::default_excluded_set;  // a key that is not excluded: autocast is on
}

struct Recorded final : Node {
  std::shared_ptr<const Function> function;
  c10::SmallVector<double, 4> numbers;
  std::vector<SavedVariable> saved;

  std::string name() const override { return function->name + "Backward"; }

  void release_variables() override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (SavedVariable& variable : saved) variable.reset_data();
  }

  variable_list apply(variable_list&& cotangents) override {
    std::lock_guard<std::mutex> lock(mutex_);
    const Function& norm = *function;
    std::vector<bool> needed = all_needed();
    uint64_t wanted = 0;
    for (size_t i = 0; i < norm.operand_count; i++)
      if (needed[i] && norm.gradients[i] >= 0) wanted |= uint64_t(1) << norm.gradients[i];
    bool any = false;
    for (auto [is_cotangent, place] : norm.taken) any |= is_cotangent && cotangents[place].defined();
    variable_list found(norm.operand_count);
    if (!any) return found;
    variable_list kept = unpacked();
    if (c10::GradMode::is_enabled() || !nobody_watches(false))
      return slowly(norm, numbers, kept, cotangents, needed);
    Operands operands;
    for (auto [is_cotangent, place] : norm.taken) {
      const Tensor& tensor = is_cotangent ? cotangents[place] : kept[place];
      operands.push_back(tensor.defined() ? &tensor : nullptr);
    }
    auto prepared = norm.backward->find(key_of(wanted, numbers, operands));
    Results made;
    if (!prepared || !run(*prepared, operands, made))
      return slowly(norm, numbers, kept, cotangents, needed);
    for (size_t i = 0; i < norm.operand_count; i++)
      if (needed[i] && norm.gradients[i] >= 0) found[i] = made[norm.gradients[i]];
    return found;
  }

  // What compiled autograd asks for: what this depends on, and a function of tensors that it traces.
  void compiled_args(compiled::CompiledNodeArgs& arguments) const override {
    arguments.collect(name());
    for (double number : numbers) arguments.collect(number);
    arguments.collect(saved, true);
  }

  variable_list apply_with_saved(const variable_list& cotangents,
                                 compiled::SwapSavedVariables& swapped) override {
    swapped.before(saved);
    compiled::PackedArgs packed;
    packed.pack(unpacked());
    packed.pack(all_needed());
    std::vector<c10::IValue> arguments = std::move(packed).vec();
    std::vector<at::TypePtr> schema;
    for (const c10::IValue& each : arguments)
      schema.push_back(each.isTensor() ? at::TensorType::get() : each.type());
    auto traced = [norm = function, numbers = numbers](const variable_list& given,
                                                       const std::vector<c10::IValue>& others) {
      compiled::PackedArgs packed(others);
      auto kept = packed.unpack<variable_list>();
      return slowly(*norm, numbers, kept, given, packed.unpack<std::vector<bool>>());
    };
    auto metadata = compiled::IValuePacker<std::vector<std::optional<InputMetadata>>>::pack(
        compiled::get_input_metadata(next_edges()));
    const auto& compiler = compiled::getPyCompilerInterface();
    PyObject* tracer = swapped.get_py_compiler();
    auto bound = compiler->bind_function(tracer, name(), traced, schema, /*is_custom_function=*/true,
                                         /*is_traceable=*/true);
    auto found = compiler->call_function(tracer, "apply_functional", bound, cotangents, arguments, metadata);
    swapped.after(saved);
    return found;
  }

  variable_list unpacked() {
    variable_list kept;
    NodePointer self = getptr();
    for (const SavedVariable& variable : saved) kept.push_back(variable.unpack(self));
    return kept;
  }

  std::vector<bool> all_needed() const {
    std::vector<bool> needed;
    for (size_t i = 0; i < function->operand_count; i++) needed.push_back(task_should_compute_output(i));
    return needed;
  }

  // By Python, which differentiates, refuses, and prepares what comes for the first time.
  static variable_list slowly(const Function& norm, c10::ArrayRef<double> numbers, const variable_list& kept,
                              const variable_list& cotangents, const std::vector<bool>& needed) {
    namespace py = pybind11;
    py::gil_scoped_acquire gil;
    auto told = [](const variable_list& tensors) {
      py::tuple made(tensors.size());
      for (size_t i = 0; i < tensors.size(); i++)
        PyTuple_SET_ITEM(made.ptr(), i, THPVariable_Wrap(tensors[i]));
      return made;
    };
    py::tuple values(numbers.size()), flags(needed.size());
    for (size_t i = 0; i < numbers.size(); i++)
      PyTuple_SET_ITEM(values.ptr(), i, PyFloat_FromDouble(numbers[i]));
    for (size_t i = 0; i < needed.size(); i++) PyTuple_SET_ITEM(flags.ptr(), i, PyBool_FromLong(needed[i]));
    py::tuple given = told(kept), arrived = told(cotangents);
    auto made = py::reinterpret_steal<py::object>(PyObject_CallFunctionObjArgs(
        norm.slow, given.ptr(), values.ptr(), arrived.ptr(), flags.ptr(), nullptr));
    if (!made) raise_set_error();
    variable_list found(needed.size());
    for (size_t i = 0; i < needed.size(); i++) {
      PyObject* gradient = PyTuple_GetItem(made.ptr(), i);
      if (!gradient) raise_set_error();
      if (gradient != Py_None) found[i] = THPVariable_Unpack(gradient);
    }
    return found;
  }
};

template <class Pointer>
Pointer owned(Recorded* node) {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<Node>>)
    return Pointer(node, torch::autograd::deleteNode);
  else
    return Pointer::unsafe_steal_from_new(node);
}

void record(const std::shared_ptr<Function>& function, c10::ArrayRef<double> numbers,
            const Operands& operands, Results& results) {
  auto* node = new Recorded;
  NodePointer owner = owned<NodePointer>(node);
  node->function = function;
  node->numbers.append(numbers.begin(), numbers.end());
  torch::autograd::edge_list edges;
  for (const Tensor* operand : operands)
    edges.push_back(operand ? torch::autograd::impl::gradient_edge(*operand) : Edge());
  node->set_next_edges(std::move(edges));
  for (size_t i = 0; i < function->differentiable.size(); i++) {
    if (results[i].defined() && function->differentiable[i])
      torch::autograd::set_history(results[i], owner);
    else
      node->add_input_metadata(Node::undefined_input());
  }
  for (size_t place : function->kept) {
    if (place < operands.size())
      node->saved.emplace_back(operands[place] ? *operands[place] : Tensor(), false);
    else {
      const Tensor& result = results[place - operands.size()];
      node->saved.emplace_back(result, result.defined() && result.grad_fn() == owner);
    }
  }
}

// ------------------------------------------------------------------ what Python sees

template <class T>
std::shared_ptr<T>& held(PyObject* capsule) {
  void* found = PyCapsule_GetPointer(capsule, nullptr);
  if (!found) throw python_error();
  return *static_cast<std::shared_ptr<T>*>(found);
}

template <class T>
PyObject* holding(std::shared_ptr<T> object) {
  return PyCapsule_New(new std::shared_ptr<T>(std::move(object)), nullptr, [](PyObject* capsule) {
    delete static_cast<std::shared_ptr<T>*>(PyCapsule_GetPointer(capsule, nullptr));
  });
}

// (*operands, **floats) -> what the function returns, or None where Python is to make the call.
PyObject* call(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  HANDLE_TH_ERRORS
  const std::shared_ptr<Function>& function = held<Function>(self);
  const Function& norm = *function;
  if ((size_t)count > norm.operand_count || (size_t)count < norm.least_operands) Py_RETURN_NONE;
  if (!nobody_watches(norm.widened)) Py_RETURN_NONE;
  c10::SmallVector<double, 4> numbers(norm.defaults.begin(), norm.defaults.end());
  for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names); i++) {
    auto attr = std::find(norm.attrs.begin(), norm.attrs.end(), PyTuple_GET_ITEM(names, i));
    if (attr == norm.attrs.end() || !PyFloat_CheckExact(given[count + i])) Py_RETURN_NONE;
    numbers[attr - norm.attrs.begin()] = PyFloat_AS_DOUBLE(given[count + i]);
  }
  Operands operands(norm.operand_count, nullptr);
  bool recorded = false;
  for (Py_ssize_t i = 0; i < count; i++) {
    if (given[i] == Py_None) continue;
    if (!THPVariable_CheckExact(given[i])) Py_RETURN_NONE;
    const Tensor& tensor = THPVariable_Unpack(given[i]);
    auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
    if (meta && meta->fw_grad_) Py_RETURN_NONE;  // forward mode
    if (meta && tensor.requires_grad()) {
      if (norm.is_state[i]) Py_RETURN_NONE;
      recorded = true;
    }
    operands[i] = &tensor;
  }
  recorded = recorded && c10::GradMode::is_enabled();
  if (recorded && !norm.backward) Py_RETURN_NONE;
  auto prepared = norm.calls->find(key_of(recorded ? norm.recorded : norm.plain, numbers, operands));
  if (!prepared) Py_RETURN_NONE;
  // Profilers know a node by the number that it gets next.
  int64_t number = recorded ? (int64_t)at::sequence_number::peek() : -1;
  RECORD_FUNCTION(norm.name, c10::ArrayRef<const c10::IValue>{}, number);
  Results results;
  if (!run(*prepared, operands, results)) Py_RETURN_NONE;
  for (size_t i = 0; i < operands.size(); i++)
    if (norm.is_updated[i] && operands[i]) operands[i]->unsafeGetTensorImpl()->bump_version();
  if (recorded) record(function, numbers, operands, results);
  if (norm.together == Py_None) return THPVariable_Wrap(results[0]);
  auto all = pybind11::reinterpret_steal<pybind11::object>(PyTuple_New((Py_ssize_t)norm.differentiable.size()));
  for (size_t i = 0; i < norm.differentiable.size(); i++)
    PyTuple_SET_ITEM(all.ptr(), i, THPVariable_Wrap(results[i]));
  return PyObject_CallOneArg(norm.together, all.ptr());
  END_HANDLE_TH_ERRORS
}

template <class T, class Read>
std::vector<T> list(PyObject* tuple, Read read) {
  std::vector<T> found;
  for (Py_ssize_t i = 0; i < PyTuple_Size(tuple); i++) found.push_back(read(PyTuple_GET_ITEM(tuple, i)));
  if (PyErr_Occurred()) throw python_error();
  return found;
}

std::vector<int64_t> integers(PyObject* tuple) { return list<int64_t>(tuple, PyLong_AsLongLong); }

Launch launch_of(PyObject* told, size_t addresses) {
  Launch launch{};
  const char* arguments;
  Py_ssize_t size;
  unsigned long long function;
  int early;
  PyObject* patches;
  unsigned *g = launch.configuration.grid, *b = launch.configuration.block;
  if (!PyArg_ParseTuple(told, "K(III)(III)Ipy#O", &function, &g[0], &g[1], &g[2], &b[0], &b[1], &b[2],
                        &launch.configuration.shared, &early, &arguments, &size, &patches))
    throw python_error();
  launch.function = (void*)(uintptr_t)function;
  launch.early = early;
  launch.arguments.assign(arguments, size);
  TORCH_CHECK_VALUE(launch.arguments.size() <= MOST_ARGUMENTS, "a launch has too many arguments");
  for (const auto& patch : list<std::vector<int64_t>>(patches, integers)) {
    bool sound = patch.size() == 2 && patch[0] >= 0 && (size_t)patch[0] + 8 <= launch.arguments.size() &&
                 patch[1] >= 0 && (size_t)patch[1] < addresses;
    TORCH_CHECK_VALUE(sound, "an address has no place");
    launch.patches.emplace_back(patch[0], patch[1]);
  }
  return launch;
}

PyObject* make_calls(PyObject*, PyObject*) { return holding(std::make_shared<Calls>()); }

// (calls, wanted, numbers, tensors) -> all results in order, or None where Python is to make the call.
PyObject* run_known(PyObject*, PyObject* const* given, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(count == 4 && PyTuple_Check(given[2]) && PyTuple_Check(given[3]),
                   "expected (calls, wanted, numbers, tensors)");
  Operands operands;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given[3]); i++) {
    PyObject* tensor = PyTuple_GET_ITEM(given[3], i);
    if (tensor != Py_None && !THPVariable_CheckExact(tensor)) Py_RETURN_NONE;
    operands.push_back(tensor == Py_None ? nullptr : &THPVariable_Unpack(tensor));
  }
  auto numbers = list<double>(given[2], PyFloat_AsDouble);
  auto prepared = held<Calls>(given[0])->find(key_of(PyLong_AsUnsignedLongLong(given[1]), numbers, operands));
  Results results;
  if (!prepared || !run(*prepared, operands, results)) Py_RETURN_NONE;
  PyObject* all = PyTuple_New((Py_ssize_t)results.size());
  for (size_t i = 0; i < results.size(); i++) PyTuple_SET_ITEM(all, i, THPVariable_Wrap(results[i]));
  return all;
  END_HANDLE_TH_ERRORS
}

// (calls): forget them all.
PyObject* forget(PyObject*, PyObject* calls) {
  HANDLE_TH_ERRORS
  decltype(Calls::known) known;  // goes when nobody waits
  Calls& all = *held<Calls>(calls);
  {
    std::lock_guard<std::mutex> lock(all.guard);
    known.swap(all.known);
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// (calls, wanted, numbers, tensors, cuLaunchKernelEx, device, made, fields, guards, launches, scratch, how many
// addresses that has, offsets, size): keep a prepared call under the key of these tensors.
PyObject* learn(PyObject*, PyObject* arguments) {
  HANDLE_TH_ERRORS
  static std::atomic<uint64_t> count{0};
  PyObject *calls, *numbers, *tensors, *made, *fields, *guards, *launches, *scratch, *offsets;
  unsigned long long wanted, launch;
  long long size;
  Py_ssize_t scratch_count;
  auto prepared = std::make_shared<Prepared>();
  prepared->scratch = nullptr;
  if (!PyArg_ParseTuple(arguments, "OKO!O!KiO!O!O!O!OnO!L", &calls, &wanted, &PyTuple_Type, &numbers,
                        &PyTuple_Type, &tensors, &launch, &prepared->device, &PyTuple_Type, &made,
                        &PyTuple_Type, &fields, &PyTuple_Type, &guards, &PyTuple_Type, &launches, &scratch,
                        &scratch_count, &PyTuple_Type, &offsets, &size))
    return nullptr;
  Operands operands;
  size_t addresses = (size_t)(PyTuple_GET_SIZE(made) + scratch_count);
  for (PyObject* each : list<PyObject*>(tensors, [](PyObject* tensor) { return tensor; })) {
    operands.push_back(each == Py_None ? nullptr : &THPVariable_Unpack(each));
    if (each == Py_None) continue;
    if (!THPVariable_CheckExact(each) || !is_plain(*operands.back())) Py_RETURN_NONE;
    addresses++;
  }
  prepared->launch = (LaunchKernel)(uintptr_t)launch;
  prepared->number = ++count;
  prepared->offsets = integers(offsets);
  prepared->size = size;
  prepared->made = list<Layout>(made, [](PyObject* told) {
    auto& dtype = *reinterpret_cast<THPDtype*>(PyTuple_GetItem(told, 2));
    return Layout{integers(PyTuple_GetItem(told, 0)), integers(PyTuple_GetItem(told, 1)), dtype.scalar_type};
  });
  prepared->fields = list<int>(fields, PyLong_AsLong);
  for (const auto& guard : list<std::vector<int64_t>>(guards, integers))
    prepared->guards.push_back({(size_t)guard[0], (size_t)guard[1], guard[2], guard[3], guard[4]});
  prepared->launches = list<Launch>(launches, [&](PyObject* told) { return launch_of(told, addresses); });
  if (scratch != Py_None) prepared->scratch = Py_NewRef(scratch);
  Key key = key_of(wanted, list<double>(numbers, PyFloat_AsDouble), operands);
  Calls& all = *held<Calls>(calls);
  std::lock_guard<std::mutex> lock(all.guard);
  all.known[key] = std::move(prepared);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyMethodDef call_method = {"call", (PyCFunction)(void (*)())call, METH_FASTCALL | METH_KEYWORDS, nullptr};

// (name, least operands, which are states, which are updated, attrs, defaults, widened, plain, recorded,
// differentiable, calls, backward or None, kept, taken, gradients, slow, together) -> its `call`.
PyObject* make_function(PyObject*, PyObject* arguments) {
  HANDLE_TH_ERRORS
  auto made = std::make_shared<Function>();
  const char* name;
  PyObject *states, *updated, *attrs, *defaults, *differentiable, *calls, *backward, *kept, *taken, *gradients;
  Py_ssize_t least;
  int widened;
  unsigned long long plain, recorded;
  if (!PyArg_ParseTuple(arguments, "snO!O!O!O!pKKO!OOO!O!O!OO", &name, &least, &PyTuple_Type, &states,
                        &PyTuple_Type, &updated, &PyTuple_Type, &attrs, &PyTuple_Type, &defaults, &widened,
                        &plain, &recorded, &PyTuple_Type, &differentiable, &calls, &backward,
                        &PyTuple_Type, &kept, &PyTuple_Type, &taken, &PyTuple_Type, &gradients, &made->slow,
                        &made->together))
    return nullptr;
  auto truth = [](PyObject* told) { return told == Py_True; };
  made->name = name;
  made->least_operands = least;
  made->is_state = list<bool>(states, truth);
  made->is_updated = list<bool>(updated, truth);
  made->operand_count = made->is_state.size();
  made->attrs = list<PyObject*>(attrs, [](PyObject* attr) {
    Py_INCREF(attr);
    PyUnicode_InternInPlace(&attr);
    return attr;
  });
  made->defaults = list<double>(defaults, PyFloat_AsDouble);
  made->widened = widened;
  made->plain = plain;
  made->recorded = recorded;
  made->differentiable = list<bool>(differentiable, truth);
  made->calls = held<Calls>(calls);
  if (backward != Py_None) made->backward = held<Calls>(backward);
  for (int64_t place : integers(kept)) made->kept.push_back(place);
  for (const auto& each : list<std::vector<int64_t>>(taken, integers))
    made->taken.emplace_back(each[0] != 0, each[1]);
  made->gradients = list<int>(gradients, PyLong_AsLong);
  Py_INCREF(made->slow);  // functions live as long as the process
  Py_INCREF(made->together);
  auto capsule = pybind11::reinterpret_steal<pybind11::object>(holding(std::move(made)));
  return PyCFunction_New(&call_method, capsule.ptr());
  END_HANDLE_TH_ERRORS
}

PyMethodDef methods[] = {
    {"calls", make_calls, METH_NOARGS, nullptr},
    {"forget", forget, METH_O, nullptr},
    {"run", (PyCFunction)(void (*)())run_known, METH_FASTCALL, nullptr},
    {"learn", learn, METH_VARARGS, nullptr},
    {"function", make_function, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "normgen_node", nullptr, -1, methods};

}  // namespace

PyMODINIT_FUNC PyInit_normgen_node() { return PyModule_Create(&definition); }
