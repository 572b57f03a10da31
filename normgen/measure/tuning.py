"""Which schedules are fastest for one direction of a norm at given sizes: measured, and checked to be right.

The search goes by the model where that knows something, and by the clock where it does not. Strategies
that it expects to take more than twice the time of the best are left out, and so are those that measure
25 % slower before anything is changed. Of the rest one kernel after another is tried with the offers of
its family, the other kernels staying as they are: first one of each form for each way to add up a row,
then others by their expected time, then more that give a row the bits of the best. Before an offer
becomes the best, all results of the pass must agree with those of the default. What is left is timed
against the default in turns, and has to be faster by more than two runs of one binary differ.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from normgen.errors import CompileError, DriverError
from normgen.launching.knobs import Knobs
from normgen.launching.launch import LaunchPlan
from normgen.measure.agreement import Results
from normgen.measure.arithmetic import least_bytes
from normgen.measure.norms import Bench, Case, contiguous_binding, direction_of, numbers_of
from normgen.measure.plans import measure_plan
from normgen.measure.timing import BATCHES, FEW
from normgen.measure.trials import Limits, Outcome, Trial
from normgen.package.records import Package
from normgen.runtime.planning import store
from normgen.runtime.planning.choose import (
    Alternative,
    Candidate,
    Choice,
    alternatives,
    candidates,
    fastest,
    predicted,
)
from normgen.runtime.planning.choose import chosen as planned_choice
from normgen.runtime.planning.store import Tuned, Workload
from normgen.runtime.planning.tuned import call_key

FACTOR = 1.5  # times the least expected time of a kernel, beyond which no offer is tried
STRATEGIES = 2.0  # times the least expected time of a pass, beyond which no strategy is tried
NEAR = 1.25  # times the least measured time, within which a strategy's kernels are tried
GAIN = 0.02  # what a choice must gain to be kept: two runs of one binary may differ by as much
WORKERS = 16  # compilers at a time
ROUNDS = 3  # in which the default and what is left are timed in turn

Advance = Callable[[int, int, str], None]


def tune(
    bench: Bench,
    package: Package,
    case: Case,
    limits: Limits | None = None,
    advance: Advance = lambda _done, _total, _text: None,
) -> Outcome:
    """Try the schedules of one direction at these sizes, and keep the best. `advance` hears of progress."""
    search = _Search(bench, package, case, limits or Limits(), advance)
    direction = search.direction
    found = search.run()
    device = bench.executor.device
    title = f"{package.name} {case.direction}"
    workload = Workload(direction.record, device)
    store.put(workload, call_key(direction.record, search.binding), found, title)
    least = least_bytes(direction, search.binding)
    return Outcome(
        case=case,
        bytes=least,
        ceiling_us=bench.ceiling.microseconds(least.ceiling, least.total),
        trials=tuple(search.trials),
        usual=search.usual,
        found=found,
        path=store.where(workload),
        taken=search.planned(found.choice) if found else search.default,
        left=search.left,
    )


@dataclass(slots=True)
class _Best:
    """The best way so far to run a strategy: its kernels' knobs, and the time."""

    alternative: Alternative
    us: float
    schedules: dict[str, Knobs] = field(default_factory=dict)

    @property
    def choice(self) -> Choice:
        return Choice(self.alternative.strategy.name, dict(self.schedules))


@dataclass(frozen=True, slots=True)
class _Try:
    """An offer for a kernel within a strategy, planned."""

    candidate: Candidate
    choice: Choice
    expected: float
    plan: LaunchPlan
    place: int  # of the kernel's launch in the plan


def _in_order(offers: Sequence[Candidate]) -> list[tuple[float, Candidate]]:
    """The offers of a kernel with the time that each is predicted to take, the fastest first."""
    return sorted(zip(predicted(offers), offers, strict=True), key=lambda pair: pair[0])


def _worth(offers: Sequence[Candidate]) -> list[Candidate]:
    """Those that should not take much longer than the fastest: first the fastest of each form for each way to
    add up a row."""
    in_order, ways = _in_order(offers), set[object]()
    firsts, others = list[Candidate](), list[Candidate]()
    for us, each in in_order:
        if us <= FACTOR * in_order[0][0]:
            way = each.bits, dict(each.knobs).get("form")
            (others if way in ways else firsts).append(each)
            ways.add(way)
    return [*firsts, *others]


