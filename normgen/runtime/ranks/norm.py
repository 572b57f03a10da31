"""`SpreadNorm`: a norm whose axes are sharded over ranks, as a pair of callables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from normgen.counting import counted
from normgen.devices.executors import executor_of
from normgen.package.direction import Direction, directions, result_tuple, tuple_name
from normgen.package.records import Package
from normgen.runtime.calls.arguments import Request, unknown
from normgen.runtime.calls.assemble import Executors
from normgen.runtime.planning.tuned import plan_tuned
from normgen.runtime.ranks.direction import Compile, Grouped, SpreadDirection
from normgen.runtime.ranks.group import RankCall, Simulated, run_alone, run_together
from normgen.runtime.ranks.steps import Memory, by_kernels

_OPTIONS = {"forward": ("save",), "backward": ("wrt", "dtypes")}
_HOST = Memory()


class SpreadNorm:
    """A compiled norm whose axes are sharded over ranks. Each rank has a contiguous range of a sharded axis,
    and with it shards of the tensors that have the axis. Other tensors are the same on all ranks.

    `forward` and `backward` take and return the arrays of this rank. All ranks call them in the same order.
    With `Simulated` ranks they take and return lists, with an array for each rank; an operand that is the
    same on all ranks may be one array. Arrays are on the host.

    Ranges may have different lengths, or be empty. Results without a sharded axis have the same bits on all
    ranks. Each rank has only its part of a gradient that is a sum over a sharded axis: see `placements`.
    """

    def __init__(
        self,
        package: Package,
        axes: tuple[str, ...],
        ranks: Any,
        compiled: Compile,
        *,
        whole: tuple[str, ...] = (),
        grouped: Grouped | None = None,
        executors: Executors = executor_of,
    ) -> None:
        """`package`: what calls of a rank take and return, without kernels; `axes`: that are sharded over
        `ranks`; `compiled`: makes the kernels, with these gradients `whole`; `grouped`: the dimensions that
        are two axes, where these are spread."""
        self.package = package
        self.axes = axes
        self.ranks = ranks
        self.whole = whole
        self.grouped = grouped
        found = [each for each in directions(package) if each is not None]
        gradients = [record.source for record in found[-1].results.values() if record.role == "gradient"]
        for name in whole:
            if name not in gradients:
                known = ", ".join(gradients) or "none"
                raise ValueError(
                    f"whole: {package.name} has no gradient with respect to {name!r}; it has {known}"
                )
        self.directions = {
            each.name: SpreadDirection(
                package, each, axes, grouped, whole, compiled, by_kernels(executors, plan_tuned)
            )
            for each in found
        }
        outputs = [n for n, r in found[0].results.items() if r.role != "save"]
        self._outputs = result_tuple(tuple_name(package.name, "outputs"), tuple(outputs))

    @property
    def name(self) -> str:
        """The name that the spec gives the norm."""
        return self.package.name

    @property
    def placements(self) -> dict[str, str]:
        """For each result of both directions, whether a rank has a "shard", the "whole", or a "part" of the
        sum over ranks. Updated states are named `update:<state>`."""
        return {name: kind for each in self.directions.values() for name, kind in each.placements.items()}

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        """Run `forward` without saves. Returns the output, or a named tuple of several."""
        made = self.forward(*arrays, save=False, **named)
        found = [getattr(made, name) for name in self._outputs._fields]
        return found[0] if len(found) == 1 else self._outputs._make(found)

    def forward(self, *arrays: Any, save: bool = True, **named: Any) -> Any:
        """Run the forward. Returns outputs, then saves, as a named tuple. Arguments as in `Norm.forward`.

        Raises the same as `Norm.forward`; ValueError if ranks make different calls, with the name of a rank
        that does; `PeerFault` if another rank cannot make its call.
        """
        return self._call("forward", arrays, {**named, "save": save})

    def backward(
        self,
        *arrays: Any,
        wrt: str | Iterable[str] | None = None,
        dtypes: Mapping[str, str] | None = None,
        **named: Any,
    ) -> Any:
        """Run the backward. Returns gradients as a named tuple. Arguments as in `Norm.backward`. The
        cotangent of a whole result is the same on all ranks. Raises the same as `forward`."""
        if "backward" not in self.directions:
            raise ValueError(f"{self.name} has no backward: no output of it can be differentiated")
        return self._call("backward", arrays, {**named, "wrt": wrt, "dtypes": dtypes})

    def _call(self, name: str, arrays: tuple[Any, ...], named: dict[str, Any]) -> Any:
        spread = self.directions[name]

        def call(rank: int, given: Sequence[Any], by_name: Mapping[str, Any]) -> RankCall:
            return spread.call(lambda: spread.asked(_request(spread, given, by_name), _HOST, rank))

        direction, ranks = spread.direction, self.ranks
        result = result_tuple(direction.result_type, tuple(direction.results))
        if not isinstance(ranks, Simulated):
            made = run_alone(call(ranks.rank, arrays, named), ranks)
            return result._make(made.get(each) for each in result._fields)
        every = run_together(
            [call(rank, *given) for rank, given in enumerate(_per_rank(direction, ranks, arrays, named))]
        )
        lists = ([made.get(each) for made in every] for each in result._fields)
        return result._make(None if found[0] is None else found for found in lists)

    def __repr__(self) -> str:
        where = ", ".join(self.axes)
        return f"<{self.name} with {where} sharded over {counted(self.ranks.size, 'rank')}>"


def _request(spread: SpreadDirection, arrays: Sequence[Any], named: Mapping[str, Any]) -> Request:
    """The request of a call; TypeError for options that calls of ranks do not have."""
    direction, options = spread.direction, _OPTIONS[spread.direction.name]
    others = {option.name for option in direction.options} - set(options)
    for name in named:
        if name in others:
            raise unknown(f"{direction.text}()", name, [*direction.operands, *options])
    return spread.arguments.request(tuple(arrays), named)


def _per_rank(
    direction: Direction, ranks: Simulated, arrays: tuple[Any, ...], named: Mapping[str, Any]
) -> list[tuple[list[Any], dict[str, Any]]]:
    """The arguments of each simulated rank."""

    def of(name: str, value: Any, rank: int) -> Any:
        if isinstance(value, (list, tuple)):
            if len(value) != ranks.size:
                raise ValueError(
                    f"{name} has {counted(len(value), 'array')}, but there are "
                    f"{counted(ranks.size, 'rank')}: pass one per rank"
                )
            return value[rank]
        if name in direction.updated and value is not None:
            raise TypeError(f"{name} is updated on each rank: pass a list with one array per rank")
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
