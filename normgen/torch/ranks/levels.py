"""From a norm whose axes are spread over ranks to its steps, and to those of its derivatives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING

from normgen.devices.executors import executor_of
from normgen.diagnostics import SpecError
from normgen.locks import cached_property
from normgen.package.direction import directions
from normgen.package.records import Package
from normgen.package.spread import SpreadRecord, ToldRecord
from normgen.runtime.planning.tuned import plan_tuned
from normgen.runtime.ranks.direction import SpreadDirection
from normgen.runtime.ranks.norm import SpreadNorm
from normgen.torch.levels import Level, compilation_of, operator_name
from normgen.torch.ranks.group import ProcessRanks
from normgen.torch.ranks.steps import SpreadStep
from normgen.torch.steps import Outline

if TYPE_CHECKING:
    from normgen.codegen.compilation import Compilation
    from normgen.codegen.ranks import Spread


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
        told = repr((self.axes, self.ranks.name, self.whole)).encode()
        return f"over_{blake2b(told, digest_size=4).hexdigest()}"


def first_spread_step(norm: SpreadNorm, where: Where) -> SpreadStep:
    """The forward of a norm on a rank."""
    package, name = norm.package, f"{operator_name(norm.package)}_{where.text}"

    def compilation() -> Compilation:
        from normgen.codegen.compilation import Compilation
        from normgen.codegen.ranks import local_definition

        definition = compilation_of(package).definition
        return Compilation(local_definition(definition, where.axes, where.ranks.size)[0])

    spread = replace(where, axes=norm.axes)
    found = _SpreadLevel(name, 1, package, norm.directions, spread, compilation).first
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
        compilation: Callable[[], Compilation],
    ) -> None:
        super().__init__(name, order, package, compilation)
        self._spread, self._where = spread, where

    def _made(self, outline: Outline) -> SpreadStep:
        def cut(wanted: tuple[str, ...]) -> Spread:
            from normgen.codegen.ranks import spread_program, wanted_part

            definition, where = self.compilation.definition, self._where
            return spread_program(definition, wanted_part(outline.program(), wanted), where.axes, where.whole)

        def last(wanted: tuple[str, ...]) -> SpreadRecord | None:
            return self._channels_last(outline.direction.name, wanted)

        def told(wanted: tuple[str, ...]) -> ToldRecord | None:
            from normgen.codegen.ranks import told_record, wanted_part

            definition, where = self.compilation.definition, self._where
            program = wanted_part(outline.program(), wanted)
            return told_record(definition, program, where.axes, where.whole, where.ranks.size)

        return SpreadStep(outline, self._spread[outline.direction.name], self._where.ranks, cut, last, told)

    @cached_property
    def _last(self) -> Compilation | None:
        """The same for tensors whose channels lie innermost; None where it has no channels."""
        from normgen.codegen.compilation import Compilation
        from normgen.ir.channels_last import channels_last

        made = self.compilation
        definition = channels_last(made.definition)
        return None if definition is None else Compilation(definition, made.level)

    def _channels_last(self, direction: str, wanted: tuple[str, ...]) -> SpreadRecord | None:
        """The local programs of a direction that give these results, for such tensors; None where there are
        none."""
        from normgen.codegen.ranks import spread_record, wanted_part

        made, where = self._last, self._where
        if made is None:
            return None
        program = wanted_part(dict(made.programs)[direction], wanted)
        try:
            return spread_record(made.definition, program, where.axes, where.whole)
        except SpecError:
            return None

    def _level_of(self, made: Compilation) -> Level:
        from normgen.codegen.ranks import signature_package, spread_record, wanted_part

        where = Where(self._where.axes, self._where.ranks)
        package = signature_package(made.definition, made.derived)

        def compiled(_: str, wanted: tuple[str, ...]) -> SpreadRecord:
            assert made.derived is not None
            return spread_record(made.definition, wanted_part(made.derived, wanted), where.axes)

        _, backward = directions(package)
        found = {}
        if backward is not None:
            around = executor_of, plan_tuned
            found["backward"] = SpreadDirection(package, backward, where.axes, (), compiled, *around)
        return _SpreadLevel(self.name, self.order + 1, package, found, where, lambda: made)
