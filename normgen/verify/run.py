"""The check of a spec, from its text to its kernels, as a stream of events.

Stages, for every combination of attr values that `draw.attr_choices` gives: the spec parses and checks; its
backward is derived; the gradient agrees with finite differences; the emitted kernels agree with the float64
interpreter on every executor. What cannot be done yields a row that says so: nothing is passed over in
silence.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

from normgen.counting import counted
from normgen.diagnostics import Source, SpecError
from normgen.ir.program import Definition, Program
from normgen.verify import coverage as case_lists
from normgen.verify.ahead import in_order
from normgen.verify.cases import DTYPE_SETS, Case, same_dtype
from normgen.verify.draw import Drawn, Sample, attr_choices, draw, scalar_values
from normgen.verify.events import FAILED, NO_KERNELS, OK, SKIPPED, Event, Progress, Row
from normgen.verify.expected import Expectation, Subject
from normgen.verify.gradient import check_derivatives
from normgen.verify.places import Place, find_places
from normgen.verify.rotation import strategies_of
from normgen.verify.verdicts import verdicts
from normgen.verify.work import work

if TYPE_CHECKING:
    from normgen.package.records import Package

MOST_THREADS = 16


@dataclass(frozen=True, slots=True)
class Options:
    """What to check and where. `executors`: "host" and "cuda"; None is the host, and the GPU where there is
    one. `quick`: few cases, each run with checks alone. `threads`: so many cases at a time on the host, whose
    time goes into compiling. `shard`: over how many simulated ranks axes are spread; then those are checked
    in place of the norm on one, on the host."""

    attrs: Mapping[str, object] | None = None
    sizes: Mapping[str, int] | None = None
    dtype: str | None = None
    samples: Mapping[str, Sample] | None = None
    executors: tuple[str, ...] | None = None
    thorough: bool = False
    kernels: bool = True
    only: int | None = None
    quick: bool = False
    threads: int = 1
    shard: Mapping[str, int] | None = None


def run(source: Source, options: Options | None = None) -> Iterator[Event]:
    """Check a spec. Raises `SpecError` if it is not one, `MachineError` if an executor that was asked for
    is missing."""
    from normgen.dsl.syntax import parse

    options = options or Options()
    spec = parse(source)
    choices = attr_choices(spec, options.attrs or {})
    places, missing = find_places(options.executors)
    if options.quick:
        places = [place for place in places if place.every == 1]
    name = spec.name.text
    yield Row(name, "", "parse", OK)
    checks = [
        _Check(name, _attrs_text(attrs), source, attrs, options, places, turn, len(choices))
        for turn, attrs in enumerate(choices)
        if options.only in (None, turn)
    ]
    planned = [check.planned() for check in checks]
    total, done = sum(len(plan.cases) for plan in planned), 0
    for check, plan in zip(checks, planned, strict=True):
        yield Progress(done, total, name)
        for event in check.events(plan):
            yield (
                replace(event, done=done + event.done, total=total) if isinstance(event, Progress) else event
            )
        done += len(plan.cases)
        yield Progress(done, total, name)
    for absent in missing:
        yield Row(
            name, "", "kernels", SKIPPED, executor=absent.name, note=absent.reason, missing=absent.missing
        )


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a check has before it: all groups of cases, and those cases that are run here. `left_out` of these
    are too large."""

    definition: Definition
    groups: list[Case]
    cases: list[Case]
    left_out: int


