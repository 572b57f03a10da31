"""`SpreadNorm`: a norm whose axes are spread over ranks, as a pair of callables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import Any

from normgen.devices.executors import executor_of
from normgen.launching.launch import HOST
from normgen.launching.layout import Lengths, is_contiguous, solve
from normgen.locks import new_reentrant_lock
from normgen.package.direction import Direction, directions, result_tuple, tuple_name
from normgen.package.records import ABI, Package
from normgen.package.spread import SpreadRecord
from normgen.runtime.calls.arguments import Arguments, unknown
from normgen.runtime.calls.assemble import Executors, Planner
from normgen.runtime.calls.binding import bind, check_reductions, device_text
from normgen.runtime.calls.look import look
from normgen.runtime.planning.tuned import plan_tuned
from normgen.runtime.ranks.agreement import MOST_AXES, agree
from normgen.runtime.ranks.group import RankCall, Ranks, Simulated, run_alone, run_together
from normgen.runtime.ranks.stages import LocalCall, Stages

# What makes the stages of a direction that give these results: by its name.
Compile = Callable[[str, tuple[str, ...]], SpreadRecord]
_OPTIONS = {"forward": ("save",), "backward": ("wrt", "dtypes")}
_REST = "..."


class SpreadNorm:
    """A compiled norm whose axes are spread over ranks. Each rank has a run of the elements along a spread
    axis, and with them shards of the tensors that have the axis; other tensors are the same on all ranks.

    `forward` and `backward` take and return the arrays of this rank, and all ranks call them in the same
    order. With `Simulated` ranks they take and return lists, an array for each rank; an operand that is the
    same on all ranks may be one array. Arrays are on the host.

    Runs may be of different lengths, or empty. Results without a spread axis have the same bits on all ranks.
    A gradient that is a sum over a spread axis is left as the part that this rank adds to it: `placements`
    tells.
    """

    def __init__(
        self,
        package: Package,
        shard: Mapping[str, Ranks | Simulated],
        compiled: Compile,
        *,
        whole: tuple[str, ...] = (),
        executors: Executors = executor_of,
        planner: Planner = plan_tuned,
    ) -> None:
        """`package`: what calls take and return, without kernels; `compiled`: makes those, with these
        gradients `whole`."""
        self.package = package
        self.axes = tuple(shard)
        self.ranks = _ranks(shard)
        self.whole = whole
        found = [each for each in directions(package) if each is not None]
        gradients = [record.source for record in found[-1].results.values() if record.role == "gradient"]
        for name in whole:
            if name not in gradients:
                known = ", ".join(gradients) or "none"
                raise ValueError(f"whole: {package.name} has no gradient by {name!r}; it has {known}")
        self._directions = {each.name: _Direction(each, self, compiled, executors, planner) for each in found}
        outputs = [n for n, r in found[0].results.items() if r.role != "save"]
        self._outputs = result_tuple(tuple_name(package.name, "outputs"), tuple(outputs))

    @property
    def name(self) -> str:
        """The name that the spec gives the norm."""
        return self.package.name

    @property
    def placements(self) -> dict[str, str]:
        """Of each result of either direction whether a rank has a "shard", the "whole" or a "part" of the
        sum over ranks; of each state that is updated as `update:<state>`."""
        return {name: kind for each in self._directions.values() for name, kind in each.placements.items()}

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        """`forward` without its saves: the output, or a named tuple of several."""
        made = self.forward(*arrays, save=False, **named)
        found = [getattr(made, name) for name in self._outputs._fields]
        return found[0] if len(found) == 1 else self._outputs._make(found)

    def forward(self, *arrays: Any, save: bool = True, **named: Any) -> Any:
        """Outputs, then saves, as a named tuple. Operands and attrs as in the norm's own `forward`.

        Raises what that raises; ValueError where ranks make different calls, which names one that does;
        `PeerFault` where another rank cannot make its call.
        """
        return self._call("forward", arrays, {**named, "save": save})

    def backward(
        self,
        *arrays: Any,
        wrt: str | Iterable[str] | None = None,
        dtypes: Mapping[str, str] | None = None,
        **named: Any,
    ) -> Any:
        """Gradients as a named tuple. Operands, `wrt` and `dtypes` as in the norm's own `backward`; the
        cotangent of a whole result is the same on all ranks. Raises what `forward` does."""
        if "backward" not in self._directions:
            raise ValueError(f"{self.name} has no backward: no output of it can be differentiated")
        return self._call("backward", arrays, {**named, "wrt": wrt, "dtypes": dtypes})

    def _call(self, name: str, arrays: tuple[Any, ...], named: dict[str, Any]) -> Any:
        direction = self._directions[name]
        if not isinstance(self.ranks, Simulated):
            return run_alone(direction.call(arrays, named), self.ranks)
        calls = [
            direction.call(tuple(given), by_name)
            for given, by_name in _per_rank(direction.direction, self.ranks, arrays, named)
        ]
        every = run_together(calls)
        lists = (None if column[0] is None else list(column) for column in zip(*every, strict=True))
        return type(every[0])._make(lists)

    def __repr__(self) -> str:
        where = ", ".join(self.axes)
        return f"<{self.name} with {where} spread over {self.ranks.size} ranks>"


class _Direction:
    """One direction: its stages, and what ranks must agree on before they run them."""

    def __init__(
        self,
        direction: Direction,
        norm: SpreadNorm,
        compiled: Compile,
        executors: Executors,
        planner: Planner,
    ) -> None:
        self.norm = norm
        self._compiled = partial(compiled, direction.name)
        self._around = executors, planner
        self._lock = new_reentrant_lock()
        self._made: dict[tuple[str, ...], Stages] = {}
        self._tuple = result_tuple(direction.result_type, tuple(direction.results))
        self.placements = dict(self._stages(tuple(direction.results)).record.placements)
        updated = (name.partition(":") for name in self.placements)
        self.whole = replace(direction, updated=frozenset(state for _, colon, state in updated if colon))
        # A rank may have no elements along a spread axis, where all ranks together have some.
        reduced = tuple(axis for axis in direction.record.reduced if axis not in norm.axes)
        self.direction = replace(self.whole, record=replace(direction.record, reduced=reduced))
        self.arguments = Arguments(norm.package, self.direction)
        self.title = f"{direction.norm} over {', '.join(norm.axes)}"

    def _stages(self, wanted: tuple[str, ...]) -> Stages:
        """The stages that give these results."""
        with self._lock:
            if wanted not in self._made:
                self._made[wanted] = Stages(self._compiled(wanted), *self._around)
            return self._made[wanted]

    def _stages_of(self, call: LocalCall) -> Stages:
        # Saves that are not wanted change nothing about what is exchanged.
        every = self.direction.name == "forward" or call.idle
        return self._stages(tuple(self.direction.results if every else call.results))

    def call(self, arrays: tuple[Any, ...], named: Mapping[str, Any]) -> RankCall:
        """The call of one rank."""
        local: LocalCall | None = None
        fault: Exception | None = None
        meant: Mapping[str, str] = {}
        lengths: list[int] = []
        try:
            local = self._asked(arrays, named)
            stages = self._stages_of(local)
            meant, lengths = self._meant(local), [local.lengths.axes[axis] for axis in self.norm.axes]
        except Exception as raised:
            fault = raised
        every = yield from agree(self.title, meant, lengths, fault)
        assert local is not None, "agree raises a fault"
        along = dict(zip(self.norm.axes, every.T, strict=True))
        totals = {axis: int(lengths.sum()) for axis, lengths in along.items()}
        check_reductions(self.whole, Lengths({**local.lengths.axes, **totals}, local.lengths.rest))
        made = local.zeros() if local.idle else (yield from stages.run(local, along))
        return self._tuple._make([made.get(name) for name in self.direction.results])

    def _asked(self, arrays: tuple[Any, ...], named: Mapping[str, Any]) -> LocalCall:
        """The call, checked as far as this rank can."""
        self._check_options(named)
        request = self.arguments.request(arrays, named)
        seen = look(self.direction, request)
        if seen.device != HOST:
            raise TypeError(
                f"{seen.like} is on {device_text(seen.device)}, and a norm that is spread over ranks takes "
                f"arrays on the host"
            )
        bound = bind(self.direction, seen.views, {}, request.wanted, False, dict(request.types))
        shapes = [(self.direction.operands[name], view.shape) for name, view in seen.views.items()]
        lengths = solve(shapes, self.direction.axes)
        for name in self.whole.updated & seen.views.keys():
            if not is_contiguous(seen.views[name].shape, seen.views[name].strides):
                raise ValueError(f"state {name} is updated in place, so it must be contiguous")
        for axis in self.norm.axes:
            if axis not in lengths.axes:
                raise ValueError(f"the length of {axis} is unknown: no given array determines it")
        return LocalCall(
            operands={name: request.operands.get(name) for name in self.direction.operands},
            numbers=request.numbers,
            like=seen.views[seen.like],
            lengths=lengths,
            results={name: (shape, dtype) for name, shape, dtype in bound.results},
            types={**{name: view.dtype for name, view in seen.views.items()}, **dict(request.types)},
            idle=bound.idle,
        )

    def _check_options(self, named: Mapping[str, Any]) -> None:
        others = {option.name for option in self.direction.options} - set(_OPTIONS[self.direction.name])
        for name in named:
            if name in others:
                known = [*self.direction.operands, *_OPTIONS[self.direction.name]]
                raise unknown(f"{self.direction.text}()", name, known)

    def _meant(self, call: LocalCall) -> dict[str, str]:
        """What all ranks must mean alike, in words by topic."""
        package = self.norm.package
        folded = "".join(f", {name} = {value}" for name, value in package.folded)
        given = [name for name, array in call.operands.items() if array is not None]
        text = blake2b(package.spec.encode(), digest_size=4).hexdigest()
        found = {
            "norm": f"loads {self.title}{folded}",
            "whole": f"has gradients whole by {', '.join(self.norm.whole) or 'nothing'}",
            "text": f"loads the text {text} of {package.name}",
            "runtime": f"runs normgen with ABI {ABI}",
            "direction": f"calls {self.direction.name}",
            "operands": f"gives {', '.join(given)}",
        }
        if self.direction.name == "backward":  # saves that are left out change nothing for others
            found["results"] = f"asks for {' and '.join(call.results) or 'nothing'}"
        for axis, length in call.lengths.axes.items():
            if axis not in self.norm.axes:
                found[f"length of {axis}"] = f"has {_length_text(axis, length)}"
        for name in given:
            found[f"type of {name}"] = f"has {name} in {call.types[name]}"
        return {**found, **{name: f"has {name} = {value!r}" for name, value in call.numbers.items()}}


def _length_text(axis: str, length: int) -> str:
    return f"{length} rows" if axis == _REST else f"{axis} = {length}"


def _ranks(shard: Mapping[str, Any]) -> Any:
    """The one group of ranks that the axes are spread over."""
    if not shard:
        raise ValueError("shard names no axis: write shard={'D': ranks}")
    if len(shard) > MOST_AXES:
        raise ValueError(f"shard names {len(shard)} axes: spread {MOST_AXES} at most")
    (first, ranks), *others = shard.items()
    for axis, group in shard.items():
        if not isinstance(group, Simulated) and not all(
            hasattr(group, n) for n in ("rank", "size", "gather")
        ):
            kind = type(group).__name__
            raise TypeError(
                f"shard: {axis} is spread over a {kind}: give normgen.Simulated(n), or an object with rank, "
                f"size and gather(array)"
            )
    for axis, group in others:
        if group is not ranks and group != ranks:
            raise ValueError(f"{first} and {axis} are spread over different ranks: spread one of them")
    return ranks


def _per_rank(
    direction: Direction, ranks: Simulated, arrays: tuple[Any, ...], named: Mapping[str, Any]
) -> list[tuple[list[Any], dict[str, Any]]]:
    """The arguments of each simulated rank."""

    def of(name: str, value: Any, rank: int) -> Any:
        if isinstance(value, (list, tuple)):
            if len(value) != ranks.size:
                raise ValueError(f"{name} has {len(value)} arrays, and there are {ranks.size} ranks")
            return value[rank]
        if name in direction.updated and value is not None:
            raise TypeError(f"{name} is updated on each rank: give a list, with an array for each")
        return value

    placed = [*direction.reads, *(f"argument {k}" for k in range(len(direction.reads), len(arrays)))]
    operands = direction.operands
    return [
        (
            [of(name, value, rank) for name, value in zip(placed, arrays, strict=False)],
            {name: of(name, value, rank) if name in operands else value for name, value in named.items()},
        )
        for rank in range(ranks.size)
    ]
