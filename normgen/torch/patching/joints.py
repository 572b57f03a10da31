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
from dataclasses import dataclass

from normgen.torch.patching.activations import follower
from normgen.torch.patching.sources import Method, resolved
from normgen.torch.patching.syntax import (
    Body,
    attribute_called,
    attribute_node,
    bodies,
    captured_names,
    copied,
    end_of,
    giver,
    is_first,
    is_plain,
    is_quiet,
    mentions,
    name_node,
    own_call,
    own_nodes,
    place,
    target_of,
    terms,
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


def joints(method: Method) -> list[Joint]:
    """All of a method."""
    reader, body = _Reader(method), method.definition.body
    return [joint for inner, loop in bodies(body, False) for joint in reader.joints(inner, loop)]


def join(joint: Joint, norms: set[str]) -> None:
    """Change the syntax of a joint, so that these norms and their activation become one call."""
    chosen = [each for each in joint.producers if each.norm in norms]
    for producer in chosen:
        call = producer.call
        source = _beside(call.func, producer.source) if producer.source else ast.Constant(None)
        call.args = [call.func, copied(joint.call.func), source, *call.args]
        call.func = name_node(HOLD)
    if joint.sum is not None:
        _join_sum(joint.sum)
    joint.call.args = [joint.call.func, *joint.call.args]
    joint.call.func = name_node(JOIN)


def _beside(attribute: ast.expr, name: str) -> ast.Attribute:
    """Another attribute of the same module."""
    assert isinstance(attribute, ast.Attribute) and isinstance(attribute.value, ast.Name)
    return attribute_node(attribute.value.id, name)


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
        for k, statement in enumerate(body):
            for node in own_nodes(statement):
                if isinstance(node, ast.Call) and (name := self._activation(node)):
                    yield from self._nested(node, name)
                    if is_first(node, statement):
                        yield from self._later(node, name, body, k, loop)

    def _activation(self, call: ast.Call) -> tuple[str, str] | None:
        """What may be an activation: an attribute of the module, called on one value, or a function that is
        one with the arguments that it has; with which it is, as far as that is known."""
        if name := attribute_called(call, self.own):
            return name, ""
        function = resolved(call.func, self.scope)
        if function is None or not call.args or any(isinstance(each, ast.Starred) for each in call.args):
            return None
        further = [*call.args[1:], *(each.value for each in call.keywords)]
        if not all(isinstance(each, ast.Constant) for each in further):
            return None
        given = [each.value for each in call.args[1:] if isinstance(each, ast.Constant)]
        named = {k.arg: k.value.value for k in call.keywords if k.arg and isinstance(k.value, ast.Constant)}
        found = follower(function, given, named) if len(named) == len(call.keywords) else None
        return None if found is None else (ast.unparse(call.func), found.name)

    def _nested(self, call: ast.Call, activation: tuple[str, str]) -> Iterator[Joint]:
        """`act(self.norm(x))`, `act(self.norm(x) + residual)`, `act(residual + self.norm(x))`."""
        value = call.args[0]
        if (norm := own_call(value, self.own)) is not None:
            yield Joint(call, *activation, (Producer(norm.call, norm.attribute, ""),), None)
        for term in terms(value):
            norm = own_call(term.value, self.own)
            source = attribute_called(norm.value, self.own) if norm is not None and term.after else ""
            if norm is not None and (source or not term.after):
                producer = Producer(norm.call, norm.attribute, source)
                yield Joint(call, *activation, (producer,), Sum(term.sum, call))

    def _later(
        self, call: ast.Call, activation: tuple[str, str], body: Body, at: int, loop: bool
    ) -> Iterator[Joint]:
        """A call on a name that earlier statements gave a norm, or the sum of one and something else."""
        for name, found, begin, between in self._values(call, body, at):
            producers = self._producers(body, begin, name, between)
            read = {name, *(node.id for node in call.args if isinstance(node, ast.Name))}
            if producers and all(self._is_dead(each, body[at], loop) for each in read):
                yield Joint(call, *activation, tuple(producers), found)

    def _values(self, call: ast.Call, body: Body, at: int) -> Iterator[tuple[str, Sum | None, int, bool]]:
        """What an activation is called on: a name, the sum that is made of it, the statement before which the
        name has its value, and whether something is computed after that is read."""
        value = call.args[0]
        if isinstance(value, ast.Name):
            yield value.id, None, at, False
            yield from self._sums(body, at, value.id)
        yield from self._added(value, call, at)

    def _sums(self, body: Body, at: int, name: str) -> Iterator[tuple[str, Sum | None, int, bool]]:
        """The statement before, where it gives a name the sum of a name and something else."""
        match body[at - 1] if at else None:
            case ast.AugAssign(target=ast.Name(id=target), op=ast.Add(), value=value) as node if (
                target == name and not mentions(value, name)
            ):
                yield name, Sum(node, body), at - 1, not is_plain(value)
            case (ast.Assign() | ast.AnnAssign()) as node if target_of(node) == name:
                yield from self._added(node.value, node, at - 1)

    def _added(
        self, value: ast.expr | None, holder: ast.AST, at: int
    ) -> Iterator[tuple[str, Sum | None, int, bool]]:
        """The names that a sum adds something else to."""
        for term in terms(value):
            if isinstance(term.value, ast.Name) and not mentions(term.other, term.value.id):
                yield term.value.id, Sum(term.sum, holder), at, term.after

    def _producers(self, body: Body, end: int, name: str, between: bool) -> list[Producer]:
        """The norms that a name may stand for behind the statements before `end`. `between`: whether
        something is computed since."""
        for k in range(end - 1, -1, -1):
            statement = body[k]
            if target_of(statement) == name:
                norm = own_call(value_of(statement), self.own)
                source = giver(body, k, norm.value, name, self.own) if norm is not None and between else ""
                held = norm is not None and (source or not between)
                return [Producer(norm.call, norm.attribute, source)] if norm is not None and held else []
            if not mentions(statement, name):
                if not is_quiet(statement):
                    return []
                between = True
            elif isinstance(statement, ast.If) and not mentions(statement.test, name):
                branches = statement.body, statement.orelse
                return [p for each in branches for p in self._producers(each, len(each), name, between)]
            else:
                return []
        return []

    def _is_dead(self, name: str, statement: ast.stmt, loop: bool) -> bool:
        """Whether nothing reads a name after a statement that has read it."""
        if name in self.captured:
            return False
        if isinstance(statement, ast.Return) or target_of(statement) == name:
            return True
        return not loop and not any(
            isinstance(node, ast.Name) and node.id == name and place(node) > end_of(statement)
            for node in ast.walk(self.definition)
        )