@dataclass(frozen=True, slots=True)
class _Check:
    """One combination of attr values, of so many."""

    name: str
    attrs_text: str
    source: Source
    attrs: Mapping[str, object]
    options: Options
    places: Sequence[Place]
    turn: int
    turns: int

    def planned(self) -> _Plan:
        """The definition, and the cases of its kernels."""
        from normgen.dsl import load_definition

        definition = load_definition(self.source, self.attrs)
        groups = self._groups(definition) if self.options.kernels and not self.options.shard else []
        mine = self._mine(groups)
        cases = case_lists.in_reason(definition, mine)
        return _Plan(definition, groups, cases, len(mine) - len(cases))

    def row(self, stage: str, status: str, **rest: Any) -> Row:
        return Row(self.name, self.attrs_text, stage, status, **rest)

    def events(self, plan: _Plan) -> Iterator[Event]:
        """All stages, with progress through the cases of this plan."""
        from normgen.codegen.package import package
        from normgen.ir.grad import backward
        from normgen.runtime.norm import Norm
        from normgen.runtime.planning.choose import plan_launches

        definition = plan.definition
        yield self.row("check", OK, note="; ".join(w.message for w in definition.warnings))
        derived = backward(definition) if definition.of else None
        if derived is None:
            yield self.row("derive", SKIPPED, note="nothing to differentiate")
        else:
            yield self.row("derive", OK, note="; ".join(derived.notes))
        scalars = scalar_values(definition.program)
        yield from self._derivatives(definition, derived, scalars)
        if not self.options.kernels:
            return
        if self.options.shard:
            yield from self._spread(definition, derived, scalars, self.options.shard)
            return
        try:
            made = package(definition, derived)
        except SpecError as error:
            if not all(d.code == "unsupported" for d in error.diagnostics):
                raise
            note = "; ".join(text for d in error.diagnostics for text in (d.message, *d.help))
            yield self.row("kernels", SKIPPED, note=note, missing=NO_KERNELS)
            return
        subjects = [
            Subject(definition, derived, Norm(made, planner=partial(plan_launches, strategy=name)), name)
            for name in strategy_names(made)
        ]
        taken = strategies_of(plan.groups, len(subjects), self.turns)
        total = len(plan.cases)
        if plan.left_out:
            of = counted(total + plan.left_out, "case")
            note = f"{plan.left_out} of {of} have more than {case_lists.MOST} elements"
            yield self.row("kernels", SKIPPED, note=note)
        made_jobs = (self._job(subjects, taken[case.group], case, scalars) for case in plan.cases)
        jobs = (job for job in made_jobs if job.places)
        for index, ran in enumerate(in_order(_Job.run, jobs, self.options.threads)):
            yield from ran.rows
            yield from ran.job.rows(ran.expectation, ran.drawn, threads=False)
            text = f"{self.name} {self.attrs_text} {ran.job.case.shape_text}"
            yield Progress(index + 1, total, " ".join(text.split()))

    def _spread(
        self,
        definition: Definition,
        derived: Program | None,
        scalars: Mapping[str, float],
        axes: Mapping[str, int],
    ) -> Iterator[Row]:
        from normgen.verify import rank_cases, ranks

        options = self.options
        place = next((place for place in self.places if place.name.startswith("host")), None)
        if place is None:
            return
        count = rank_cases.case_count(options.quick, options.thorough)
        sets = (same_dtype(options.dtype),) if options.dtype else DTYPE_SETS
        norm = ranks.spread_norm(definition, axes, place.executor)
        cases = rank_cases.spread_cases(definition, axes, options.sizes or {}, sets, count)
        subject = ranks.SpreadSubject(definition, derived, norm)
        yield from ranks.spread_rows(self.row, subject, cases, scalars, options.samples, place.name)

    def _job(
        self,
        subjects: Sequence[Subject],
        strategy: int,
        case: Case,
        scalars: Mapping[str, float],
    ) -> _Job:
        chosen = subjects[strategy]
        needed, turns_taken = work(chosen, case), sum(divmod(case.group, self.turns))
        places = tuple(place for place in self.places if place.takes(turns_taken, needed))
        return _Job(self, case, chosen, subjects if self.options.thorough else [chosen], scalars, places)

    def _groups(self, definition: Definition) -> list[Case]:
        """The cases of all combinations of attr values, as they would be with these."""
        sets = (same_dtype(self.options.dtype),) if self.options.dtype else DTYPE_SETS
        if self.options.thorough:
            return case_lists.thorough(definition, self.options.sizes, sets)
        chosen = case_lists.quick if self.options.quick else case_lists.covering
        return chosen(definition, self.options.sizes, sets)

    def _mine(self, cases: list[Case]) -> list[Case]:
        """Those of this combination."""
        if self.options.thorough:
            return cases
        if self.options.quick:
            groups = list(dict.fromkeys(case.group for case in cases))
            mine = {group for i, group in enumerate(groups) if i % self.turns == self.turn % len(groups)}
            return [case for case in cases if case.group in mine]
        return [case for case in cases if case.group % self.turns == self.turn]

    def _derivatives(
        self, definition: Definition, derived: Program | None, scalars: Mapping[str, float]
    ) -> Iterator[Row]:
        options = self.options
        for found in check_derivatives(definition, derived, scalars, options.samples, options.sizes):
            yield self.row(
                found.stage,
                (OK if found.ok else FAILED) if found.known else SKIPPED,
                shape=found.shape,
                dtypes="f64",
                executor="reference",
                result=found.result,
                worst=found.error / found.tolerance if found.known else 0.0,
                drawn=found.drawn,
                note=found.note,
            )


@dataclass(frozen=True, slots=True)
class _Job:
    """One case, with what is run of it: each of some subjects in each of some places."""

    check: _Check
    case: Case
    chosen: Subject
    subjects: Sequence[Subject]
    scalars: Mapping[str, float]
    places: Sequence[Place]

    def run(self) -> _Ran:
        """Everything that any thread may do of it."""
        samples = self.check.options.samples
        drawn = draw(self.chosen.definition, self.case, self.scalars, samples)
        expectation = Expectation(self.chosen, self.case, drawn, self.scalars)
        return _Ran(self, drawn, expectation, list(self.rows(expectation, drawn, threads=True)))

    def rows(self, expectation: Expectation, drawn: Drawn, threads: bool) -> Iterator[Row]:
        """The rows of the places where any thread may run kernels, or of the others."""
        places = (place for place in self.places if place.threads is threads)
        for subject, place in product(self.subjects, places):
            yield from verdicts(self.check.row, subject, expectation, drawn, place)


@dataclass(frozen=True, slots=True)
class _Ran:
    """A job that ran wherever any thread may run kernels, and what was drawn for the other places."""

    job: _Job
    drawn: Drawn
    expectation: Expectation
    rows: list[Row]


def host_threads() -> int:
    """How many cases to run at a time on the host: one per processor, up to a limit, since each compiles."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MOST_THREADS, cores)


def _attrs_text(attrs: Mapping[str, object]) -> str:
    return " ".join(f"{name}={_attr_text(value)}" for name, value in attrs.items())


def _attr_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def strategy_names(made: Package) -> list[str]:
    """The names of the strategies where there is a choice; else one that means no choice."""
    passes = [made.forward, *([made.backward] if made.backward else [])]
    names = [s.name for each in passes if len(each.strategies) > 1 for s in each.strategies]
    return list(dict.fromkeys(names)) or [""]
