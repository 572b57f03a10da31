"""Where a method calls a norm and then an activation on what that returns, and nothing else sees the value.

Known are these, with whatever names, where `self.act` may also be a function such as `F.relu`:

    y = self.act(self.norm(x))

    x = self.norm(x)
    x = self.act(x)

with a sum of two in place of the norm's result, in the call or as statements of their own:

    out = self.norm(out)
    if self.downsample is not None:
        identity = self.downsample(x)
    out += identity
    out = self.act(out)

and with the norm as the last statement of branches:

    if scale is None:
        x = self.norm(x)
    else:
        x = self.norm(x) * scale
    x = self.act(x)

What becomes another call is the norm, the sum and the activation, each at its place: the norm may then be
held until the activation, while what does not concern it happens in between.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple

from normgen.torch.patching.activations import follower
from normgen.torch.patching.sources import Method, resolved
from normgen.torch.patching.syntax import (
    Body,
    attribute_called,
    bodies,
    captured_names,
    is_first,
    is_plain,
    is_quiet,
    mentions,
    name_node,
    own_call,
    own_nodes,
    target_of,
    value_of,
)

HOLD, ADD, ADD_TO, JOIN = "_normgen_hold", "_normgen_add", "_normgen_add_to", "_normgen_join"


@dataclass(frozen=True, slots=True)
class Producer:
    """A call of a norm. `source`: the attribute whose result it is given, where something is computed between
    the norm and the activation; "" where nothing is."""

    call: ast.Call
    norm: str
    source: str


@dataclass(frozen=True, slots=True)
class Sum:
    """The sum between. `holder`: the call or the statement whose value it is, or the list of statements."""

    node: ast.BinOp | ast.AugAssign
    holder: ast.AST | Body


@dataclass(frozen=True, slots=True)
class Joint:
    """A call of an activation with the norms whose result it may be given."""

    call: ast.Call
    activation: str  # an attribute of the module, or a function as it is written
    function: str  # which activation the function is; "" for an attribute
    producers: tuple[Producer, ...]
    sum: Sum | None


class _Value(NamedTuple):
    """What an activation may be computed of: a name or an expression, and the sum of that and something else.
    `end`: the place of the statement that reads it; `between`: whether that statement computes something
    else afterwards."""

    value: ast.expr
    sum: Sum | None
    end: int
    between: bool


def joints(method: Method) -> list[Joint]:
    """All of a method."""
    reader, body = _Reader(method), method.definition.body
    return [joint for inner, loop in bodies(body, False) for joint in reader.joints(inner, loop)]


def join(joint: Joint, norms: set[str]) -> None:
    """Change the syntax of a joint, so that these norms and their activation become one call."""
    for producer in joint.producers:
        if producer.norm in norms:
            call = producer.call
            source = _beside(call.func, producer.source) if producer.source else ast.Constant(None)
            call.args = [call.func, deepcopy(joint.call.func), source, *call.args]
            call.func = name_node(HOLD)
    if joint.sum is not None:
        _join_sum(joint.sum)
    joint.call.args = [joint.call.func, *joint.call.args]
    joint.call.func = name_node(JOIN)


def _beside(attribute: Any, name: str) -> ast.Attribute:
    """Another attribute of the same module."""
    return ast.Attribute(deepcopy(attribute.value), name, ast.Load())


def _join_sum(found: Sum) -> None:
    node, holder = found.node, found.holder
    if isinstance(node, ast.AugAssign):
        assert isinstance(node.target, ast.Name) and isinstance(holder, list)
        value: ast.expr = ast.Call(name_node(ADD_TO), [name_node(node.target.id), node.value], [])
        holder[holder.index(node)] = ast.copy_location(ast.Assign([node.target], value), node)
        return
    value = ast.copy_location(ast.Call(name_node(ADD), [node.left, node.right], []), node)
    if isinstance(holder, ast.Call):
        holder.args[0] = value
    else:
        assert isinstance(holder, (ast.Assign, ast.AnnAssign))
        holder.value = value


class _Reader:
    """A method, while joints are looked for in it."""

    def __init__(self, method: Method) -> None:
        self.definition = method.definition
        self.scope = method.scope
        self.own = method.own
        self.captured = captured_names(method.definition)

    def joints(self, body: Body, loop: bool) -> Iterator[Joint]:
        """Those whose activation is called in a statement of this list. `loop`: whether that is repeated."""
        for at, statement in enumerate(body):
            for call in own_nodes(statement):
                if not isinstance(call, ast.Call) or not (activation := self._activation(call)):
                    continue
                # What is computed in the call itself comes first.
                for each in sorted(
                    _values(call, body, at), key=lambda each: isinstance(each.value, ast.Name)
                ):
                    if not isinstance(each.value, ast.Name):
                        found = self._producer(each.value, each.between) if each.end == at else []
                    elif is_first(call, statement) and self._are_dead(each.value, call, statement, loop):
                        found = self._behind(body, each.end, each.value.id, each.between)
                    else:
                        found = []
                    if found:
                        yield Joint(call, *activation, tuple(found), each.sum)

    def _activation(self, call: ast.Call) -> tuple[str, str] | None:
        """What may be an activation: an attribute of the module, called on one value, or a function that is
        one with the arguments that it has; with which it is, as far as that is known."""
        if name := attribute_called(call, self.own):
            return name, ""
        function = resolved(call.func, self.scope)
        if function is None or not call.args or isinstance(call.args[0], ast.Starred):
            return None
        further = [*call.args[1:], *(each.value for each in call.keywords)]
        if not all(isinstance(each, ast.Constant) for each in further):
            return None
        given = [ast.literal_eval(each) for each in call.args[1:]]
        named: Any = {each.arg: ast.literal_eval(each.value) for each in call.keywords}
        found = follower(function, given, named)
        return None if found is None else (ast.unparse(call.func), found.name)

    def _behind(self, body: Body, end: int, name: str, between: bool) -> list[Producer]:
        """The norms that a name may stand for behind the statements before `end`. `between`: whether
        something is computed since."""
        for at in range(end - 1, -1, -1):
            statement = body[at]
            if target_of(statement) == name:
                before = value_of(body[at - 1]) if at and target_of(body[at - 1]) == name else None
                return self._producer(value_of(statement), between, name, before)
            if not mentions(statement, name):
                if not is_quiet(statement):
                    return []
                between = True
            elif isinstance(statement, ast.If) and not mentions(statement.test, name):
                branches = statement.body, statement.orelse
                return [p for each in branches for p in self._behind(each, len(each), name, between)]
            else:
                return []
        return []

    def _producer(
        self, value: ast.expr | None, between: bool, name: str = "", before: ast.expr | None = None
    ) -> list[Producer]:
        """The norm that a value is. If something is computed `between`, nothing else may have the norm's
        input: a module's result, of a call there, or `before` under the name that the norm's result gets."""
        norm = own_call(value, self.own)
        if norm is None:
            return []
        is_named = isinstance(norm.value, ast.Name) and norm.value.id == name
        source = attribute_called(before if is_named else norm.value, self.own) if between else ""
        return [Producer(norm.call, norm.attribute, source)] if source or not between else []

    def _are_dead(self, value: ast.Name, call: ast.Call, statement: ast.stmt, loop: bool) -> bool:
        """Whether nothing reads a value, or what a call is given, after the statement of the call."""
        names = {value.id, *(node.id for node in call.args if isinstance(node, ast.Name))}
        return all(self._is_dead(name, statement, loop) for name in names)

    def _is_dead(self, name: str, statement: ast.stmt, loop: bool) -> bool:
        """Whether nothing reads a name after a statement that has read it."""
        if name in self.captured:
            return False
        if isinstance(statement, ast.Return) or target_of(statement) == name:
            return True
        end = statement.end_lineno or 0, statement.end_col_offset or 0
        return not loop and not any(
            isinstance(node, ast.Name) and node.id == name and (node.lineno, node.col_offset) > end
            for node in ast.walk(self.definition)
        )


def _values(call: ast.Call, body: Body, at: int) -> Iterator[_Value]:
    """What an activation may be computed of: its argument, the terms of that, and the terms of a sum that the
    statement before gives the argument's name."""
    value = call.args[0]
    yield _Value(value, None, at, False)
    yield from _terms(value, call, at)
    name = value.id if isinstance(value, ast.Name) and at else ""
    match body[at - 1] if name else None:
        case ast.AugAssign(target=ast.Name(id=target), op=ast.Add(), value=other) as node if target == name:
            if not mentions(other, name):
                yield _Value(value, Sum(node, body), at - 1, not is_plain(other))
        case (ast.Assign() | ast.AnnAssign()) as node if target_of(node) == name:
            yield from _terms(node.value, node, at - 1)


def _terms(value: ast.expr | None, holder: ast.AST, at: int) -> Iterator[_Value]:
    """The terms of a sum of two, except a name that the other term reads too; none for another expression."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        left, right = value.left, value.right
        yield from (
            _Value(term, Sum(value, holder), at, between)
            # A name on the right has its value before what is on the left is computed.
            for term, other, between in (
                (left, right, not is_plain(right)),
                (right, left, isinstance(right, ast.Name) and not is_plain(left)),
            )
            if not (isinstance(term, ast.Name) and mentions(other, term.id))
        )
