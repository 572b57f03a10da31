"""From a syntax tree and attr values to a `Definition`, or to every fault of the spec.

Statements are checked in order. A name whose definition has a fault gets a poisoned value, which causes no
further messages, so one mistake produces one message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from normgen.diagnostics import Diagnostic, Label, Source, Span, SpecError
from normgen.dsl import ast
from normgen.dsl.attrs import check_attr, unknown_attrs
from normgen.dsl.evaluate import Evaluator
from normgen.dsl.functions import prelude
from normgen.dsl.gradients import Request, check_clashes, check_gradient
from normgen.dsl.limits import DEEPEST
from normgen.dsl.names import (
    Entity,
    Names,
    Scope,
    check_function,
    check_names,
    defined_twice,
    reserved,
    suggestion,
)
from normgen.dsl.tensors import (
    DECLARING_ROLES,
    axes_fault,
    check_dimensions,
    check_dtype,
    check_extents,
    element_type,
)
from normgen.dsl.values import POISON, Environment, Value, number
from normgen.ir import expr as ir
from normgen.ir.program import Attr, Axis, Binding, Definition, Program, Result, Tensor, Update


def check(spec: ast.Spec, attrs: Mapping[str, object], source: Source) -> Definition:
    """The definition of a spec with these attr values. Raises `SpecError` with all faults."""
    try:
        checker = _Checker(spec, attrs)
        checker.run()
        request, faults = checker.gradient()
        errors = [*checker.errors, *faults]
        if errors:
            raise SpecError(_in_order(errors), source)
        program, opened = checker.program(), None
        if inner := {tensor.name for tensor in request.lets if tensor.name in request.wrt}:
            again = _Checker(spec, attrs, frozenset(inner))
            again.run()
            opened = again.program()
    except RecursionError:
        label = Label(spec.name.span)
        message = f"the spec nests more than {DEEPEST} levels, or its values form too long a chain"
        help = "split it into several norms: an output of one can be an input of the next"
        raise SpecError([Diagnostic("nesting", message, (label,), (help,))], source) from None
    warnings = tuple(_in_order(checker.warnings()))
    moved = tuple(update.state for update in program.updates)
    return Definition(program, request.of, request.wrt, source, warnings, opened, moved)


def _in_order(diagnostics: list[Diagnostic]) -> list[Diagnostic]:
    """By place, each once (a function may be expanded many times)."""
    return sorted(dict.fromkeys(diagnostics), key=lambda d: d.labels[0].span.start if d.labels else 0)


_MISSING = {"input": "`input x[..., D]`", "output": "`output y[..., D] = x`"}


@dataclass
class _Checker:
    """The statements of one spec that are checked so far.

    `opened` names lets that are operands: they are not expanded where they are used.
    """

    spec: ast.Spec
    given: Mapping[str, object]
    opened: frozenset[str] = frozenset()
    errors: list[Diagnostic] = field(default_factory=list)
    attrs: list[Attr] = field(default_factory=list)
    attr_heads: dict[str, Span] = field(default_factory=dict)
    attr_constants: dict[str, Value] = field(default_factory=dict)
    fixed: dict[str, int | None] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    lets: dict[str, Tensor | None] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    bindings: list[Binding] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    updates: dict[str, Update | None] = field(default_factory=dict)
    gradients: list[ast.Gradient] = field(default_factory=list)
    unsure: set[str] = field(default_factory=set)  # tensors whose axes are at fault

    def __post_init__(self) -> None:
        self.scope = Scope(functions=dict(prelude()))
        self.later = {
            s.name.text: s.name.span
            for s in self.spec.statements
            if isinstance(s, (ast.Attr, ast.Tensor, ast.Let))
        }
        self.has_input = any(isinstance(s, ast.Tensor) and s.role == "input" for s in self.spec.statements)
        self.evaluator = Evaluator(self.scope, self.errors.append, self._element_type)

    def run(self) -> None:
        if fault := reserved(self.spec.name):
            self.errors.append(fault)
        for statement in self.spec.statements:
            match statement:
                case ast.Attr():
                    self._attr(statement)
                case ast.Axis():
                    self._axis(statement)
                case ast.Tensor():
                    self._tensor(statement)
                case ast.Let():
                    self._let(statement)
                case ast.Update():
                    self._update(statement)
                case ast.Gradient():
                    self.gradients.append(statement)
                case ast.Function():
                    self._function(statement)
        self.errors += unknown_attrs(self.given, self.attr_heads, self.spec.name)
        heads = {name: entity.head for name, entity in self.scope.values.items()}
        declared = [*self.tensors.values(), *(t for t in self.lets.values() if t is not None)]
        declared = [tensor for tensor in declared if tensor.name not in self.unsure]
        self.errors += check_extents(declared, heads, self.fixed)
        roles = [tensor.role for tensor in self.tensors.values()]
        for role in ("input", "output"):
            if role not in roles:
                label = Label(self.spec.name.span)
                message, help = f"`{self.spec.name.text}` has no {role}", f"add for example {_MISSING[role]}"
                self.errors.append(Diagnostic(role, message, (label,), (help,)))

    # Statements.

    def _attr(self, node: ast.Attr) -> None:
        checked = check_attr(node, self.given, self.attr_constants, self.evaluator)
        self.attr_heads.setdefault(node.name.text, node.name.span)
        if self._define(node.name, f"{checked.attr.kind} attr", node.name.span, checked.value):
            self.attrs.append(checked.attr)
            self.attr_constants[node.name.text] = checked.constant

    def _axis(self, node: ast.Axis) -> None:
        name = node.name.text
        if name in self.fixed:
            earlier = next(s for s in self.spec.statements if isinstance(s, ast.Axis) and s.name.text == name)
            self.errors.append(defined_twice(node.name, earlier.name.span, "axis "))
            return
        self._check_names(node.extent)
        length = self.evaluator.integer(node.extent, self._environment(), "the length of an axis")
        self.fixed[name] = length
        self.scope.axes.setdefault(name, node.name.span)
        if length is not None and length < 1:
            label = Label(node.extent.span, f"this is {length}")
            help = "choose a length of 1 or more; an attr can have a range, as in `attr n: int >= 1`"
            self.errors.append(Diagnostic("extent", f"axis `{name}` has no elements", (label,), (help,)))
        elif length is not None and length > 2**63 - 1:
            label, help = Label(node.extent.span), "choose a shorter length: it must fit 64 bits"
            self.errors.append(Diagnostic("extent", f"axis `{name}` is too long", (label,), (help,)))
        elif length is not None:
            self.evaluator.extents[name] = length

    def _tensor(self, node: ast.Tensor) -> None:
        role = "output" if node.role == "save output" else node.role
        declares = role in DECLARING_ROLES
        dims, faults = check_dimensions(node.dimensions, declares, self.scope)
        first_input = next((t for t in self.tensors.values() if t.role == "input"), None)
        dtype, like, more = check_dtype(node.dtype, role, self.tensors, first_input, self._decide)
        self.errors += faults + more
        if role == "output" and node.dtype is None and first_input is None and self.has_input:
            help = "move the input above it, or give the output a dtype"
            message = f"`{node.name.text}` takes its dtype from the first input, which is declared below it"
            self.errors.append(Diagnostic("input", message, (Label(node.head),), (help,)))
        tensor = Tensor(node.name.text, role, dims, dtype, like, None, node.doc, node.span)
        if declares:
            if node.value is not None:
                tensor = self._default(node, tensor, node.value)
            value = number(ir.load(tensor.name, tensor.axes), tensor.axes)
            if self._define(node.name, node.role, node.head, value, tensor):
                self.tensors[tensor.name] = tensor
            return
        if node.value is None:
            help = f"write `{node.role} {tensor.name}{self.scope.brackets(tensor.axes)} = ...`"
            self.errors.append(
                Diagnostic("value", f"`{tensor.name}` has no value", (Label(node.head),), (help,))
            )
            value = POISON
        else:
            value = self._number(node.value)
            value = POISON if faults else self._same_axes(tensor, node.head, node.value, value)
        self.unsure |= {tensor.name} if faults else set()
        if self._define(node.name, node.role, node.head, value, tensor):
            self.tensors[tensor.name] = tensor
            self.bindings.append(Binding(tensor.name, value.expr, node.span, node.doc, dims))
            self.results.append(Result(tensor, value.expr, node.role != "output"))

    def _default(self, node: ast.Tensor, tensor: Tensor, value: ast.Expression) -> Tensor:
        if node.role == "input":
            help = "declare an operand with a default as `param`; define a value with `let`"
            message = f"`{tensor.name}` is an input, which every call passes, so it cannot have a value"
            self.errors.append(Diagnostic("value", message, (Label(value.span),), (help,)))
            return tensor
        default = self._number(value)
        if default.kind == "poison":
            return tensor
        if default.constant is None or default.axes:
            help = "use only numbers, int attrs and bool attrs"
            message = f"the default of `{tensor.name}` must be a number known at compile time"
            self.errors.append(Diagnostic("value", message, (Label(value.span),), (help,)))
            return tensor
        return replace(tensor, default=default.constant)

    def _let(self, node: ast.Let) -> None:
        name, tensor = node.name.text, None
        value = self._number(node.value)
        if node.dimensions is not None:
            dims, faults = check_dimensions(node.dimensions, False, self.scope)
            self.errors += faults
            tensor = Tensor(name, "let", dims, None, None, None, node.doc, node.span)
            value = POISON if faults else self._same_axes(tensor, node.head, node.value, value)
            self.unsure |= {name} if faults else set()
        binding = Binding(name, value.expr, node.span, node.doc, tensor.dims if tensor else None)
        if name in self.opened and tensor is not None:
            value = number(ir.load(name, tensor.axes), tensor.axes)
        if self._define(node.name, "let", node.head, value):
            self.lets[name] = tensor
            self.bindings.append(binding)

    def _update(self, node: ast.Update) -> None:
        name = node.name.text
        self.scope.used.add(name)
        value = self._number(node.value)
        entity = self.scope.values.get(name)
        if entity is None:
            states = [t.name for t in self.tensors.values() if t.role == "state"]
            help = suggestion(name, states) or ("declare it, as in `state running_mean[C] = 0`",)
            message = f"no state `{name}` is declared above"
            self.errors.append(Diagnostic("name", message, (Label(node.name.span),), help))
        elif entity.tensor is None or entity.tensor.role != "state":
            labels = (Label(node.name.span), Label(entity.head, f"declared as {entity.what}", primary=False))
            message = f"`{name}` is not a state, and only a state can be updated"
            keep = "declare it as `state`, or store the new value with `save` or `output`"
            self.errors.append(Diagnostic("state", message, labels, (keep,)))
        elif name in self.updates:
            label, once = Label(node.name.span), "write one `update` with the final value"
            self.errors.append(Diagnostic("state", f"`{name}` is updated twice", (label,), (once,)))
        else:
            tensor = entity.tensor
            value = self._same_axes(tensor, entity.head, node.value, value)
            same = value.expr is ir.load(name, tensor.axes)  # an update to the old value is none
            self.updates[name] = None if same else Update(name, value.expr, node.span)

    def _function(self, node: ast.Function) -> None:
        if faults := check_function(node, self.scope):
            self.errors += faults
            self.scope.broken.add(node.name.text)
        if node.name.text not in self.scope.own:
            self.scope.own.add(node.name.text)
            self.scope.functions[node.name.text] = node

    # What statements share.

    def _define(
        self, name: ast.Identifier, what: str, head: Span, value: Value, tensor: Tensor | None = None
    ) -> bool:
        """Give a name its meaning; False if it has one already."""
        if fault := reserved(name):
            self.errors.append(fault)
        if earlier := self.scope.values.get(name.text):
            self.errors.append(defined_twice(name, earlier.head))
            return False
        self.scope.values[name.text] = Entity(name.text, what, head, tensor)
        self.values[name.text] = value
        return True

    def _decide(self, condition: ast.Expression) -> bool:
        """The value of a condition that must be known at compile time; reports a fault if it is not."""
        self._check_names(condition)
        return self.evaluator.decide(condition, self._environment(), "a dtype")

    def _environment(self) -> Environment:
        return Environment(self.values, {axis: (axis,) for axis in self.scope.axes})

    def _check_names(self, node: ast.Expression) -> None:
        names = Names(self.values, self.scope.axes, self.scope.functions, self.scope, self.later)
        self.errors += check_names(node, names)

    def _number(self, node: ast.Expression) -> Value:
        self._check_names(node)
        return self.evaluator.number(node, self._environment())

    def _same_axes(self, tensor: Tensor, head: Span, node: ast.Expression, value: Value) -> Value:
        """The value if its axes are those declared; else reports a fault: results are never broadcast."""
        if value.kind == "poison" or value.axes == tensor.axes:
            return value
        self.errors.append(axes_fault(tensor, head, node, value.axes, self.scope))
        return POISON

    def _element_type(self, name: str) -> str:
        tensor = self.tensors.get(name)
        return "" if tensor is None else element_type(tensor)

    # The whole.

    def gradient(self) -> tuple[Request, list[Diagnostic]]:
        """What is differentiated, and the faults of that request."""
        request, faults = check_gradient(self.gradients, self.tensors, self.lets, self.scope)
        return request, faults + check_clashes(request, self.tensors, self.scope)

    def program(self) -> Program:
        declared = [tensor for tensor in self.tensors.values() if tensor.role in DECLARING_ROLES]
        opened = [t for name, t in self.lets.items() if name in self.opened and t is not None]
        return Program(
            name=self.spec.name.text,
            doc=self.spec.doc,
            attrs=tuple(self.attrs),
            axes=tuple(Axis(name, self.fixed.get(name)) for name in self.scope.axes),
            operands=(*declared, *opened),
            bindings=tuple(self.bindings),
            results=tuple(self.results),
            updates=tuple(update for update in self.updates.values() if update is not None),
        )

    def warnings(self) -> list[Diagnostic]:
        """Names that are never used, if that is likely a mistake."""
        found = []
        for name, entity in self.scope.values.items():
            written = entity.tensor is not None and entity.tensor.role in ("save", "output")
            asked = any(name == i.text for g in self.gradients for i in (*g.of, *g.wrt))
            if name not in self.scope.used and not written and not asked:
                message = f"{entity.what} `{name}` is never used"
                help = "use it or remove it"
                found.append(Diagnostic("unused", message, (Label(entity.head),), (help,), "warning"))
        return found
