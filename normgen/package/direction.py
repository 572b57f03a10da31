"""The arguments and results of a direction of a norm: the tables that calls and generated modules share."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from normgen.package.records import AxisRecord, Package, PassRecord, Strategy, TensorRecord


class Option(NamedTuple):
    """A keyword argument of a call, other than operands and float attrs."""

    name: str
    type: str  # as a signature writes it
    doc: str
    default: object = None


_ARRAYS = "Mapping[str, Array] | None"
_SHARED = (
    Option("out", _ARRAYS, "arrays to write, by result name: contiguous, without overlap"),
    Option(
        "stream",
        "object",
        "for device arrays: a stream handle or object; by default the caller's current stream",
    ),
    Option(
        "workspace", _ARRAYS, "scratch arrays as `NORM.workspace` lists them; allocated and kept by default"
    ),
    Option("sm_count", "int | None", "multiprocessors to plan for, as in `NORM.workspace`; by default all"),
)
_SAVE = Option("save", "bool", "False omits the saves: they are None", True)
_WRT = Option(
    "wrt",
    "str | Iterable[str] | None",
    "the names to differentiate with respect to, by default all; the other gradients are None",
)
_ACCUMULATE = Option("accumulate", "bool", "add the gradients of params to those in `out`", False)
_DTYPES = Option(
    "dtypes", "Mapping[str, str] | None", "element types of omitted operands, and so of their gradients"
)
# By direction, in the order of its signature.
OPTIONS = {"forward": (_SAVE, *_SHARED), "backward": (_WRT, _ACCUMULATE, _DTYPES, *_SHARED)}


@dataclass(frozen=True, slots=True)
class Direction:
    """The forward or the backward pass of a norm: its record, with the tables that a call looks things up
    in."""

    name: str  # forward or backward
    norm: str
    record: PassRecord
    axes: tuple[AxisRecord, ...]
    reads: tuple[str, ...]  # the operands that go by position
    operands: dict[str, TensorRecord]  # all that may be given: what it reads, then what it merely tolerates
    results: dict[str, TensorRecord]  # in the order in which they are returned
    required: frozenset[str]  # operands that a call must give
    mentioned: frozenset[str]  # cotangents: they may be None, but must be said to be
    params: frozenset[str]
    updated: frozenset[str]  # states that it writes
    declared: dict[str, TensorRecord]  # every tensor of the forward

    @property
    def options(self) -> tuple[Option, ...]:
        """The keyword arguments of a call, other than operands and float attrs."""
        return OPTIONS[self.name]

    @property
    def result_type(self) -> str:
        """The name of the named tuple of its results: `RmsForward`."""
        return tuple_name(self.norm, self.name)

    @property
    def text(self) -> str:
        """Its name in messages: `rms.forward`."""
        return f"{self.norm}.{self.name}"

    @property
    def defaulted(self) -> frozenset[str]:
        """Operands with a default in the signature: optional operands and, as Python requires, all operands
        that are read after them. The call itself then checks those that are required."""
        optional = [name for name in self.reads if name not in self.required | self.mentioned]
        return frozenset(self.reads[self.reads.index(optional[0]) :] if optional else ())

    def accumulates(self, result: str) -> bool:
        """Whether `accumulate=True` adds to this result: it is the gradient of a param."""
        record = self.results[result]
        return record.role == "gradient" and record.source in self.params


def tuple_name(norm: str, what: str) -> str:
    """The name of a type of named tuples, in the manner of classes."""
    return "".join(part[:1].upper() + part[1:] for part in (*norm.split("_"), what))


@lru_cache(maxsize=4096)
def result_tuple(name: str, fields: tuple[str, ...]) -> Any:
    """A type of named tuples, the same for the same name and fields. Its values are copied and pickled,
    though no module has the type."""
    made: Any = namedtuple(name, fields)  # type: ignore[misc]
    made.__reduce__ = _reduced  # type: ignore[method-assign]
    return made


def _reduced(self: Any) -> Any:
    return _restored, (type(self).__name__, self._fields, tuple(self))


def _restored(name: str, fields: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    return result_tuple(name, fields)._make(values)


def directions(package: Package) -> tuple[Direction, Direction | None]:
    """The forward pass of a package, and the backward pass if it has one."""
    forward, backward = package.forward, package.backward
    # Whatever the forward was given or returned may be passed along to the backward: callers need not know
    # what the derivative reads.
    tolerated = (*forward.reads, *forward.writes)
    return (
        _direction("forward", forward, package, tolerated=()),
        _direction("backward", backward, package, tolerated) if backward is not None else None,
    )


def _ends(strategy: Strategy) -> dict[str, set[str]]:
    """For everything that kernels read the results of the pass that are made of it."""
    temporaries = {tensor.name for tensor in strategy.temporaries}
    found: dict[str, set[str]] = {}
    for kernel in reversed(strategy.kernels):
        for operand in (*kernel.reads, *kernel.final_reads):
            ends = found.setdefault(operand.tensor, set())
            for name in operand.wanted_by:
                ends |= found.get(name, set()) if name in temporaries else {name}
    return found


def _required(record: PassRecord, states: set[str]) -> frozenset[str]:
    """What a call may not leave out. A state may be that only its own update reads."""
    needed = {name for way in record.strategies for name, ends in _ends(way).items() if ends - states}
    return frozenset(
        tensor.name
        for tensor in record.reads
        if tensor.role in ("input", "saved")
        or (tensor.role == "param" and tensor.default is None)
        or (tensor.role == "state" and tensor.name in needed)
    )


def _direction(
    name: str, record: PassRecord, package: Package, tolerated: tuple[TensorRecord, ...]
) -> Direction:
    reads = {tensor.name: tensor for tensor in record.reads}
    states = {tensor.name for tensor in record.reads if tensor.role == "state"}
    stored = {operand.tensor for kernel in record.kernels for operand in (*kernel.writes, *kernel.finals)}
    saves_last = sorted(record.writes, key=lambda tensor: tensor.role == "save")
    return Direction(
        name=name,
        norm=package.name,
        record=record,
        axes=package.axes,
        reads=tuple(reads),
        operands=reads | {tensor.name: tensor for tensor in tolerated if tensor.name not in reads},
        results={tensor.name: tensor for tensor in saves_last if tensor.name not in states},
        required=_required(record, states),
        mentioned=frozenset(tensor.name for tensor in record.reads if tensor.role == "cotangent"),
        params=frozenset(tensor.name for tensor in package.forward.reads if tensor.role == "param"),
        updated=frozenset(states & stored),
        declared={t.name: t for t in (*package.forward.reads, *package.forward.writes)},
    )
