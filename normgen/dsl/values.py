"""Expressions to IR: evaluates a syntax tree whose names are known.

A `Value` knows its axes by the rules of the language, which folding in the IR never changes: `0 * x` varies over the
axes of x. A fault is reported once and yields POISON, which every use passes on in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import floor

from normgen.diagnostics import Diagnostic, Label, Span
from normgen.dsl import ast
from normgen.dsl.functions import CAST, PRIMITIVES, REDUCTIONS, apply
from normgen.dsl.limits import number_fault
from normgen.dsl.names import Scope
from normgen.ir import expr as ir

Axes = frozenset[str]
DEEPEST_EVALUATION = 300  # levels, functions expanded
MOST_OPERATIONS = 100_000  # of one spec, functions expanded
LARGEST_EXPONENT = 1000
MOST_BITS = 4096  # of an exact constant's numerator and denominator
WIDEST_WINDOW = 1 << 20


@dataclass(frozen=True, slots=True)
class Value:
    """A number (`float`, or `int` if it is a compile-time integer) or a condition (`bool`).

    `constant` is its value where that is known at compile time, a condition's as 0 or 1.
    """

    kind: str
    expr: ir.Expr
    axes: Axes = frozenset()
    constant: Fraction | None = None


POISON = Value("poison", ir.ZERO)


def number(expr: ir.Expr, axes: Axes = frozenset(), constant: Fraction | None = None, kind: str = "float") -> Value:
    if constant is None and isinstance(expr, ir.Const) and not axes:
        constant = expr.value
    return Value(kind, expr, axes, constant)


def truth(value: bool) -> Value:
    return Value("bool", ir.ONE if value else ir.ZERO, frozenset(), Fraction(value))


@dataclass(frozen=True, slots=True)
class Environment:
    """What names mean: values, and the axes that an axis name stands for (several for a function's parameter).

    `site` is the call in the spec that is being expanded; faults inside a function are reported there.
    """

    values: Mapping[str, Value]
    axes: Mapping[str, tuple[str, ...]]
    site: Span | None = None


@dataclass(slots=True)
class Evaluator:
    """Evaluates expressions and reports their faults. `extents` are the lengths of axes that the spec fixes."""

    scope: Scope
    functions: Mapping[str, ast.Function]
    report: Callable[[Diagnostic], None]
    element_type: Callable[[str], str]
    extents: dict[str, int] = field(default_factory=dict)
    depth: int = 0
    operations: int = 0

    def fault(
        self, node: ast.Node, environment: Environment, code: str, message: str, *help: str, label: str = ""
    ) -> Value:
        """Report a fault at the node, or at the call being expanded; the value is POISON."""
        self.report(Diagnostic(code, message, (Label(environment.site or node.span, label),), help))
        return POISON

    def evaluate(self, node: ast.Expression, environment: Environment) -> Value:
        """The value of an expression. One Python frame for each level, so that nesting is safe."""
        self.operations += 1
        if self.depth >= DEEPEST_EVALUATION or self.operations > MOST_OPERATIONS:
            return self._too_large(node, environment)
        self.depth += 1
        try:
            match node:
                case ast.Number(value=value):
                    return number(ir.const(value), kind="int" if node.integral else "float")
                case ast.Truth(value=flag):
                    return truth(flag)
                case ast.Name(text=text):
                    return environment.values.get(text, POISON)
                case ast.Unary(operator=operator):
                    operand = self.evaluate(node.operand, environment)
                    return self._unary(node, operator, operand, environment)
                case ast.Binary():
                    left = self.evaluate(node.left, environment)
                    right = self.evaluate(node.right, environment)
                    return self._binary(node, left, right, environment)
                case ast.Conditional():
                    condition = self.evaluate(node.condition, environment)
                    condition = self.as_condition(node.condition, condition, environment)
                    if condition.kind == "poison":
                        return POISON
                    if condition.constant is not None:
                        taken = node.then if condition.constant else node.otherwise
                        return self.evaluate(taken, environment)
                    then = self.evaluate(node.then, environment)
                    otherwise = self.evaluate(node.otherwise, environment)
                    return self._choice(node, condition, then, otherwise, environment)
                case ast.Subscript(over=over):
                    return self._extent(over, environment)
                case ast.Call():
                    arguments = []
                    for argument in node.arguments[: 1 if node.function.text == CAST else None]:
                        arguments.append(self.as_number(argument, self.evaluate(argument, environment), environment))
                    if POISON in arguments:
                        return POISON
                    name = node.function.text
                    if name in PRIMITIVES:
                        return self._primitive(node, arguments, environment)
                    function = self.functions.get(name)
                    inner = self._bind(node, function, arguments, environment)
                    if function is None or inner is None:
                        return POISON
                    result = self.evaluate(function.body, inner)
                    return self.as_number(function.body, result, inner)
        finally:
            self.depth -= 1

    def _too_large(self, node: ast.Node, environment: Environment) -> Value:
        if self.operations > MOST_OPERATIONS:
            if self.operations > MOST_OPERATIONS + 1:
                return POISON  # said once
            message = f"more than {MOST_OPERATIONS} operations once its functions are expanded"
            return self.fault(node, environment, "size", message)
        message = f"nested more than {DEEPEST_EVALUATION} levels deep once its functions are expanded"
        return self.fault(node, environment, "nesting", message, "give a part a name of its own with `let`")

    # Kinds.

    def as_number(self, node: ast.Expression, value: Value, environment: Environment) -> Value:
        if value.kind != "bool":
            return value
        if isinstance(node, ast.Binary):
            message = "a comparison stands only as a condition"
            return self.fault(node, environment, "type", message, "choose numbers by it, as in `1 if a < b else 0`")
        message = "a bool stands only as a condition"
        return self.fault(node, environment, "type", message, "choose numbers by it, as in `1 if flag else 0`")

    def as_condition(self, node: ast.Expression, value: Value, environment: Environment) -> Value:
        if value.kind in ("bool", "poison"):
            return value
        message = "a condition is a comparison or a bool attr"
        return self.fault(node, environment, "type", message, "compare it, as in `v != 0`")

    # Operators.

    def _unary(self, node: ast.Unary, operator: str, operand: Value, environment: Environment) -> Value:
        if operator == "not":
            operand = self.as_condition(node.operand, operand, environment)
            if operand.kind == "poison":
                return POISON
            if operand.constant is not None:
                return truth(not operand.constant)
            return Value("bool", ir.negate_condition(operand.expr), operand.axes)
        operand = self.as_number(node.operand, operand, environment)
        if operand.kind == "poison":
            return POISON
        constant = None if operand.constant is None else -operand.constant
        return Value(operand.kind, ir.neg(operand.expr), operand.axes, constant)

    def _binary(self, node: ast.Binary, left: Value, right: Value, environment: Environment) -> Value:
        operator = node.operator
        wanted = self.as_condition if operator in ("and", "or") else self.as_number
        left, right = wanted(node.left, left, environment), wanted(node.right, right, environment)
        if "poison" in (left.kind, right.kind):
            return POISON
        axes = left.axes | right.axes
        if operator in ("and", "or"):
            return _logic(operator, left, right)
        if operator in _COMPARE:
            if left.constant is not None and right.constant is not None:
                return truth(_COMPARE[operator](left.constant, right.constant))
            return Value("bool", ir.compare(operator, left.expr, right.expr), axes)
        if operator == "//":
            return self._floor_division(node, left, right, environment)
        if operator == "/" and right.constant == 0:
            return self.fault(node, environment, "number", "division by zero", label="the divisor is 0")
        if operator == "^" and (value := self._power_fault(node, left, right, environment)):
            return value
        both = left.kind == right.kind == "int"
        kind = "int" if both and operator in "+-*" else "float"
        if both and operator == "^" and right.constant is not None and right.constant >= 0:
            kind = "int"
        constant = None
        if left.constant is not None and right.constant is not None:
            constant = _arithmetic(operator, left.constant, right.constant)
        expr = _BUILD[operator](left.expr, right.expr)
        return self._bounded(node, Value(kind, expr, axes, constant), environment)

    def _bounded(self, node: ast.Node, value: Value, environment: Environment) -> Value:
        """The value, unless its exact constants are out of range or grow without bound."""
        if value.constant is not None and (reason := number_fault(value.constant)):
            return self.fault(node, environment, "number", f"this constant is {reason}")
        match value.expr:
            case ir.Mul(coefficient=coefficient, factors=factors):
                exponents = [exponent for _, exponent in factors]
            case ir.Const(value=coefficient):
                exponents = []
            case _:
                return value
        if _bits(coefficient) > MOST_BITS or any(abs(e) > LARGEST_EXPONENT * 1000 for e in exponents):
            return self.fault(node, environment, "number", "the constants of this expression grow too large")
        return value

    def _power_fault(self, node: ast.Binary, base: Value, exponent: Value, environment: Environment) -> Value | None:
        p = exponent.constant
        if p is None:
            return None
        if abs(p) > LARGEST_EXPONENT:
            message = f"an exponent of {float(p):g}; constant exponents are at most {LARGEST_EXPONENT}"
            return self.fault(node.right, environment, "number", message)
        coefficient, _ = ir.factors(base.expr)
        if _bits(coefficient) * (abs(p) + 1) > MOST_BITS:
            return self.fault(node, environment, "number", "the constants of this expression grow too large")
        if base.constant == 0 and p < 0:
            return self.fault(node, environment, "number", "division by zero", label="0 to a negative power")
        if base.constant is not None and base.constant < 0 and p.denominator != 1:
            return self.fault(node, environment, "number", "a root of a negative number")
        return None

    def _floor_division(self, node: ast.Binary, left: Value, right: Value, environment: Environment) -> Value:
        top = self.integer(node.left, left, environment, "an operand of `//`")
        bottom = self.integer(node.right, right, environment, "an operand of `//`")
        if top is None or bottom is None:
            return POISON
        if bottom == 0:
            return self.fault(node, environment, "number", "division by zero", label="the divisor is 0")
        return number(ir.const(top // bottom), kind="int")

    def _choice(
        self, node: ast.Conditional, condition: Value, then: Value, otherwise: Value, environment: Environment
    ) -> Value:
        then = self.as_number(node.then, then, environment)
        otherwise = self.as_number(node.otherwise, otherwise, environment)
        if "poison" in (then.kind, otherwise.kind):
            return POISON
        axes = condition.axes | then.axes | otherwise.axes
        return number(ir.select(condition.expr, then.expr, otherwise.expr), axes)

    def _extent(self, over: tuple[ast.Reach, ...], environment: Environment) -> Value:
        names = [reach.text for reach in over if isinstance(reach, ast.Identifier)]
        if len(names) != len(over) or any(name not in environment.axes for name in names):
            return POISON
        axes = [axis for name in names for axis in environment.axes[name]]
        constant = Fraction(1)
        for axis in axes:
            if axis not in self.extents:
                return number(ir.mul(*map(ir.extent, axes)))
            constant *= self.extents[axis]
        return Value("int", ir.mul(*map(ir.extent, axes)), frozenset(), constant)

    # Calls.

    def _primitive(self, node: ast.Call, arguments: list[Value], environment: Environment) -> Value:
        name = node.function.text
        if name in REDUCTIONS and node.over:
            return self._reduction(node, arguments, environment)
        axes = frozenset[str]().union(*(value.axes for value in arguments))
        if name == CAST and len(arguments) == 1:
            target = node.arguments[-1]
            to = self.element_type(target.text) if isinstance(target, ast.Name) else ""
            return arguments[0] if to in ("", "f32") else number(ir.round_to(arguments[0].expr, to), axes)
        if len(arguments) != PRIMITIVES[name].parameters or node.over:
            return POISON
        constants = [value.constant for value in arguments]
        if name == "rsqrt" and constants[0] == 0:
            return self.fault(node, environment, "number", "division by zero", label="the argument is 0")
        if name in ("sqrt", "rsqrt") and constants[0] is not None and constants[0] < 0:
            return self.fault(node, environment, "number", "a root of a negative number")
        if name == "log" and constants[0] is not None and constants[0] <= 0:
            return self.fault(node, environment, "number", "the logarithm of a number that is not above 0")
        result = number(apply(name, *(value.expr for value in arguments)), axes)
        if name in ("max", "min", "abs") and all(c is not None for c in constants):
            known = [c for c in constants if c is not None]
            constant = {"max": max, "min": min}[name](known) if name != "abs" else abs(known[0])
            kind = "int" if all(value.kind == "int" for value in arguments) else "float"
            return Value(kind, result.expr, axes, constant)
        return self._bounded(node, result, environment)

    def _reduction(self, node: ast.Call, arguments: list[Value], environment: Environment) -> Value:
        name, windows = node.function.text, [r for r in node.over if isinstance(r, ast.Window)]
        if len(arguments) != 1 or (windows and (name != "sum" or len(windows) < len(node.over))):
            return POISON
        (value,) = arguments
        axes: list[str] = []
        for reach in node.over:
            written = reach.axis if isinstance(reach, ast.Window) else reach
            if written.text not in environment.axes:
                return POISON
            axes += environment.axes[written.text]
        if len(set(axes)) < len(axes):
            return POISON
        if missing := [axis for axis in axes if axis not in value.axes]:
            shown = ", ".join(f"`{axis}`" for axis in missing)
            message = f"{name} over {shown}, which the value lacks"
            has = f"the value has axes {self.scope.brackets(value.axes)}" if value.axes else "the value has no axes"
            help = "a sum over an axis that a value lacks multiplies by its length; write `size` if that is meant"
            if environment.site:
                return self.fault(node, environment, "axes", message, label=has)
            self.report(Diagnostic("axes", message, (Label(node.arguments[0].span, has),), (help,)))
            return POISON
        if windows:
            return self._window(windows, value, environment)
        return number(ir.reduce(name, axes, value.expr), value.axes - frozenset(axes))

    def _window(self, windows: list[ast.Window], value: Value, environment: Environment) -> Value:
        reaches: list[tuple[str, int, int]] = []
        for window in windows:
            low = self.integer(window.low, self.evaluate(window.low, environment), environment, "a window's end")
            high = self.integer(window.high, self.evaluate(window.high, environment), environment, "a window's end")
            if low is None or high is None:
                return POISON
            if high < low:
                message = f"an empty window: it reaches from {low} to {high}"
                return self.fault(window, environment, "window", message, "the lower end stands first")
            if max(abs(low), abs(high)) > WIDEST_WINDOW:
                message = f"a window from {low} to {high}; its ends lie within {WIDEST_WINDOW}"
                return self.fault(window, environment, "window", message)
            axes = environment.axes[window.axis.text]
            if len(axes) > 1:
                message = f"a window over `{window.axis.text}`, which stands for several axes here"
                return self.fault(window, environment, "window", message)
            reaches.append((axes[0], low, high))
        return number(ir.window_sum(value.expr, tuple(reaches)), value.axes)

    def _bind(
        self, node: ast.Call, function: ast.Function | None, arguments: list[Value], environment: Environment
    ) -> Environment | None:
        """What the names of a function's body mean in this call."""
        if function is None or len(arguments) != len(function.parameters):
            return None
        axes: dict[str, tuple[str, ...]] = {}
        if bool(node.over) != (function.axis is not None):
            return None
        if function.axis is not None:
            listed: list[str] = []
            for reach in node.over:
                if not isinstance(reach, ast.Identifier) or reach.text not in environment.axes:
                    return None
                listed += environment.axes[reach.text]
            if len(set(listed)) < len(listed):
                return None
            axes = {function.axis.text: tuple(listed)}
        values = {p.text: value for p, value in zip(function.parameters, arguments, strict=True)}
        return Environment(values, axes, environment.site or node.span)

    # Compile-time integers.

    def integer(self, node: ast.Expression, value: Value, environment: Environment, what: str) -> int | None:
        """The value as a compile-time integer; `what` says what must be one."""
        if value.kind == "poison":
            return None
        if value.kind == "int" and value.constant is not None:
            return floor(value.constant)
        help: tuple[str, ...] = ("it may be made of numbers, int attrs and `+ - * //`",)
        below = list(_below(node))
        for part in below:
            entity = self.scope.values.get(part.text) if isinstance(part, ast.Name) else None
            if entity is not None and entity.what == "float attr" and environment.site is None:
                labels = (Label(node.span), Label(entity.head, "a float, because it says no type", primary=False))
                help = (f"write `{entity.name}: int`",)
                self.report(Diagnostic("integer", f"{what} is a compile-time integer", labels, help))
                return None
        if any(isinstance(part, ast.Binary) and part.operator == "/" for part in below):
            help = ("`/` is real division; `//` divides integers and rounds down",)
        self.fault(node, environment, "integer", f"{what} is a compile-time integer", *help)
        return None


def _below(node: ast.Node) -> list[ast.Node]:
    found = [node]
    for part in found:
        found.extend(ast.children(part))
    return found


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _logic(operator: str, left: Value, right: Value) -> Value:
    """`and`, `or`; a side known at compile time decides or drops out."""
    decisive = 0 if operator == "and" else 1
    for known, other in ((left, right), (right, left)):
        if known.constant is not None:
            return truth(bool(decisive)) if known.constant == decisive else other
    join = ir.both if operator == "and" else ir.either
    return Value("bool", join(left.expr, right.expr), left.axes | right.axes)


_COMPARE: dict[str, Callable[[Fraction, Fraction], bool]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}
_BUILD: dict[str, Callable[[ir.Expr, ir.Expr], ir.Expr]] = {
    "+": ir.add,
    "-": ir.sub,
    "*": ir.mul,
    "/": ir.div,
    "^": ir.power,
}


def _arithmetic(operator: str, left: Fraction, right: Fraction) -> Fraction | None:
    """The exact result of an operation on constants, where there is one."""
    match operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "/":
            return left / right
        case _ if right.denominator == 1:
            return left ** int(right)
        case _:
            return None
