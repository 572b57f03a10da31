"""Syntax tree to text: a spec that parses to the same tree, one statement a line, no needless parentheses."""

from __future__ import annotations

from normgen.dsl import ast

# How tightly operators bind. A side that binds less tightly than its place asks for gets parentheses.
_CHOICE, _OR, _AND, _NOT, _COMPARE, _SUM, _PRODUCT, _SIGN, _POWER, _ATOM = range(10)
_BINARY: dict[str, tuple[int, int, int]] = {  # operator: its level, and what its sides need
    "or": (_OR, _OR, _AND),
    "and": (_AND, _AND, _NOT),
    **dict.fromkeys(("<", "<=", ">", ">=", "==", "!="), (_COMPARE, _SUM, _SUM)),
    **dict.fromkeys(("+", "-"), (_SUM, _SUM, _PRODUCT)),
    **dict.fromkeys(("*", "/", "//"), (_PRODUCT, _PRODUCT, _SIGN)),
    "^": (_POWER, _ATOM, _SIGN),
}
_UNARY: dict[str, tuple[int, int]] = {"-": (_SIGN, _SIGN), "not": (_NOT, _NOT)}


def show_ast(spec: ast.Spec) -> str:
    """The spec as text."""
    lines = [f"norm {spec.name.text}{_doc(spec.doc)}", *map(_statement, spec.statements)]
    return "\n".join(lines) + "\n"


def show_expression(node: ast.Expression) -> str:
    """An expression as text."""
    return _expression(node, _CHOICE)


def _statement(node: ast.Statement) -> str:
    match node:
        case ast.Attr(name=name, kind=kind, bound=bound):
            text = f"attr {name.text}"
            text += f": {kind.text}" if kind else ""
            text += f" {bound.operator} {_expression(bound.low, _SUM)}" if bound else ""
            text += _value(node.default)
        case ast.Axis(name=name):
            text = f"axis {name.text}{_value(node.extent)}"
        case ast.Tensor(role=role, name=name, dtype=dtype):
            text = f"{role} {name.text}[{_dimensions(node.dimensions)}]"
            text += f": {_dtype(dtype)}" if dtype else ""
            text += _value(node.value)
        case ast.Let(name=name, dimensions=dimensions):
            declared = "" if dimensions is None else f"[{_dimensions(dimensions)}]"
            text = f"let {name.text}{declared}{_value(node.value)}"
        case ast.Update(name=name):
            text = f"update {name.text}{_value(node.value)}"
        case ast.Gradient(of=of, wrt=wrt):
            text = f"grad {_names(of)} wrt {_names(wrt)}"
        case ast.Function(name=name, axis=axis, parameters=parameters):
            over = f"[{axis.text}]" if axis else ""
            text = f"fn {name.text}{over}({_names(parameters)}){_value(node.body)}"
    return text + _doc(node.doc)


def _doc(doc: str) -> str:
    escaped = doc.replace("\\", "\\\\").replace('"', '\\"')
    return f' "{escaped}"' if doc else ""


def _dtype(node: ast.ElementType | ast.ElementChoice) -> str:
    match node:
        case ast.ElementType(name=name, like=like):
            return f"{'like ' if like else ''}{name.text}"
        case ast.ElementChoice(then=then, condition=condition, otherwise=otherwise):
            return f"{_dtype(then)} if {_expression(condition, _OR)} else {_dtype(otherwise)}"


def _value(node: ast.Expression | None) -> str:
    return "" if node is None else f" = {_expression(node, _CHOICE)}"


def _names(names: tuple[ast.Identifier, ...]) -> str:
    return ", ".join(name.text for name in names)


def _dimensions(dimensions: tuple[ast.Dimension, ...]) -> str:
    return ", ".join(
        dim[0].text if len(dim) == 1 else f"({' '.join(axis.text for axis in dim)})" for dim in dimensions
    )


def _over(over: tuple[ast.Reach, ...]) -> str:
    def reach(part: ast.Reach) -> str:
        if isinstance(part, ast.Identifier):
            return part.text
        return f"{part.axis.text}: {show_expression(part.low)} .. {show_expression(part.high)}"

    return f"[{', '.join(map(reach, over))}]" if over else ""


def _expression(node: ast.Expression, needed: int) -> str:
    """The text of a node in a place that needs something binding at least as tightly as `needed`."""
    match node:
        case ast.Number(text=text) | ast.Name(text=text):
            return text
        case ast.Truth(value=value):
            return "true" if value else "false"
        case ast.Subscript(function=function, over=over):
            return function.text + _over(over)
        case ast.Call(function=function, over=over, arguments=arguments):
            return f"{function.text}{_over(over)}({', '.join(map(show_expression, arguments))})"
        case ast.Unary(operator=operator, operand=operand):
            level, side = _UNARY[operator]
            text = ("-" if operator == "-" else "not ") + _expression(operand, side)
        case ast.Binary(operator=operator):
            level, left, right = _BINARY[operator]
            sign = operator if operator == "^" else f" {operator} "
            text = _expression(node.left, left) + sign + _expression(node.right, right)
        case ast.Conditional():
            level = _CHOICE
            then, condition = _expression(node.then, _OR), _expression(node.condition, _OR)
            text = f"{then} if {condition} else {_expression(node.otherwise, _CHOICE)}"
    return text if level >= needed else f"({text})"
