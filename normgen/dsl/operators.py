"""The operators on values. Constants stay exact and within bounds."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from normgen.dsl import ast
from normgen.dsl.limits import number_fault
from normgen.dsl.values import POISON, Fault, Value, as_condition, as_number, number, truth
from normgen.ir import expr as ir

LARGEST_EXPONENT = 1000
MOST_BITS = 4096  # of an exact constant's numerator and denominator
_DIVISOR = "change the divisor, which is a constant at compile time"
_RANGE = "use constants with fewer digits, which are computed exactly, or make one an attr"
_TOO_LARGE = "the constants of this expression grow too large"

_COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
_BUILD: dict[str, Callable[[ir.Expr, ir.Expr], ir.Expr]] = {
    "+": ir.add,
    "-": ir.sub,
    "*": ir.mul,
    "/": ir.div,
    "^": ir.power,
}


def unary(node: ast.Unary, operand: Value) -> Value:
    """`-v` and `not v`."""
    check = as_condition if node.operator == "not" else as_number
    operand = check(node.operand, operand)
    if operand.poisoned:
        return POISON
    if node.operator == "not":
        if operand.constant is not None:
            return truth(not operand.constant)
        return Value("bool", ir.call("not", operand.expr), operand.axes)
    constant = None if operand.constant is None else -operand.constant
    return Value(operand.kind, ir.neg(operand.expr), operand.axes, constant)


def binary(node: ast.Binary, left: Value, right: Value) -> Value:
    """Every binary operator except `//`, whose operands are integers."""
    operator = node.operator
    check = as_condition if operator in ("and", "or") else as_number
    left, right = check(node.left, left), check(node.right, right)
    if left.poisoned or right.poisoned:
        return POISON
    if operator in ("and", "or"):
        return _logic(operator, left, right)
    axes = left.axes | right.axes
    if operator in _COMPARISONS:
        if left.constant is not None and right.constant is not None:
            return truth(ir.compare(operator, left.constant, right.constant) is ir.ONE)
        return Value("bool", ir.compare(operator, left.expr, right.expr), axes)
    if operator == "/" and right.constant == 0:
        raise Fault(node, "number", "division by zero", _DIVISOR, label="the divisor is 0")
    if operator == "^":
        _check_power(node, left, right)
    constant = None
    if left.constant is not None and right.constant is not None:
        constant = _exact(operator, left.constant, right.constant)
    whole = left.kind == right.kind == "int" and constant is not None and constant.denominator == 1
    kind = "int" if whole and operator != "/" else "float"
    expr = _BUILD[operator](left.expr, right.expr)
    return bounded(node, Value(kind, expr, axes, constant))


def floor_division(node: ast.Binary, left: int, right: int) -> Value:
    """`//`, which rounds down: (0 - 1) // 2 is -1."""
    if right == 0:
        raise Fault(node, "number", "division by zero", _DIVISOR, label="the divisor is 0")
    return number(ir.const(left // right), kind="int")


def choice(node: ast.Conditional, condition: Value, then: Value, otherwise: Value) -> Value:
    """`then if condition else otherwise`, where the condition is not known at compile time."""
    then, otherwise = as_number(node.then, then), as_number(node.otherwise, otherwise)
    if then.poisoned or otherwise.poisoned:
        return POISON
    axes = condition.axes | then.axes | otherwise.axes
    return number(ir.select(condition.expr, then.expr, otherwise.expr), axes)


def bounded(node: ast.Node, value: Value) -> Value:
    """The value, unless its exact constants are out of range or grow without bound."""
    if value.constant is not None and (reason := number_fault(value.constant)):
        raise Fault(node, "number", f"this constant is {reason}", _RANGE)
    coefficient, factors = ir.factors(value.expr)
    largest = LARGEST_EXPONENT**2
    if _bits(coefficient) > MOST_BITS or any(abs(exponent) > largest for _, exponent in factors):
        raise Fault(node, "number", _TOO_LARGE, _RANGE)
    return value


def _check_power(node: ast.Binary, base: Value, exponent: Value) -> None:
    p = exponent.constant
    if p is None:
        return
    if abs(p) > LARGEST_EXPONENT:
        message = f"the exponent is {float(p):g}, but a constant exponent is at most {LARGEST_EXPONENT}"
        raise Fault(node.right, "number", message, "write `exp(p * log(v))`")
    coefficient, _ = ir.factors(base.expr)
    if _bits(coefficient) * (abs(p) + 1) > MOST_BITS:
        raise Fault(node, "number", _TOO_LARGE, _RANGE)
    if base.constant == 0 and p < 0:
        raise Fault(node, "number", "division by zero", _DIVISOR, label="0 to a negative power")
    if base.constant is not None and base.constant < 0 and p.denominator != 1:
        raise Fault(node, "number", "root of a negative number", "use `abs(v)` or an integer exponent")


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _logic(operator: str, left: Value, right: Value) -> Value:
    """`and`, `or`; an operand known at compile time decides the result or is dropped."""
    decisive = 0 if operator == "and" else 1
    for known, other in ((left, right), (right, left)):
        if known.constant is not None:
            return truth(bool(decisive)) if known.constant == decisive else other
    return Value("bool", ir.call(operator, left.expr, right.expr), left.axes | right.axes)


def _exact(operator: str, left: Fraction, right: Fraction) -> Fraction | None:
    """The result of an operation on constants, if it is certainly rational."""
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
