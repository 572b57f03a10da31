"""A norm whose axes are spread over simulated ranks, against the unsharded float64 reference.

A case is drawn and bounded as any other; its arrays are cut, each rank calls with its shards, and what
ranks have of a result is put together again: shards one after the other, parts as their sum. What is whole
must have the same bits on all ranks. Runs are alike, of different lengths, and empty on some ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normgen.codegen.ranks import rank_compilation
from normgen.counting import counted
from normgen.dtypes import DTYPES
from normgen.errors import DeviceMissing, ToolchainMissing
from normgen.ir.program import Definition, Program, Tensor
from normgen.package.spread import SpreadRecord
from normgen.runtime.norm import Norm
from normgen.runtime.ranks.direction import Grouped
from normgen.runtime.ranks.group import Simulated, checked_ranks
from normgen.runtime.ranks.norm import SpreadNorm
from normgen.verify.compare import WRONG, compare
from normgen.verify.draw import Drawn, Sample, draw
from normgen.verify.events import Row
from normgen.verify.expected import Expectation, Expected, Subject
from normgen.verify.kernels import Outcome, gradient_dtype
from normgen.verify.rank_cases import SpreadCase
from normgen.verify.verdicts import MakeRow, broken, verdict

# Of an element type, what rounding to it is off by at most, relative and absolute.
_ROUNDING = {"f32": (2.0**-24, 2.0**-149), "f16": (2.0**-11, 2.0**-25), "bf16": (2.0**-8, 2.0**-134)}


def spread_norm(definition: Definition, axes: Mapping[str, int], executor: Any) -> SpreadNorm:
    """The norm on simulated ranks. Raises `SpecError` for axes that cannot be spread."""
    ranks = checked_ranks({axis: Simulated(count) for axis, count in axes.items()})
    made = rank_compilation(definition, axes, ranks.size)
    runs = made.runs

    def compiled(direction: str, wanted: tuple[str, ...], blocks: bool) -> SpreadRecord:
        return made.record(direction, wanted, blocks=blocks)

    grouped = Grouped(runs.pairs, runs.whole is not None) if runs.pairs else None
    names = runs.names
    return SpreadNorm(made.signature, names, ranks, compiled, grouped=grouped, executors=lambda _: executor)


@dataclass(frozen=True, slots=True)
class SpreadSubject:
    """A norm on simulated ranks, with its mathematics in both directions."""

    definition: Definition
    backward: Program | None
    norm: SpreadNorm

    def expectation(self, each: SpreadCase, drawn: Drawn, scalars: Mapping[str, float]) -> Expectation:
        """What a case must give, on all ranks together."""
        subject = Subject(self.definition, self.backward, Norm(self.norm.package))
        return Expectation(subject, each.case, drawn, scalars)

    def forward(self, each: SpreadCase, expectation: Expectation) -> Iterator[Outcome]:
        """Every result of the forward, and every state that it updates, compared."""
        program, expected = self.definition.program, expectation.forward
        operands = _operands(program, each, expected)
        given: dict[str, Any] = {**operands, **self._numbers(expectation)}
        made = self.norm.forward(**given)
        for result in program.results:
            name = result.tensor.name
            found = _Found(name, getattr(made, name), each.case.dtypes[name])
            yield self._compared(each, "forward", result.tensor, found, expected)
        states = {t.name: t for t in program.operands if t.role == "state"}
        for update in program.updates:
            found = _Found(f"update:{update.state}", operands[update.state], each.case.dtypes[update.state])
            yield self._compared(each, "forward", states[update.state], found, expected)

    def gradients(self, each: SpreadCase, expectation: Expectation) -> Iterator[Outcome]:
        """Every gradient, compared."""
        program, expected = self.backward, expectation.backward
        assert program is not None
        dtypes = {r.tensor.name: gradient_dtype(r.tensor, program, each.case) for r in program.results}
        declared = {t.name for t in self.definition.program.operands}
        told = {name[1:]: dtype for name, dtype in dtypes.items() if name[1:] in declared}
        given: dict[str, Any] = {**_operands(program, each, expected), **self._numbers(expectation)}
        made = self.norm.backward(**given, dtypes=told)
        for result in program.results:
            name = result.tensor.name
            found = _Found(name, getattr(made, name), dtypes[name])
            yield self._compared(each, "backward", result.tensor, found, expected)

    def _numbers(self, expectation: Expectation) -> dict[str, float]:
        return {attr.name: expectation.scalars[attr.name] for attr in self.norm.package.attrs}

    def _compared(
        self, each: SpreadCase, direction: str, tensor: Tensor, found: _Found, expected: Expected
    ) -> Outcome:
        name, dtype, parts = found.name, found.dtype, found.parts
        if any(part.dtype != DTYPES[dtype].numpy for part in parts):
            return Outcome(direction, f"{name} ({parts[0].dtype}, not {dtype})", dtype, WRONG)
        placement = self.norm.placements[name]
        got = each.joined(tensor, placement, parts)
        if got is None:
            return Outcome(direction, f"{name} (which differs between ranks)", dtype, WRONG)
        bounds = np.asarray(expected.bounds[name], np.float64)
        if placement == "part":  # each of them is rounded
            relative, least = _ROUNDING[dtype]
            magnitudes = np.sum([np.abs(p.astype(np.float64)).reshape(got.shape) for p in parts], axis=0)
            bounds, dtype = bounds + relative * magnitudes + least * len(parts), "f64"
        return Outcome(direction, name, dtype, compare(got, dtype, expected.truth[name], bounds))


@dataclass(frozen=True, slots=True)
class _Found:
    """What the ranks have of a result, and the element type that it is to have."""

    name: str
    parts: list[NDArray[Any]]
    dtype: str


def _operands(program: Program, each: SpreadCase, expected: Expected) -> dict[str, list[NDArray[Any]]]:
    return {t.name: each.cut(t, expected.arrays[t.name]) for t in program.operands}


def spread_rows(
    row: MakeRow,
    subject: SpreadSubject,
    cases: Iterable[SpreadCase],
    scalars: Mapping[str, float],
    samples: Mapping[str, Sample] | None,
    place: str,
) -> Iterator[Row]:
    """A row for each direction of each case. `place`: where kernels run."""
    for each in cases:
        drawn = draw(subject.definition, each.case, scalars, samples)
        expectation = subject.expectation(each, drawn, scalars)
        runs = (("forward", subject.forward), ("backward", subject.gradients if subject.backward else None))
        for direction, run in runs:
            if run is None:
                continue
            about = {
                "direction": direction,
                "shape": each.text,
                "dtypes": each.case.dtype_name,
                "executor": f"{place}, {counted(subject.norm.ranks.size, 'rank')}",
                "drawn": drawn.text,
            }
            try:
                found = list(run(each, expectation))
            except (ToolchainMissing, DeviceMissing):
                raise
            except Exception as fault:  # the row's verdict, whatever it is, and the next case still runs
                yield broken(row, fault, about)
            else:
                yield verdict(row, found, about, drawn.finite)
