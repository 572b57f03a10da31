// What Python sees: functions of tensors, and how they learn of calls.
//
// Whatever has no key here (other layouts, transforms, modes, kinds of tensor) is answered with None, after
// which Python makes the call. So nothing here decides what is allowed.
#define PY_SSIZE_T_CLEAN
#include "calls.h"
#include "node.h"
#include "operators.h"

namespace normgen {
namespace {

using Shared = std::shared_ptr<Function>;

// (*operands, **floats) -> what the function returns, or None where Python is to make the call.
PyObject* call(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  HANDLE_TH_ERRORS
  const Shared& function = *static_cast<Shared*>(PyCapsule_GetPointer(self, nullptr));
  const Function& norm = *function;
  if ((size_t)count > norm.is_state.size() || (size_t)count < norm.least_operands) Py_RETURN_NONE;
  if (!is_usual(norm.widened)) Py_RETURN_NONE;
  c10::SmallVector<double, 4> numbers(norm.defaults.begin(), norm.defaults.end());
  for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names); i++) {
    auto is_named = [&](const py::object& attr) { return attr.ptr() == PyTuple_GET_ITEM(names, i); };
    auto attr = std::find_if(norm.attrs.begin(), norm.attrs.end(), is_named);
    if (attr == norm.attrs.end() || !PyFloat_CheckExact(given[count + i])) Py_RETURN_NONE;
    numbers[attr - norm.attrs.begin()] = PyFloat_AS_DOUBLE(given[count + i]);
  }
  Operands operands(norm.is_state.size(), nullptr);
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
    if (norm.is_updated[i] && is_plain(tensor)) tensor.mutable_data_ptr();  // no longer that of a lazy clone
  }
  recorded = recorded && c10::GradMode::is_enabled();
  if (recorded && !norm.backward) Py_RETURN_NONE;
  auto prepared = norm.calls->find({recorded ? norm.recorded : norm.plain, {}}, numbers, operands);
  if (!prepared) Py_RETURN_NONE;
  // Profilers know a node by the number that it gets next.
  int64_t number = recorded ? (int64_t)at::sequence_number::peek() : -1;
  RECORD_FUNCTION(norm.name, c10::ArrayRef<const c10::IValue>{}, number);
  Results results;
  if (!run(*prepared, operands, numbers, results)) Py_RETURN_NONE;
  for (size_t i = 0; i < operands.size(); i++)
    if (norm.is_updated[i] && operands[i]) operands[i]->unsafeGetTensorImpl()->bump_version();
  if (recorded) record(function, numbers, operands, results);
  if (norm.together.is_none()) return THPVariable_Wrap(results[0]);
  auto count = (Py_ssize_t)norm.differentiable.size();
  auto all = py::reinterpret_steal<py::object>(PyTuple_New(count));
  for (size_t i = 0; i < norm.differentiable.size(); i++)
    PyTuple_SET_ITEM(all.ptr(), i, THPVariable_Wrap(results[i]));
  return PyObject_CallOneArg(norm.together.ptr(), all.ptr());
  END_HANDLE_TH_ERRORS
}

PyMethodDef call_method = {"call", (PyCFunction)(void (*)())call, METH_FASTCALL | METH_KEYWORDS, nullptr};

// What calls a function. The function itself lives as long as the process: nodes of any thread hold it.
py::object callable(Shared function) {
  py::capsule self(new Shared(std::move(function)));
  return py::reinterpret_steal<py::object>(PyCFunction_New(&call_method, self.ptr()));
}

Operands operands_of(PyObject* tensors) {
  Operands operands;
  for (Py_ssize_t i = 0; i < PyTuple_Size(tensors); i++) {
    PyObject* tensor = PyTuple_GET_ITEM(tensors, i);
    TORCH_CHECK_TYPE(tensor == Py_None || THPVariable_Check(tensor), "operands are tensors, or None");
    operands.push_back(tensor == Py_None ? nullptr : &THPVariable_Unpack(tensor));
  }
  return operands;
}

// From the results as bits, then a place and an element type for each that is told.
Wanted wanted_of(const py::tuple& told) {
  Wanted wanted{told[0].cast<uint64_t>(), {}};
  for (size_t i = 1; i < told.size(); i++)
    wanted.types.push_back(told[i].cast<std::pair<int, at::ScalarType>>());
  return wanted;
}

c10::SmallVector<double, 4> numbers_of(const py::tuple& given) {
  c10::SmallVector<double, 4> numbers;
  for (py::handle number : given) numbers.push_back(PyFloat_AsDouble(number.ptr()));
  if (PyErr_Occurred()) raise_set_error();
  return numbers;
}

py::object told(Results& results) {
  py::tuple all(results.size());
  for (size_t i = 0; i < results.size(); i++) PyTuple_SET_ITEM(all.ptr(), i, THPVariable_Wrap(results[i]));
  return all;
}

// All results of a call in order, or None where Python is to make it. Who calls sees to it that tensors lie as
// those that it was prepared for.
py::object run_prepared(const Prepared& prepared, const py::tuple& given, const py::tuple& tensors) {
  Operands operands = operands_of(tensors.ptr());
  size_t there = std::count_if(operands.begin(), operands.end(), [](auto* operand) { return operand; });
  TORCH_CHECK_VALUE(there == prepared.operands, "other operands than it was prepared for");
  prepared.check(given.size());
  Results results;
  return run(prepared, operands, numbers_of(given), results) ? told(results) : py::none();
}