class _Search:
    """The search in one direction of a norm."""

    def __init__(self, bench: Bench, package: Package, case: Case, limits: Limits, advance: Advance) -> None:
        self.bench, self.package, self.limits = bench, package, limits
        self.direction = direction_of(package, case.direction)
        self.binding = contiguous_binding(self.direction, case.sizes, case.dtype)
        self.numbers = numbers_of(package)
        self.trials: list[Trial] = []
        self.left, self.usual = 0, 0.0
        self._done, self._total, self._advance = 0, 0, advance
        self._deadline = time.monotonic() + limits.seconds
        self.default = fastest(self.direction.record, self.binding, bench.executor.device)
        # Any strategy will do for filling the arrays, as long as the store has no part in it.
        usual = replace(case, strategy=self.default.strategy.name)
        self._sets = bench.buffers(package, usual)
        self._results = Results(bench, self._sets[0], self.direction.updated, self.numbers)

    def run(self) -> Tuned | None:
        """The best choice, or None where the default is as good."""
        self._results.settle(self.default.plan)
        near = self._strategies()
        for best in near:
            for offers in self._candidates(best.alternative):
                self._kernel(best, offers)
        return self._final([best for best in near if best.schedules or best.alternative is not self.default])

    def planned(self, choice: Choice) -> Alternative:
        """A choice of offers, planned."""
        found = planned_choice(self.direction.record, self.binding, self.bench.executor.device, choice)
        assert found is not None, choice
        return found

    # -------------------------------------------------------------------------------------------- strategies

    def _strategies(self) -> list[_Best]:
        """The strategies worth refining, as they are by default, timed."""
        found = self._alternatives()
        likely = [each for each in found if each.microseconds <= STRATEGIES * self.default.microseconds]
        self._total += len(likely)
        timed = []
        for alternative in likely:
            name = alternative.strategy.name
            default = name == self.default.strategy.name
            us, why = self._time(alternative.plan, FEW)
            trial = Trial(
                name, "", "", alternative.microseconds, us, verdict="default" if default else "", why=why
            )
            self.trials.append(trial)
            self._step(name)
            if us is not None and (default or not self._results.wrong(alternative.plan)):
                timed.append(_Best(self.default if default else alternative, us))
        assert timed, "the default itself could not be run"
        least = min(best.us for best in timed)
        return [best for best in timed if best.us <= NEAR * least]

    def _alternatives(self) -> tuple[Alternative, ...]:
        device = self.bench.executor.device
        return alternatives(self.direction.record, self.binding, device)

    def _candidates(self, alternative: Alternative) -> tuple[tuple[Candidate, ...], ...]:
        device = self.bench.executor.device
        return candidates(alternative.strategy, self.binding, device)

    # -------------------------------------------------------------------------------------------- kernels

    def _kernel(self, best: _Best, offers: tuple[Candidate, ...]) -> None:
        """Try a kernel's offers: those that are worth it, then others that give rows the bits of the best."""
        usual = offers[0]
        firsts = [each for each in _worth(offers) if each is not usual][: self.limits.top]
        self._try_all(best, usual, firsts)
        taken = best.schedules.get(usual.kernel.name, usual.knobs)
        bits = next(each.bits for each in offers if each.knobs == taken)
        tried = {usual.knobs, *(each.knobs for each in firsts)}
        others = [each for _, each in _in_order(offers) if each.bits == bits and each.knobs not in tried]
        self._try_all(best, usual, others)

    def _try_all(self, best: _Best, usual: Candidate, offers: list[Candidate]) -> None:
        """Time offers of one kernel, the rest of the strategy being at its best, and keep the fastest that is
        right."""
        tries = list(self._planned(best, usual, offers[: self.limits.top]))
        self._total += len(tries)
        timed: list[tuple[float, int, _Try]] = []
        for each, fault in self._compiled(tries):
            us, why = (None, fault) if fault else self._time(each.plan, FEW)
            self.trials.append(self._trial(each, us, why))
            self._step(each.candidate.text)
            if us is not None:
                timed.append((us, len(self.trials) - 1, each))
        for us, place, each in sorted(timed, key=lambda item: item[0]):
            if us >= best.us:
                break
            why = self._results.wrong(each.plan)
            if not why:
                best.us, best.schedules = us, dict(each.choice.schedules)
                break
            self.trials[place] = replace(self.trials[place], verdict="wrong", why=why)

    def _planned(self, best: _Best, usual: Candidate, offers: Iterable[Candidate]) -> Iterator[_Try]:
        name = usual.kernel.name
        for each in offers:
            choice = Choice(best.choice.strategy, {**best.schedules, name: each.knobs})
            found = self.planned(choice)
            expected = best.alternative.microseconds - usual.microseconds + each.microseconds
            names = [other.kernel.name for other in found.kernels]
            place = sum(len(other.lowered.launches) for other in found.kernels[: names.index(name)])
            yield _Try(each, choice, expected, found.plan, place)

    def _compiled(self, tries: list[_Try]) -> Iterator[tuple[_Try, str]]:
        """The tries with their kernels compiled, several at a time, and the reason where that fails; until
        there is no time left."""
        workers = max(1, min(WORKERS, os.cpu_count() or 1))
        with ThreadPoolExecutor(workers) as pool:
            for begin in range(0, len(tries), workers):
                some = tries[begin : begin + workers]
                if time.monotonic() > self._deadline:
                    self.left += len(tries) - begin
                    self._total -= len(tries) - begin
                    return
                yield from zip(some, pool.map(self._compile, some), strict=True)

    def _compile(self, each: _Try) -> str:
        try:
            for launch in each.plan.launches:
                self.bench.executor.binary(launch.source)
        except CompileError as fault:
            return str(fault).splitlines()[0]
        return ""

    # -------------------------------------------------------------------------------------------- times

    def _time(self, plan: LaunchPlan, batches: int) -> tuple[float | None, str]:
        """Microseconds of a plan; None and the reason where it does not run."""
        bench, addresses = self.bench, [each.addresses for each in self._sets]
        try:
            return measure_plan(bench.executor, bench.clock, plan, addresses, self.numbers, batches).us, ""
        except DriverError as fault:
            bench.executor.context.synchronize()  # raises again where the context is lost
            return None, str(fault).splitlines()[0]

    def _trial(self, each: _Try, us: float | None, why: str) -> Trial:
        """What is to be said of a try."""
        candidate, executor = each.candidate, self.bench.executor
        trial = Trial(
            each.choice.strategy,
            candidate.kernel.name,
            candidate.text,
            each.expected,
            us,
            verdict="failed" if us is None else "",
            why=why,
            knobs=candidate.knobs,
        )
        if us is None:
            return trial
        launch = each.plan.launches[each.place]
        report = executor.function(launch.source, launch.entry, launch.shared).report
        return replace(trial, registers=report.registers, local=report.local)

    def _final(self, left: list[_Best]) -> Tuned | None:
        """What is left against the default, in turns: the fastest, where it gains enough."""
        plans: dict[int, LaunchPlan] = {-1: self.default.plan}
        for number, best in enumerate(left):
            plans[number] = self.planned(best.choice).plan
        times: dict[int, list[float]] = {number: [] for number in plans}
        self._total += ROUNDS * len(plans)
        for _ in range(ROUNDS):
            for number, plan in plans.items():
                us, why = self._time(plan, BATCHES)
                assert us is not None, why
                times[number].append(us)
                self._step("the best against the default")
        medians = {number: statistics.median(all_of_them) for number, all_of_them in times.items()}
        self.usual = medians[-1]
        winner = min(medians, key=lambda number: medians[number])
        if medians[winner] > (1 - GAIN) * self.usual or self._results.wrong(plans[winner]):
            return None
        return Tuned(left[winner].choice, medians[winner], self.usual)

    def _step(self, text: str) -> None:
        self._done += 1
        self._advance(self._done, self._total, text)
