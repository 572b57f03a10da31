"""Schedules on the host executor: whatever is legal gives right results, and schedules that agree in what
decides bits give each row the same bits.

Knobs of offers are changed at random; what a family then refuses is not run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import Phase, given, note, seed, settings
from hypothesis import strategies as st

from normgen.launching.knobs import Knobs
from normgen.launching.launch import LaunchPlan
from normgen.launching.machine import HOST_MACHINE
from normgen.launching.support import Support
from normgen.runtime.norm import Norm
from normgen.runtime.planning.choose import (
    Candidate,
    Choice,
    alternatives,
    candidates,
    chosen,
    plan_launches,
)
from normgen.runtime.planning.registry import family_of
from normgen.verify.cases import DTYPE_SETS, make_case
from normgen.verify.draw import draw, scalar_values
from normgen.verify.expected import Expectation
from normgen.verify.kernels import run_case
from normgen.verify.memory import HOST
from tests.codegen.residing import small_slices
from tests.planning.changing import changed, settled
from tests.verify.subjects import CHECKED, bundled_subject

Bits = Mapping[str, bytes]


class Call(NamedTuple):
    """A norm in one direction at one size; of its kernels those of a family are tried."""

    norm: str
    direction: str
    sizes: tuple[tuple[str, int], ...]
    dtypes: int = 0  # of `DTYPE_SETS`
    attrs: tuple[tuple[str, object], ...] = ()
    family: str = "rows"
    count: int = 5  # schedules that are changed
    rows: int = 17
    width: int = 64


GROUPS = (("groups", 2),)
IMAGES = (("B", 2), ("C", 12), ("H", 6), ("W", 16))
PIXELS = (("B", 3), ("C", 24), ("...", 64))
PLANES = (("B", 3), ("C", 6), ("H", 8), ("W", 24))
CALLS = (
    Call("layernorm", "forward", (), rows=33, width=2048),
    Call("layernorm", "forward", (), 1, rows=33, width=1027),
    Call("softmax", "forward", (), 1, rows=37, width=131),
    Call("layernorm", "backward", (), 1, rows=61, width=511),
    Call("add_rmsnorm", "backward", (), rows=33, width=2048),
    Call("rmsnorm", "forward", (), 1, rows=3, width=70000, count=3),
    Call("derf", "forward", (), 1, rows=40, width=200),
    Call("groupnorm", "backward", (("B", 3), ("C", 8), ("...", 64)), 0, GROUPS),
    Call("layernorm2d", "forward", IMAGES, 1, family="columns"),
    Call("layernorm2d", "backward", IMAGES, family="columns"),
    Call("local_response_norm", "backward", PIXELS, family="windows"),
    Call("local_response_norm_within", "forward", PLANES, family="windows"),
    Call("rmsnorm_fp8", "forward", (("B", 2), ("...", 48), ("D", 48), ("G", 3)), 1, family="tiles", count=3),
    Call("groupnorm_channels_last", "forward", PIXELS, 1, GROUPS, family="resident"),
    Call("groupnorm_channels_last", "backward", PIXELS, 0, GROUPS, family="resident"),
)


class Trial:
    """A call whose kernels run by chosen schedules."""

    def __init__(self, call: Call) -> None:
        self.call, self.subject = call, bundled_subject(call.norm, call.attrs)
        case = make_case(
            self.subject.definition, call.rows, call.width, DTYPE_SETS[call.dtypes], dict(call.sizes)
        )
        scalars = scalar_values(self.subject.definition.program)
        drawn = draw(self.subject.definition, case, scalars, None)
        self.expectation = Expectation(self.subject, case, drawn, scalars)
        self.results = cache(self._results)

    def offers(self) -> Iterator[tuple[str, tuple[Candidate, ...]]]:
        """The schedules of each kernel of the family, with its strategy."""
        asked: list[Any] = []

        def planner(record: Any, binding: Any, device: Any) -> LaunchPlan:
            asked.append((record, binding))
            return plan_launches(record, binding, device)

        self._run(planner)
        record, binding = asked[-1]
        for each in alternatives(record, binding, HOST_MACHINE):
            for offers in candidates(each.strategy, binding, HOST_MACHINE):
                if offers[0].kernel.family == self.call.family:
                    yield each.strategy.name, offers

    def _results(self, strategy: str, kernel: str, knobs: Knobs) -> Bits:
        """The bits of every result, all of which are right."""
        choice = Choice(strategy, {kernel: knobs})

        def planner(record: Any, binding: Any, device: Any) -> LaunchPlan:
            found = chosen(record, binding, device, choice)
            assert found is not None, choice
            return found.plan

        return self._run(planner)

    def _run(self, planner: Any) -> Bits:
        found: list[bytes] = []

        def fetch(array: Any) -> Any:
            found.append(HOST.fetch(array).tobytes())
            return HOST.fetch(array)

        subject = replace(self.subject, norm=Norm(self.subject.norm.package, planner=planner))
        memory = replace(HOST, fetch=fetch)
        outcomes = run_case(subject, self.expectation, CHECKED, memory, directions=(self.call.direction,))
        names = []
        for outcome in outcomes:
            assert outcome.comparison.ok, outcome
            names.append(outcome.result)
        return dict(zip(names, found, strict=True))


# ------------------------------------------------------------------------------------------------ any knobs


def other(random: Random, offers: tuple[Candidate, ...]) -> tuple[Candidate, Knobs]:
    """An offer, and other knobs that are legal: changed, or those of an offer that gives the same bits."""
    offer = random.choice(offers)
    alike = [each.knobs for each in offers if each.bits == offer.bits and each is not offer]
    if alike and random.random() < 0.3:
        return offer, random.choice(alike)
    for _ in range(200):
        offer = random.choice(offers)
        knobs = changed(random, offer)
        if knobs != offer.knobs and not isinstance(settled(offer, knobs), Support):
            return offer, knobs
    return offer, offer.knobs


def of_rows(kernel: Any, bits: Bits) -> Bits:
    """The results that each row has of its own, where a kernel sums over rows."""
    if not getattr(kernel, "columns", ()):
        return bits
    own = {o.tensor for o in kernel.writes}
    return {name: found for name, found in bits.items() if name in own}


@pytest.mark.parametrize("times", [1, pytest.param(8, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call.norm}-{call.direction}-{call.width}")
def test_legal_schedules_are_right_and_give_the_bits_that_they_say(
    monkeypatch: pytest.MonkeyPatch, call: Call, times: int
) -> None:
    if call.family == "resident":
        small_slices(monkeypatch)
    trial = Trial(call)
    kernels = list(trial.offers())

    @seed(times)
    @given(st.integers(0, 1 << 32))
    @settings(deadline=None, database=None, max_examples=times * call.count, phases=(Phase.generate,))
    def check(number: int) -> None:
        random = Random(number)
        strategy, offers = random.choice(kernels)
        offer, knobs = other(random, offers)
        kernel = offer.kernel
        note(f"{kernel.name}: {dict(knobs)}, beside {offer.knobs}")
        found = trial.results(strategy, kernel.name, knobs)
        if family_of(kernel).bits(settled(offer, knobs)) == offer.bits:
            beside = trial.results(strategy, kernel.name, offer.knobs)
            assert of_rows(kernel, found) == of_rows(kernel, beside)

    check()
