// A node of autograd, whose backward is a known call too.
#pragma once

#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

#include "calls.h"

namespace torch::autograd {
void deleteNode(Node*);  // of the releases whose nodes have shared pointers
}

namespace normgen {

using torch::autograd::Edge;
using torch::autograd::InputMetadata;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
namespace compiled = torch::dynamo::autograd;
using NodePointer = decltype(Edge::function);  // a shared_ptr, or in newer releases an intrusive_ptr

// A norm as a function of tensors: its calls, and how its gradients are made.
struct Function {
  std::string name;
  size_t least_operands;
  std::vector<bool> is_state, is_updated;
  std::vector<py::object> attrs;  // interned names
  std::vector<double> defaults;
  bool widened;  // by autocast
  uint64_t plain, recorded;          // the results to compute without and with a node
  std::vector<bool> differentiable;  // of each output: the first results
  std::shared_ptr<Calls> calls, backward;  // no backward: never recorded here
  std::vector<size_t> kept;  // places among operands, then results
  std::vector<size_t> typed;  // operands of which only the element type is kept, for their gradients
  std::vector<std::pair<bool, size_t>> taken;  // by the backward: cotangents, or else of what was kept
  std::vector<int> gradients;  // for each operand its place in the results of the backward; -1: none
  py::object slow;  // (what was kept, numbers, cotangents, which are needed, types) -> gradients
  py::object together;  // a tuple of outputs -> what a call returns, or None where there is one
};

// Whether a transform or a mode is there that wants to see operators.
inline bool somebody_watches() {
  DispatchKeySet included = c10::impl::tls_local_dispatch_key_set().included_;
  return !(included - c10::default_included_set).empty();
}

// Whether a call may be made and recorded here: nobody watches, and no guard turns recording off.
inline bool is_usual(bool widened) {
  if (somebody_watches()) return false;
  DispatchKeySet excluded = c10::impl::tls_local_dispatch_key_set().excluded_;
  if (c10::InferenceMode::is_enabled()) excluded = excluded - c10::autograd_dispatch_keyset;
  if (!(excluded - c10::default_excluded_set).empty()) return false;
  return !widened || excluded == c10::default_excluded_set;  // a key that is not excluded: autocast is on
}

struct Recorded final : Node {
  std::shared_ptr<const Function> function;
  c10::SmallVector<double, 4> numbers;
  std::vector<at::ScalarType> types;  // of the operands that are `typed`; of those left out, undefined
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
    Wanted wanted{};
    for (size_t i = 0; i < norm.is_state.size(); i++)
      if (needed[i] && norm.gradients[i] >= 0) wanted.results |= uint64_t(1) << norm.gradients[i];
    for (size_t i = 0; i < types.size(); i++)
      if (needed[norm.typed[i]]) wanted.types.emplace_back(norm.gradients[norm.typed[i]], types[i]);
    bool any = false;
    for (auto [is_cotangent, place] : norm.taken) any |= is_cotangent && cotangents[place].defined();
    variable_list found(norm.is_state.size());
    if (!any) return found;
    variable_list kept = unpacked();
    // What is turned off does not matter, and engines turn off names: nothing is recorded any more.
    if (c10::GradMode::is_enabled() || somebody_watches())
      return slowly(norm, numbers, types, kept, cotangents, needed);
    Operands operands;
    for (auto [is_cotangent, place] : norm.taken) {
      const Tensor& tensor = is_cotangent ? cotangents[place] : kept[place];
      operands.push_back(tensor.defined() ? &tensor : nullptr);
    }
    auto prepared = norm.backward->find(wanted, numbers, operands);
    Results made;
    if (!prepared || !run(*prepared, operands, numbers, made))
      return slowly(norm, numbers, types, kept, cotangents, needed);
    for (size_t i = 0; i < norm.is_state.size(); i++)
      if (needed[i] && norm.gradients[i] >= 0) found[i] = made[norm.gradients[i]];
    return found;
  }

  // What compiled autograd asks for: what this depends on, and a function of tensors that it traces.
  void compiled_args(compiled::CompiledNodeArgs& arguments) const override {
    arguments.collect(name());
    for (double number : numbers) arguments.collect(number);
    for (at::ScalarType type : types) arguments.collect(type);
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
    auto traced = [norm = function, numbers = numbers, types = types](
                      const variable_list& given, const std::vector<c10::IValue>& others) {
      compiled::PackedArgs packed(others);
      auto kept = packed.unpack<variable_list>();
      return slowly(*norm, numbers, types, kept, given, packed.unpack<std::vector<bool>>());
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
    for (size_t i = 0; i < function->is_state.size(); i++) needed.push_back(task_should_compute_output(i));
    return needed;
  }

  // By Python, which differentiates, refuses, and prepares what comes for the first time.
  static variable_list slowly(const Function& norm, c10::ArrayRef<double> numbers,
                              c10::ArrayRef<at::ScalarType> types, const variable_list& kept,
                              const variable_list& cotangents, const std::vector<bool>& needed) {
    py::gil_scoped_acquire gil;
    auto told = [](const variable_list& tensors) {
      py::tuple made(tensors.size());
      for (size_t i = 0; i < tensors.size(); i++)
        PyTuple_SET_ITEM(made.ptr(), i, THPVariable_Wrap(tensors[i]));
      return made;
    };
    py::tuple values(numbers.size()), flags(needed.size()), dtypes(types.size());
    for (size_t i = 0; i < types.size(); i++)
      PyTuple_SET_ITEM(dtypes.ptr(), i,
                       Py_NewRef(types[i] == at::ScalarType::Undefined ? Py_None : (PyObject*)torch::getTHPDtype(types[i])));
    for (size_t i = 0; i < numbers.size(); i++)
      PyTuple_SET_ITEM(values.ptr(), i, PyFloat_FromDouble(numbers[i]));
    for (size_t i = 0; i < needed.size(); i++) PyTuple_SET_ITEM(flags.ptr(), i, PyBool_FromLong(needed[i]));
    py::tuple given = told(kept), arrived = told(cotangents);
    auto made = py::reinterpret_steal<py::object>(PyObject_CallFunctionObjArgs(
        norm.slow.ptr(), given.ptr(), values.ptr(), arrived.ptr(), flags.ptr(), dtypes.ptr(), nullptr));
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

inline void record(const std::shared_ptr<Function>& function, c10::ArrayRef<double> numbers,
                   const Operands& operands, Results& results) {
  auto* node = new Recorded;
  NodePointer owner = owned<NodePointer>(node);
  node->function = function;
  node->numbers.append(numbers.begin(), numbers.end());
  for (size_t place : function->typed)
    node->types.push_back(operands[place] ? operands[place]->scalar_type() : at::ScalarType::Undefined);
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

}  // namespace normgen
