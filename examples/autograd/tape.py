"""The tape: a graph of operations, and its backward traversal.

Nothing here depends on norms or operators: nodes have a `pull`, leaves accumulate their gradients.

One rule makes sharing safe: the receiver of a cotangent owns it. A pull may overwrite its cotangents, may
pass each on to one edge, and allocates everything else. So sums are computed in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from normgen.locks import new_reentrant_lock

from .arithmetic import gather

Array = Any
# The cotangents of a node's results (None: zero), and what each edge has gathered so far, to the gradients
# of its edges. A pull may add to what was gathered, in place, and returns that very array then.
Pull = Callable[[Sequence[Array | None], Sequence[Array | None]], Sequence[Array | None]]

# Whether operations are recorded. A context variable, because a block must reach every operation that is
# called inside of it, by whoever, and no other thread or task: an argument to every operator cannot be had.
_recording: ContextVar[bool] = ContextVar("autograd.recording", default=True)
# Walks are one at a time, so that threads whose graphs share leaves lose no gradient.
_walking = new_reentrant_lock()


def recording() -> bool:
    """Whether operations are recorded here and now."""
    return _recording.get()


@contextmanager
def no_grad() -> Iterator[None]:
    """A context manager and decorator that records nothing: no result requires grad.

    It applies only to the current thread or task.
    """
    token = _recording.set(False)
    try:
        yield
    finally:
        _recording.reset(token)


@dataclass(slots=True, eq=False)
class Version:
    """How often the memory of some tensors that share it was written."""

    writes: int = 0


class Kept(NamedTuple):
    """A tensor's memory that a pull will read: what it is called, and how often it was written until then."""

    name: str
    version: Version
    writes: int

    @classmethod
    def now(cls, name: str, version: Version) -> Kept:
        """The memory as it is at this moment."""
        return cls(name, version, version.writes)


class Leaf(Protocol):
    """A tensor that nothing was computed for: where a walk ends."""

    @property
    def gathered(self) -> Array | None: ...

    def gather(self, term: Array) -> None:
        """Add to the gradient, owning `term`."""


@dataclass(slots=True, eq=False)
class Node:
    """One operation. `edges`: where the gradient of each differentiable operand goes, None where none is
    wanted. `pull` is None once the node is freed."""

    name: str
    edges: tuple[Leaf | Output | None, ...]
    results: int
    pull: Pull | None
    kept: tuple[Kept, ...] = ()

    def free(self) -> None:
        """Let go of all that was kept, and of the nodes before."""
        self.pull, self.edges, self.kept = None, (), ()


class Output(NamedTuple):
    """One result of a node."""

    node: Node
    position: int


def walk(root: Leaf | Output, cotangent: Array, retain_graph: bool) -> None:
    """Propagate a cotangent, which this owns, from a result to every leaf that it was computed from.

    RuntimeError, before any gradient changes, if a node was freed or an array that it kept was written.
    """
    with _walking:
        if not isinstance(root, Output):
            root.gather(cotangent)
            return
        uses = _uses(root.node)
        for node in uses:
            _check(node)
        gathered: dict[Node, list[Array | None]] = {node: [None] * node.results for node in uses}
        gathered[root.node][root.position] = cotangent
        ready = [root.node]
        while ready:
            node = ready.pop()
            cotangents = gathered.pop(node)
            if any(each is not None for each in cotangents):
                _pull(node, cotangents, gathered)
            for edge in node.edges:
                if isinstance(edge, Output):
                    uses[edge.node] -= 1
                    if not uses[edge.node]:
                        ready.append(edge.node)
            if not retain_graph:
                node.free()


def _uses(root: Node) -> dict[Node, int]:
    """Every node that a walk from here meets, with the number of edges that lead to it."""
    uses = {root: 0}
    waiting = [root]
    while waiting:
        for edge in waiting.pop().edges:
            if isinstance(edge, Output):
                if edge.node not in uses:
                    uses[edge.node] = 0
                    waiting.append(edge.node)
                uses[edge.node] += 1
    return uses


def _check(node: Node) -> None:
    if node.pull is None:
        raise RuntimeError(
            f"an earlier backward() freed this graph (at {node.name}): pass retain_graph=True to it"
        )
    for name, version, writes in node.kept:
        if version.writes != writes:
            raise RuntimeError(
                f"{name} was changed in place after {node.name} saved it for the backward: "
                "change it after backward(), or change a copy"
            )


def _pull(node: Node, cotangents: list[Array | None], gathered: dict[Node, list[Array | None]]) -> None:
    """Hand the gradients of one node to its edges."""
    assert node.pull is not None
    sums = [_gathered(edge, gathered) for edge in node.edges]
    made = node.pull(cotangents, sums)
    for edge, term, known in zip(node.edges, made, sums, strict=True):
        if edge is None or term is None or term is known:
            continue
        if isinstance(edge, Output):
            terms = gathered[edge.node]
            before = terms[edge.position]
            terms[edge.position] = term if before is None else gather(before, term)
        else:
            edge.gather(term)


def _gathered(edge: Leaf | Output | None, gathered: dict[Node, list[Array | None]]) -> Array | None:
    if isinstance(edge, Output):
        return gathered[edge.node][edge.position]
    return None if edge is None else edge.gathered
