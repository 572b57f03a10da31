"""From expressions to IR: the value of a syntax tree whose names are checked.

A fault is reported once and yields POISON, which every use propagates silently. Unknown names do too, which
`names` reports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from normgen.diagnostics import Diagnostic, Label
from normgen.dsl import ast
from normgen.dsl.functions import CAST, REDUCTIONS, ROOTS, apply, built_in, prelude
from normgen.dsl.names import Scope
from normgen.dsl.operators import binary, bounded, choice, floor_division, unary
from normgen.dsl.values import (
    POISON,
    Axes,
    Environment,
    Fault,
    Value,
    as_condition,
    as_number,
    integer,
    number,
    truth,
)
from normgen.ir import expr as ir
from normgen.ir.primitives import PRIMITIVES

DEEPEST_EVALUATION = 300  # levels, functions expanded
MOST_OPERATIONS = 100_000  # of one spec, functions expanded
WIDEST_WINDOW = 1 << 20


@dataclass(slots=True)
class Evaluator:
    """Evaluates the expressions of one spec. `extents` are the lengths of axes that the spec fixes.

    `element_type` says what a cast to a tensor's dtype rounds to; `report` receives the faults.
    """

    scope: Scope
    report: Callable[[Diagnostic], None]
    element_type: Callable[[str], str]
    extents: dict[str, int] = field(default_factory=dict)
    depth: int = 0
    operations: int = 0

    def number(self, node: ast.Expression, environment: Environment) -> Value:
        """The value of an expression that must be a number."""
        value = self.evaluate(node, environment)
        try:
            return as_number(node, value)
        except Fault as fault:
            return self._reported(fault, environment)

    def integer(self, node: ast.Expression, environment: Environment, what: str) -> int | None:
        """The value of an expression that must be a compile-time integer; None if a fault is reported."""
        value = self.evaluate(node, environment)
        if value.poisoned:
            return None
        try:
            return integer(node, value, what, self.scope, environment.site)
        except Fault as fault:
            self._reported(fault, environment)
            return None

    def decide(self, node: ast.Expression, environment: Environment, what: str) -> bool:
        """The value of a condition that must be known at compile time; False if a fault is reported."""
        value = self.evaluate(node, environment)
        try:
            condition = as_condition(node, value)
            if condition.constant is None and not condition.poisoned:
                message = f"the condition of {what} must be known at compile time"
                raise Fault(node, "dtype", message, "use a bool or int attr in the condition")
        except Fault as fault:
            condition = self._reported(fault, environment)
        return bool(condition.constant)

    def _reported(self, fault: Fault, environment: Environment) -> Value:
        """A fault inside a function is reported at the call, which is the text that the user wrote."""
        labels = (Label(environment.site or fault.node.span, fault.label), *fault.others)
        self.report(Diagnostic(fault.code, fault.message, labels, fault.help))
        return POISON

    def evaluate(self, node: ast.Expression, environment: Environment) -> Value:
        """The value of an expression. One Python frame for each level, so that deep nesting is safe."""
        self.operations += 1
        self.depth += 1
        try:
            self._check_size(node)
            match node:
                case ast.Number(value=value):
                    return number(ir.const(value), kind="int" if node.integral else "float")
                case ast.Truth(value=flag):
                    return truth(flag)
                case ast.Name(text=text):
                    return environment.values.get(text, POISON)
                case ast.Unary():
                    return unary(node, self.evaluate(node.operand, environment))
                case ast.Binary():
                    left = self.evaluate(node.left, environment)
                    right = self.evaluate(node.right, environment)
                    if node.operator == "//":
                        return self._floor_division(node, left, right, environment)
                    return binary(node, left, right)
                case ast.Conditional():
                    condition = as_condition(node.condition, self.evaluate(node.condition, environment))
                    if condition.poisoned:
                        return POISON
                    if condition.constant is not None:  # folded before anything: the other branch has no say
                        taken = node.then if condition.constant else node.otherwise
                        return self.evaluate(taken, environment)
                    then = self.evaluate(node.then, environment)
                    return choice(node, condition, then, self.evaluate(node.otherwise, environment))
                case ast.Subscript():
                    return self._extent(node, environment)
                case ast.Call() if not self._is_known(node.function.text):
                    for argument in node.arguments:  # of whatever type it takes them
                        self.evaluate(argument, environment)
                    return POISON
                case ast.Call():
                    arguments, function = [], self._function(node, environment)
                    for argument in _evaluated(node, function):
                        arguments.append(as_number(argument, self.evaluate(argument, environment)))
                    called = self._called(node, function, arguments, environment)
                    if isinstance(called, Value):
                        return called
                    body, inner = called
                    return as_number(body, self.evaluate(body, inner))
        except Fault as fault:
            return self._reported(fault, environment)
        except _TooLarge:
            return POISON
        finally:
            self.depth -= 1

    def _function(self, node: ast.Call, environment: Environment) -> ast.Function | None:
        """The function of a call if it is written in the language; it may replace a built-in one."""
        known = self.scope.functions if environment.functions is None else environment.functions
        return known.get(node.function.text)

    def _is_known(self, function: str) -> bool:
        return function in self.scope.functions or built_in(function) is not None

    def _check_size(self, node: ast.Node) -> None:
        """Stops the exponential growth of functions that call functions."""
        if self.operations == MOST_OPERATIONS:
            message = f"more than {MOST_OPERATIONS} operations after functions are expanded"
            raise Fault(node, "size", message, "define values that are used several times with `let`")
        if self.operations > MOST_OPERATIONS:
            raise _TooLarge
        if self.depth > DEEPEST_EVALUATION:
            message = f"nested more than {DEEPEST_EVALUATION} levels deep after functions are expanded"
            raise Fault(node, "nesting", message, "define part of it with `let`")

    def _floor_division(self, node: ast.Binary, left: Value, right: Value, environment: Environment) -> Value:
        if left.poisoned or right.poisoned:
            return POISON
        what, site = "an operand of `//`", environment.site
        top = integer(node.left, left, what, self.scope, site)
        return floor_division(node, top, integer(node.right, right, what, self.scope, site))

    def _axes(self, over: Sequence[ast.Reach], environment: Environment) -> list[str] | None:
        """The axes that brackets list; None if `names` reported a fault in them."""
        axes: list[str] = []
        for reach in over:
            written = reach.axis if isinstance(reach, ast.Window) else reach
            if written.text not in environment.axes:
                return None
            axes += environment.axes[written.text]
        return axes if len(set(axes)) == len(axes) else None

    def _extent(self, node: ast.Subscript, environment: Environment) -> Value:
        """`size[...]`: lengths are symbols even if the spec fixes them, so that they cancel."""
        axes = self._axes(node.over, environment)
        windows = any(isinstance(reach, ast.Window) for reach in node.over)
        if axes is None or windows or node.function.text != "size":
            return POISON
        expr = ir.mul(*map(ir.extent, axes))
        constant = Fraction(1)
        for axis in axes:
            if axis not in self.extents:
                return number(expr)
            constant *= self.extents[axis]
        return Value("int", expr, frozenset(), constant)

    def _built_in(self, node: ast.Call, arguments: list[Value], environment: Environment) -> Value:
        name = node.function.text
        if name in REDUCTIONS and node.over:
            return self._reduction(node, arguments, environment)
        called = built_in(name)
        if called is None or called.axes or node.over or len(node.arguments) != called.parameters:
            return POISON
        axes: Axes = frozenset().union(*(value.axes for value in arguments))
        if name == CAST:
            return self._cast(arguments[0], node.arguments[1])
        constants = [value.constant for value in arguments if value.constant is not None]
        primitive = PRIMITIVES.get(name)
        if constants:
            _check_domain(node, name, constants[0])
        result = number(apply(name, *(value.expr for value in arguments)), axes)
        integral = primitive is not None and primitive.integral and len(constants) == len(arguments)
        exact = primitive.exact(*constants) if primitive is not None and integral else None
        if exact is not None:
            kind = "int" if all(value.kind == "int" for value in arguments) else "float"
            return Value(kind, result.expr, axes, Fraction(exact))
        return bounded(node, result)

    def _cast(self, value: Value, target: ast.Expression) -> Value:
        to = self.element_type(target.text) if isinstance(target, ast.Name) else ""
        return value if to in ("", "f32") else number(ir.round_to(value.expr, to), value.axes)

    def _reduction(self, node: ast.Call, arguments: list[Value], environment: Environment) -> Value:
        name, windows = node.function.text, [r for r in node.over if isinstance(r, ast.Window)]
        axes = self._axes(node.over, environment)
        if (
            axes is None
            or len(arguments) != 1
            or (windows and (name != "sum" or len(windows) < len(node.over)))
        ):
            return POISON
        if windows and len(axes) > len(windows):
            message = f"the function sums over a window of one axis, but this call passes {len(axes)}"
            raise Fault(node, "window", message, "call it with one axis")
        (value,) = arguments
        if missing := [axis for axis in axes if axis not in value.axes]:
            shown = ", ".join(f"`{axis}`" for axis in missing)
            has = f"axes {self.scope.brackets(value.axes)}" if value.axes else "no axes"
            place = node.arguments[0] if environment.site is None else node
            help = "to add it once for each element of the axis, multiply it by `size`"
            if windows:
                shown_ones = f"`param one{self.scope.brackets(missing)} = 1`"
                help = f"to count the elements of each window, sum a tensor of ones: {shown_ones}"
            message = f"the argument of this {name} does not vary over {shown}"
            raise Fault(place, "axes", message, help, label=f"the value has {has}")
        if windows:
            return self._window(windows, axes, value, environment)
        return number(ir.reduce(name, axes, value.expr), value.axes - frozenset(axes))

    def _window(
        self, windows: list[ast.Window], axes: list[str], value: Value, environment: Environment
    ) -> Value:
        reaches: list[tuple[str, int, int]] = []
        for window, axis in zip(windows, axes, strict=True):
            low = self.integer(window.low, environment, "the end of a window")
            high = self.integer(window.high, environment, "the end of a window")
            if low is None or high is None:
                return POISON
            if high < low:
                message = f"the window from {low} to {high} is empty"
                raise Fault(window, "window", message, f"write the lower end first, `{high} .. {low}`")
            if max(abs(low), abs(high)) > WIDEST_WINDOW:
                message = f"the window from {low} to {high} reaches beyond {WIDEST_WINDOW} elements"
                raise Fault(window, "window", message, f"to sum over the whole axis, write `sum[{axis}](v)`")
            reaches.append((axis, low, high))
        return number(ir.window_sum(value.expr, tuple(reaches)), value.axes)

    def _called(
        self, node: ast.Call, function: ast.Function | None, arguments: list[Value], environment: Environment
    ) -> Value | tuple[ast.Expression, Environment]:
        """The value of a call, or the body of its function with the meaning of its names in this call."""
        if any(value.poisoned for value in arguments) or node.function.text in self.scope.broken:
            return POISON
        if function is None:
            return self._built_in(node, arguments, environment)
        # what fails below, `names` reported
        if len(arguments) != len(function.parameters) or bool(node.over) != (function.axis is not None):
            return POISON
        axes: Mapping[str, tuple[str, ...]] = {}
        if function.axis is not None:
            listed = self._axes(node.over, environment)
            if listed is None or any(isinstance(reach, ast.Window) for reach in node.over):
                return POISON
            axes = {function.axis.text: tuple(listed)}
        values = {p.text: value for p, value in zip(function.parameters, arguments, strict=True)}
        functions = prelude() if prelude().get(function.name.text) is function else None
        return function.body, Environment(values, axes, environment.site or node.span, functions)


class _TooLarge(Exception):
    """The spec is too large, which is reported already."""


def _evaluated(node: ast.Call, function: ast.Function | None) -> tuple[ast.Expression, ...]:
    """The arguments that are values: the second one of the built-in cast is a tensor."""
    return node.arguments[:1] if function is None and node.function.text == CAST else node.arguments


_POSITIVE = "make the argument positive; it is a constant at compile time"


def _check_domain(node: ast.Call, name: str, constant: Fraction) -> None:
    """Reports a function of a constant at which it has no finite value."""
    if name in ROOTS and ROOTS[name] < 0 and constant == 0:
        raise Fault(node, "number", "division by zero", _POSITIVE, label="the argument is 0")
    if name in ROOTS and constant < 0:
        raise Fault(node, "number", "root of a negative number", _POSITIVE)
    if name in PRIMITIVES and (reason := PRIMITIVES[name].refuses(constant)):
        raise Fault(node, "number", reason, "change the argument, which is a constant at compile time")
