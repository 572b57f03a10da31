// What Python sees: functions of tensors, and how they learn of calls.
//
// Whatever has no key here (other layouts, transforms, modes, kinds of tensor) is answered with None, after
// which Python makes the call. So nothing here decides what is allowed.
#define PY_SSIZE_T_CLEAN
#include <torch/csrc/Dtype.h>

#include <atomic>

#include "calls.h"
#include "node.h"

namespace normgen {
namespace {

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
  if (!is_usual(norm.widened)) Py_RETURN_NONE;
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
  auto prepared = norm.calls->find(key_of({recorded ? norm.recorded : norm.plain, {}}, numbers, operands));
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
  auto count = (Py_ssize_t)norm.differentiable.size();
  auto all = pybind11::reinterpret_steal<pybind11::object>(PyTuple_New(count));
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

// From (bits, (place, element type), ...).
Wanted wanted_of(PyObject* told) {
  if (!PyTuple_Check(told) || !PyTuple_GET_SIZE(told)) throw pybind11::type_error("expected what is wanted");
  Wanted wanted{PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(told, 0)), {}};
  for (Py_ssize_t i = 1; i < PyTuple_GET_SIZE(told); i++) {
    int place;
    PyObject* dtype;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(told, i), "iO", &place, &dtype)) throw python_error();
    wanted.types.emplace_back(place, reinterpret_cast<THPDtype*>(dtype)->scalar_type);
  }
  if (PyErr_Occurred()) throw python_error();
  return wanted;
}

Launch launch_of(PyObject* told, size_t addresses) {
  Launch launch{};
  const char* arguments;
  Py_ssize_t size;
  unsigned long long function;
  int early, clears;
  PyObject* patches;
  unsigned *g = launch.configuration.grid, *b = launch.configuration.block;
  if (!PyArg_ParseTuple(told, "K(III)(III)Ippy#O", &function, &g[0], &g[1], &g[2], &b[0], &b[1], &b[2],
                        &launch.configuration.shared, &early, &clears, &arguments, &size, &patches))
    throw python_error();
  launch.function = (void*)(uintptr_t)function;
  launch.early = early;
  launch.clears = clears;
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
  auto prepared = held<Calls>(given[0])->find(key_of(wanted_of(given[1]), numbers, operands));
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

// (calls, wanted, numbers, tensors, cuLaunchKernelEx, cuStreamIsCapturing, device, made, fields, guards,
// launches, scratch, size, zeros): keep a prepared call under the key of these tensors. What was built
// without CUDA knows no calls on a GPU.
PyObject* learn(PyObject*, PyObject* arguments) {
  HANDLE_TH_ERRORS
  PyObject *calls, *wanted, *numbers, *tensors, *made, *fields, *guards, *launches, *scratch, *zeros;
  unsigned long long launch, capturing;
  long long size;
  auto prepared = std::make_shared<Prepared>();
  if (!PyArg_ParseTuple(arguments, "OOO!O!KKiO!O!O!O!O!LO", &calls, &wanted, &PyTuple_Type, &numbers,
                        &PyTuple_Type, &tensors, &launch, &capturing, &prepared->device, &PyTuple_Type, &made,
                        &PyTuple_Type, &fields, &PyTuple_Type, &guards, &PyTuple_Type, &launches,
                        &PyTuple_Type, &scratch, &size, &zeros))
    return nullptr;
#ifndef NORMGEN_CUDA
  if (prepared->device >= 0) Py_RETURN_NONE;
#endif
  Operands operands;
  size_t addresses = (size_t)(PyTuple_GET_SIZE(made) + PyTuple_GET_SIZE(scratch));
  for (PyObject* each : list<PyObject*>(tensors, [](PyObject* tensor) { return tensor; })) {
    operands.push_back(each == Py_None ? nullptr : &THPVariable_Unpack(each));
    if (each == Py_None) continue;
    if (!THPVariable_CheckExact(each)) Py_RETURN_NONE;
    addresses++;
  }
  prepared->launch = (LaunchKernel)(uintptr_t)launch;
  prepared->capturing = (IsCapturing)(uintptr_t)capturing;
  for (const auto& place : list<std::vector<int64_t>>(scratch, integers))
    prepared->scratch.push_back({place[0], place[1]});
  prepared->size = size;
  prepared->made = list<Layout>(made, [](PyObject* told) {
    auto& dtype = *reinterpret_cast<THPDtype*>(PyTuple_GetItem(told, 2));
    return Layout{integers(PyTuple_GetItem(told, 0)), integers(PyTuple_GetItem(told, 1)), dtype.scalar_type};
  });
  prepared->fields = list<int>(fields, PyLong_AsLong);
  for (const auto& guard : list<std::vector<int64_t>>(guards, integers))
    prepared->guards.push_back({(size_t)guard[0], (size_t)guard[1], guard[2], guard[3], guard[4]});
  prepared->launches = list<Launch>(launches, [&](PyObject* told) { return launch_of(told, addresses); });
  if (zeros != Py_None) prepared->zeros = Py_NewRef(zeros);
  Key key = key_of(wanted_of(wanted), list<double>(numbers, PyFloat_AsDouble), operands);
  if (key.empty()) Py_RETURN_NONE;
  Calls& all = *held<Calls>(calls);
  std::lock_guard<std::mutex> lock(all.guard);
  all.known[key] = std::move(prepared);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyMethodDef call_method = {"call", (PyCFunction)(void (*)())call, METH_FASTCALL | METH_KEYWORDS, nullptr};

// (name, least operands, which are states, which are updated, attrs, defaults, widened, plain, recorded,
// differentiable, calls, backward or None, kept, typed, taken, gradients, slow, together) -> its `call`.
PyObject* make_function(PyObject*, PyObject* arguments) {
  HANDLE_TH_ERRORS
  auto made = std::make_shared<Function>();
  const char* name;
  PyObject *states, *updated, *attrs, *defaults, *differentiable, *calls, *backward;
  PyObject *kept, *typed, *taken, *gradients;
  Py_ssize_t least;
  int widened;
  unsigned long long plain, recorded;
  if (!PyArg_ParseTuple(arguments, "snO!O!O!O!pKKO!OOO!O!O!O!OO", &name, &least, &PyTuple_Type, &states,
                        &PyTuple_Type, &updated, &PyTuple_Type, &attrs, &PyTuple_Type, &defaults, &widened,
                        &plain, &recorded, &PyTuple_Type, &differentiable, &calls, &backward,
                        &PyTuple_Type, &kept, &PyTuple_Type, &typed, &PyTuple_Type, &taken, &PyTuple_Type,
                        &gradients, &made->slow, &made->together))
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
  for (int64_t place : integers(typed)) made->typed.push_back(place);
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
}  // namespace normgen

PyMODINIT_FUNC PyInit_normgen_node() { return PyModule_Create(&normgen::definition); }