// All results in order, or None where Python is to make the call.
py::object run_known(Calls& calls, const py::tuple& wanted, const py::tuple& given, const py::tuple& tensors) {
  c10::SmallVector<double, 4> numbers;
  for (py::handle number : given) numbers.push_back(PyFloat_AsDouble(number.ptr()));
  if (PyErr_Occurred() || numbers.size() != calls.bounds.size()) {
    PyErr_Clear();
    return py::none();
  }
  Operands operands = operands_of(tensors.ptr());
  auto prepared = calls.find(wanted_of(wanted), numbers, operands);
  Results results;
  return prepared && run(*prepared, operands, numbers, results) ? told(results) : py::none();
}

// Keep what `prepare` makes, if anything, under the key of these tensors, unless something is there.
void learn(Calls& calls, const py::tuple& wanted, const py::tuple& tensors, const py::function& prepare) {
  Key key = key_of(wanted_of(wanted), operands_of(tensors.ptr()));
  if (key.empty() || calls.find(key)) return;
  auto prepared = prepare().cast<std::shared_ptr<Prepared>>();
  if (!prepared) return;
  prepared->check(calls.bounds.size());
  calls.keep(key, std::move(prepared));
}

}  // namespace

PYBIND11_MODULE(normgen_node, module) {
#ifdef NORMGEN_CUDA
  module.attr("has_cuda") = true;
#else
  module.attr("has_cuda") = false;
#endif
  py::class_<Layout>(module, "Layout")
      .def(py::init<std::vector<int64_t>, std::vector<int64_t>, at::ScalarType, int, uint64_t>());
  py::class_<Guard>(module, "Guard").def(py::init<size_t, size_t, int64_t, int64_t, int64_t>());
  py::class_<Place>(module, "Place").def(py::init<int64_t, int64_t>());
  py::class_<Launch>(module, "Launch")
      .def(py::init<>())
      .def_readwrite("function", &Launch::function)
      .def_readwrite("grid", &Launch::grid)
      .def_readwrite("block", &Launch::block)
      .def_readwrite("shared", &Launch::shared)
      .def_readwrite("early", &Launch::early)
      .def_readwrite("clears", &Launch::clears)
      .def_readwrite("arguments", &Launch::arguments)
      .def_readwrite("patches", &Launch::patches);
  py::class_<Prepared, std::shared_ptr<Prepared>>(module, "Prepared")
      .def(py::init<>())
      .def_readwrite("launch", &Prepared::launch)
      .def_readwrite("capturing", &Prepared::capturing)
      .def_readwrite("device", &Prepared::device)
      .def_readwrite("operands", &Prepared::operands)
      .def_readwrite("numbers", &Prepared::numbers)
      .def_readwrite("made", &Prepared::made)
      .def_readwrite("fields", &Prepared::fields)
      .def_readwrite("guards", &Prepared::guards)
      .def_readwrite("launches", &Prepared::launches)
      .def_readwrite("scratch", &Prepared::scratch)
      .def_readwrite("size", &Prepared::size)
      .def_readwrite("zeros", &Prepared::zeros)
      .def_readwrite("clear", &Prepared::clear)
      .def_readwrite("owner", &Prepared::owner)
      .def("run", run_prepared);
  py::class_<Calls, std::shared_ptr<Calls>>(module, "Calls")
      .def(py::init<size_t, std::vector<std::pair<double, double>>>())
      .def("run", run_known)
      .def("learn", learn)
      .def("forget", &Calls::forget);
  py::class_<Function, Shared>(module, "Function")
      .def(py::init<>())
      .def_readwrite("name", &Function::name)
      .def_readwrite("least_operands", &Function::least_operands)
      .def_readwrite("is_state", &Function::is_state)
      .def_readwrite("is_updated", &Function::is_updated)
      .def_readwrite("attrs", &Function::attrs)
      .def_readwrite("defaults", &Function::defaults)
      .def_readwrite("widened", &Function::widened)
      .def_readwrite("plain", &Function::plain)
      .def_readwrite("recorded", &Function::recorded)
      .def_readwrite("differentiable", &Function::differentiable)
      .def_readwrite("calls", &Function::calls)
      .def_readwrite("backward", &Function::backward)
      .def_readwrite("kept", &Function::kept)
      .def_readwrite("typed", &Function::typed)
      .def_readwrite("taken", &Function::taken)
      .def_readwrite("gradients", &Function::gradients)
      .def_readwrite("slow", &Function::slow)
      .def_readwrite("together", &Function::together)
      .def("callable", callable);
  py::class_<Operator>(module, "Operator")
      .def(py::init<>())
      .def_readwrite("operands", &Operator::operands)
      .def_readwrite("read", &Operator::read)
      .def_readwrite("numbers", &Operator::numbers)
      .def_readwrite("states", &Operator::states)
      .def_readwrite("typed", &Operator::typed)
      .def_readwrite("calls", &Operator::calls);
  module.def("register_known_calls", register_known_calls);
}

}  // namespace normgen
