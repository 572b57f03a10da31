// Operators of PyTorch, `torch.ops.normgen.*`: known calls of theirs without Python, as compiled graphs make them.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "calls.h"
#include "node.h"

namespace normgen {

// A step as an operator takes it: operands, numbers, which results are wanted, the element types of some.
struct Operator {
  size_t operands, read, numbers;  // `read`: so many of the operands are read by kernels, the first ones
  std::vector<size_t> states;      // operands whose new values are results, behind the others
  std::vector<int> typed;          // the results whose element types it is told, where no operand tells them
  std::shared_ptr<Calls> calls;
};

// The operator at one level of dispatch: what is known runs here, all else is done in Python.
struct KnownCallsKernel final : c10::OperatorKernel {
  std::shared_ptr<const Operator> step;
  bool records;  // whether this is the level of autograd
  PyObject* slow;  // (dispatch keys, if it records, then what the operator takes) -> its results; never released

  KnownCallsKernel(std::shared_ptr<const Operator> step, bool records, const py::object& slow)
      : step(std::move(step)), records(records), slow(Py_NewRef(slow.ptr())) {}

  void operator()(const c10::OperatorHandle& op, DispatchKeySet keys, torch::jit::Stack* stack) {
    size_t count = op.schema().arguments().size();
    Results results;
    if (!known(torch::jit::last(*stack, count), results)) return slowly(op, keys, stack, count);
    torch::jit::drop(*stack, count);
    for (size_t i = 0; i < results.size(); i++) put(op, stack, i, std::move(results[i]));
  }

 private:
  // Run a call that is known, and of which nothing is recorded. False where Python is to make it.
  bool known(c10::ArrayRef<c10::IValue> given, Results& results) const {
    if (somebody_watches()) return false;
    Operands operands;
    for (const c10::IValue& value : given.slice(0, step->operands)) {
      const Tensor* operand = value.isTensor() && value.toTensor().defined() ? &value.toTensor() : nullptr;
      if (operand && (!is_plain(*operand) || (records && is_recorded(*operand)))) return false;
      operands.push_back(operand);
    }
    at::AutoDispatchBelowADInplaceOrView below;
    Results states;  // which kernels write, in place of what is given
    for (size_t place : step->states) states.push_back(operands[place] ? operands[place]->clone() : Tensor());
    for (size_t i = 0; i < states.size(); i++)
      if (states[i].defined()) operands[step->states[i]] = &states[i];
    operands.resize(step->read);
    c10::SmallVector<double, 4> numbers;
    for (const c10::IValue& value : given.slice(step->operands, step->numbers)) numbers.push_back(value.toDouble());
    Wanted wanted = wanted_of(given.slice(step->operands + step->numbers));
    auto prepared = step->calls->find(wanted, numbers, operands);
    if (!prepared || !run(*prepared, operands, numbers, results)) return false;
    for (Tensor& state : states) results.push_back(std::move(state));
    return true;
  }

  // Of a mask, then an element type, or none, for each of those that it is told.
  Wanted wanted_of(c10::ArrayRef<c10::IValue> given) const {
    Wanted wanted{};
    auto mask = given[0].toBoolList();
    for (size_t i = 0; i < mask.size(); i++) wanted.results |= uint64_t(mask.get(i)) << i;
    for (size_t i = 0; i < step->typed.size(); i++)
      if (!given[i + 1].isNone()) wanted.types.emplace_back(step->typed[i], given[i + 1].toScalarType());
    return wanted;
  }

  static bool is_recorded(const Tensor& tensor) {
    auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
    return meta && (meta->fw_grad_ || (tensor.requires_grad() && c10::GradMode::is_enabled()));
  }

  void slowly(const c10::OperatorHandle& op, DispatchKeySet keys, torch::jit::Stack* stack, size_t count) const {
    std::vector<c10::IValue> arguments = torch::jit::pop(*stack, count);
    py::gil_scoped_acquire gil;
    py::list given;
    if (records) given.append(keys.raw_repr());
    for (size_t i = 0; i < count; i++) given.append(told(arguments[i], i > step->operands + step->numbers));
    auto made = py::reinterpret_steal<py::object>(PyObject_CallObject(slow, py::tuple(given).ptr()));
    if (!made) raise_set_error();
    bool several = PyTuple_Check(made.ptr());
    for (size_t i = 0; i < op.schema().returns().size(); i++) {
      PyObject* each = several ? PyTuple_GetItem(made.ptr(), i) : made.ptr();
      if (!each) raise_set_error();
      put(op, stack, i, each == Py_None ? Tensor() : THPVariable_Unpack(each));
    }
  }

  static py::object told(const c10::IValue& value, bool is_type) {
    if (value.isNone() || (value.isTensor() && !value.toTensor().defined())) return py::none();
    if (value.isTensor()) return py::reinterpret_steal<py::object>(THPVariable_Wrap(value.toTensor()));
    if (is_type) return py::reinterpret_borrow<py::object>((PyObject*)torch::getTHPDtype(value.toScalarType()));
    if (value.isDouble()) return py::float_(value.toDouble());
    py::list flags;
    for (bool flag : value.toBoolList()) flags.append(flag);
    return flags;
  }

  // A result; one that may be None and is not there is that.
  static void put(const c10::OperatorHandle& op, torch::jit::Stack* stack, size_t place, Tensor result) {
    bool optional = op.schema().returns()[place].type()->kind() == c10::TypeKind::OptionalType;
    if (result.defined() || !optional)
      stack->emplace_back(std::move(result));
    else
      stack->emplace_back();
  }
};

// Let an operator's known calls run here. `record` is None where another level of autograd is there. For
// operators that nobody can call yet: the dispatcher's table has no lock for those that read it.
inline void register_known_calls(const std::string& name, const Operator& step, const py::object& compute,
                                 const py::object& record) {
  // What is registered lives as long as the process.
  static auto& registered = *new std::vector<c10::RegistrationHandleRAII>();
  auto shared = std::make_shared<const Operator>(step);
  auto add = [&](DispatchKey key, bool records, const py::object& slow) {
    auto kernel = c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<KnownCallsKernel>(shared, records, slow));
    registered.push_back(c10::Dispatcher::singleton().registerImpl(
        {name, ""}, key, std::move(kernel), std::nullopt, nullptr, "registered by normgen"));
  };
  for (DispatchKey key : {DispatchKey::CPU, DispatchKey::CUDA}) add(key, false, compute);
  if (record.is_none()) return;
  for (DispatchKey key : {DispatchKey::AutogradCPU, DispatchKey::AutogradCUDA}) add(key, true, record);
}

}  // namespace normgen
