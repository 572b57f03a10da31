"""Questions about statements and expressions of Python."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

Body = list[ast.stmt]


def bodies(body: Body, loop: bool) -> Iterator[tuple[Body, bool]]:
    """Lists of statements that run one after the other, and whether each is repeated. What exceptions may
    leave early is not among them."""
    yield body, loop
    for statement in body:
        for inner, repeated in inner_bodies(statement):
            yield from bodies(inner, loop or repeated)


def inner_bodies(statement: ast.stmt) -> Iterator[tuple[Body, bool]]:
    """Those within a statement, and whether it repeats them."""
    if isinstance(statement, (ast.If, ast.With, ast.For, ast.While)):
        yield statement.body, isinstance(statement, (ast.For, ast.While))
        yield getattr(statement, "orelse", []), False


_BLOCKS = (ast.stmt, ast.ExceptHandler, ast.match_case, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def own_nodes(statement: ast.stmt) -> Iterator[ast.AST]:
    """The expressions of a statement, without those of statements and functions within it."""
    waiting: list[ast.AST] = [] if isinstance(statement, (ast.FunctionDef, ast.ClassDef)) else [statement]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += [each for each in ast.iter_child_nodes(node) if not isinstance(each, _BLOCKS)]


def looks_at_names(definition: ast.FunctionDef) -> bool:
    """Whether a method shares its names with others, or asks for them at run time."""
    return any(
        isinstance(node, (ast.Global, ast.Nonlocal))
        or (isinstance(node, ast.Name) and node.id in ("locals", "vars", "eval", "exec"))
        for node in ast.walk(definition)
    )


def captured_names(definition: ast.FunctionDef) -> set[str]:
    """The names in functions within a method."""
    inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, *_COMPREHENSIONS)
    within = (node for node in ast.walk(definition) if isinstance(node, inner) and node is not definition)
    return {each.id for node in within for each in ast.walk(node) if isinstance(each, ast.Name)}


class OwnCall(NamedTuple):
    """A call of an attribute of the module on one value and nothing else."""

    call: ast.Call
    attribute: str
    value: ast.expr


def own_call(value: ast.AST | None, own: str) -> OwnCall | None:
    """What such a call consists of; None where it is none. `own`: the name of the module."""
    match value:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr), args=[arg], keywords=[]):
            return None if isinstance(arg, ast.Starred) or name != own else OwnCall(value, attr, arg)
    return None


def attribute_called(value: ast.expr | None, own: str) -> str:
    """The attribute of the module whose call a value is; "" where it is none."""
    found = own_call(value, own)
    return "" if found is None else found.attribute


def target_of(statement: ast.stmt) -> str:
    """The one name that a statement gives a value."""
    match statement:
        case (
            ast.Assign(targets=[ast.Name(id=name)])
            | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr())
        ):
            return name
    return ""


def value_of(statement: ast.stmt) -> ast.expr | None:
    """What a statement computes before it does anything with it."""
    match statement:
        case (
            ast.Assign(value=value)
            | ast.AnnAssign(value=value)
            | ast.AugAssign(target=ast.Name(), value=value)
            | ast.Return(value=value)
            | ast.Expr(value=value)
        ):
            return value
    return None


def is_plain(value: ast.expr) -> bool:
    """Whether it is there without being computed."""
    return isinstance(value, (ast.Name, ast.Constant))


def is_quiet(statement: ast.stmt) -> bool:
    """Whether a statement only gives names other values, or does so where a condition holds."""
    if isinstance(statement, ast.If):
        return all(is_quiet(each) for each in (*statement.body, *statement.orelse))
    return isinstance(statement, ast.Pass) or bool(target_of(statement))


def is_first(call: ast.Call, statement: ast.stmt) -> bool:
    """Whether a call is what a statement computes first, and all that comes later is done to its result."""
    if not isinstance(statement, ast.Return) and not target_of(statement):
        return False
    value = value_of(statement)
    while isinstance(value, ast.Call) and value is not call:
        plain = (
            len(value.args) == 1 and not value.keywords and isinstance(value.func, (ast.Name, ast.Attribute))
        )
        value = value.args[0] if plain else None
    return value is call


# What Python computes before an expression, in this order. Others are taken to come first themselves.
_BEFORE: dict[type[ast.AST], tuple[str, ...]] = {
    ast.Attribute: ("value",),
    ast.BinOp: ("left", "right"),
    ast.Call: ("func", "args", "keywords"),
    ast.Starred: ("value",),
    ast.Subscript: ("value", "slice"),
    ast.Tuple: ("elts",),
    ast.UnaryOp: ("operand",),
    ast.keyword: ("value",),
}
_READ = (ast.Name, ast.Constant, ast.Attribute, ast.Tuple, ast.keyword)


def first_computed(value: ast.AST | None) -> ast.AST | None:
    """What Python computes first for a value: names and attributes are only read. None where that is all."""
    if value is None:
        return None
    for field in _BEFORE.get(type(value), ()):
        parts = getattr(value, field)
        for part in parts if isinstance(parts, list) else [parts]:
            if (found := first_computed(part)) is not None:
                return found
    return None if isinstance(value, _READ) else value


def mentions(node: ast.AST, name: str) -> bool:
    return any(isinstance(each, ast.Name) and each.id == name for each in ast.walk(node))


def stores(node: ast.AST, name: str) -> bool:
    """Whether a name gets another value, or loses its own."""
    return any(
        isinstance(each, ast.Name) and each.id == name and not isinstance(each.ctx, ast.Load)
        for each in ast.walk(node)
    )


def name_node(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())
