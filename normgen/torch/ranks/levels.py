"""From a norm whose axes are spread over ranks to its steps, and to those of its derivatives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from typing import TYPE_CHECKING

from normgen.devices.executors import executor_of
from normgen.locks import cached_property
from normgen.package.direction import directions
from normgen.package.records import Package
from normgen.package.spread import SpreadRecord, ToldRecord
from normgen.runtime.planning.tuned import plan_tuned
from normgen.runtime.ranks.direction import SpreadDirection
from normgen.runtime.ranks.norm import SpreadNorm
from normgen.runtime.ranks.steps import Stages, by_kernels
from normgen.torch.levels import Level, compilation_of, operator_name
from normgen.torch.ranks.float64 import by_operators
from normgen.torch.ranks.group import ProcessRanks
from normgen.torch.ranks.steps import SpreadStep
from normgen.torch.steps import Outline

if TYPE_CHECKING:
    from normgen.codegen.compilation import Compilation
    from normgen.codegen.ranks import RankCompilation


@dataclass(frozen=True)
class Where:
    """The axes, or dimensions of several, that are spread over ranks; `whole`: the operands whose gradients
    the ranks add up."""

    axes: tuple[str, ...]
    ranks: ProcessRanks
    whole: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """What tells it from others, in names of operators."""
        told = repr((self.axes, self.ranks.identity, self.whole)).encode()
        return f"over_{blake2b(told, digest_size=4).hexdigest()}"


def first_spread_step(norm: SpreadNorm, where: Where) -> SpreadStep:
    """The forward of a norm on a rank."""
    package, name = norm.package, f"{operator_name(norm.package)}_{where.text}"

    def compilation() -> RankCompilation:
        from normgen.codegen.ranks import rank_compilation

        definition = compilation_of(package).definition
        return rank_compilation(definition, where.axes, where.ranks.size)

    found = _SpreadLevel(name, 1, package, norm.directions, where, compilation).first
    assert isinstance(found, SpreadStep)
    return found


class _SpreadLevel(Level):
    """A level that ranks compute together."""

    def __init__(
        self,
        name: str,
        order: int,
        package: Package,
        spread: Mapping[str, SpreadDirection],
        where: Where,
        compilation: Callable[[], RankCompilation],
    ) -> None:
        super().__init__(name, order, package, lambda: self._on_rank.whole)
        self._spread, self._where = spread, where
        self._compile_on_rank = compilation

    @cached_property
    def _on_rank(self) -> RankCompilation:
        return self._compile_on_rank()

    def _made(self, outline: Outline) -> SpreadStep:
        name, whole, ranks = outline.direction.name, self._where.whole, self._where.ranks

        @cache
        def in_float64(wanted: tuple[str, ...], blocks: bool) -> Stages:
            programs = self._on_rank.program(name, wanted, whole, blocks)
            return Stages(self._spread[name].stages_of(wanted, blocks).record, by_operators(programs))

        @cache
        def innermost(wanted: tuple[str, ...]) -> SpreadRecord | None:
            return self._on_rank.innermost(name, wanted, whole)

        @cache
        def in_kernel(wanted: tuple[str, ...]) -> ToldRecord | None:
            return self._on_rank.in_kernel(name, wanted, whole, ranks.size)

        return SpreadStep(outline, self._spread[name], ranks, in_float64, innermost, in_kernel)

    def _level_of(self, made: Compilation) -> Level:
        on_rank, where = self._on_rank.differentiated, Where(self._where.axes, self._where.ranks)
        assert on_rank is not None and on_rank.whole is made
        package, runs = on_rank.signature, on_rank.runs

        def compiled(direction: str, wanted: tuple[str, ...], blocks: bool) -> SpreadRecord:
            return on_rank.record(direction, wanted, blocks=blocks)

        (grouped, *_) = (each.grouped for each in self._spread.values())
        _, backward = directions(package)
        found = {}
        if backward is not None:
            kernels = by_kernels(executor_of, plan_tuned)
            found["backward"] = SpreadDirection(package, backward, runs.names, grouped, (), compiled, kernels)
        return _SpreadLevel(self.name, self.order + 1, package, found, where, lambda: on_rank)
