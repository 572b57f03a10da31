"""Schedules on the host executor: whatever is legal gives right results, and schedules that agree in what
decides bits give each row the same bits.

Knobs of offers are changed at random; what a family then refuses is not run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

import pytest

from normgen.families.resident.launch import residence
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
from normgen.verify.cases import DTYPE_SETS, make_case
from normgen.verify.draw import draw, scalar_values
from normgen.verify.expected import Expectation
from normgen.verify.kernels import run_case
from normgen.verify.memory import HOST
from tests.codegen.residing import small_slices
from tests.planning.changing import changed, settled
from tests.sampling import sampled
from tests.verify.subjects import CHECKED, PLAIN, bundled_subject

Bits = Mapping[str, bytes]


SCHEDULES, CHANGED = 5, 3  # of a call, that are compared, and that are changed


class Call(NamedTuple):
    """A norm in one direction at one size; of its kernels those of a family are tried."""

    norm: str
    direction: str
    sizes: tuple[tuple[str, int], ...]
    dtypes: int = 0  # of `DTYPE_SETS`
    attrs: tuple[tuple[str, object], ...] = ()
    family: str = "rows"
    rows: int = 17
    width: int = 64

    @property
    def name(self) -> str:
        return f"{self.norm}-{self.direction}-{self.width}"


GROUPS = (("groups", 2),)
IMAGES = (("B", 2), ("C", 12), ("H", 6), ("W", 16))
ODD_IMAGES = (("B", 2), ("C", 12), ("H", 7), ("W", 13))
PIXELS = (("B", 3), ("C", 24), ("...", 64))
PLANES = (("B", 3), ("C", 6), ("H", 8), ("W", 24))
CALLS = (
    Call("layernorm", "forward", (), rows=33, width=2048),
    Call("layernorm", "forward", (), 1, rows=33, width=1027),
    Call("softmax", "forward", (), 1, rows=37, width=131),
    Call("layernorm", "backward", (), 1, rows=61, width=511),
    Call("add_rmsnorm", "backward", (), rows=33, width=2048),
    Call("rmsnorm", "forward", (), 1, rows=3, width=70000),
    Call("derf", "forward", (), 1, rows=40, width=200),
    Call("groupnorm", "backward", (("B", 3), ("C", 8), ("...", 64)), 0, GROUPS),
    Call("layernorm2d", "forward", ODD_IMAGES, 1, family="columns"),
    Call("layernorm2d", "backward", IMAGES, family="columns"),
    Call("local_response_norm", "backward", PIXELS, family="windows"),
    Call("local_response_norm_within", "forward", PLANES, family="windows"),
    Call("rmsnorm_fp8", "forward", (("B", 2), ("...", 48), ("D", 48), ("G", 3)), 1, family="tiles"),
    Call("groupnorm_channels_last", "forward", PIXELS, 1, GROUPS, family="resident"),
    Call("groupnorm_channels_last", "backward", PIXELS, 0, GROUPS, family="resident"),
)


class Trial:
    """A call whose kernels run by chosen schedules."""

    def __init__(self, call: Call, executor: Any) -> None:
        self.executor = executor
        self.call, self.subject = call, bundled_subject(call.norm, call.attrs)
        case = make_case(
            self.subject.definition, call.rows, call.width, DTYPE_SETS[call.dtypes], dict(call.sizes)
        )
        scalars = scalar_values(self.subject.definition.program)
        drawn = draw(self.subject.definition, case, scalars, None)
        self.expectation = Expectation(self.subject, case, drawn, scalars)

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

    def results(self, strategy: str, kernel: str, knobs: Knobs) -> Bits:
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
        outcomes = run_case(
            subject, self.expectation, self.executor, memory, directions=(self.call.direction,)
        )
        names = []
        for outcome in outcomes:
            assert outcome.comparison.ok, outcome
            names.append(outcome.result)
        return dict(zip(names, found, strict=True))


# ------------------------------------------------------------------------------------------------ choosing


def unlike(knobs: Knobs, others: Iterable[Knobs]) -> int:
    """How many knobs have a value that none of the others has."""
    return sum(all((name, value) not in each for each in others) for name, value in knobs)


def varied(random: Random, some: Sequence[Knobs], count: int) -> list[Knobs]:
    """So many of them, which together have as many values of each knob as may be."""
    left = random.sample(some, len(some))
    taken = [left.pop()]
    while left and len(taken) < count:
        left.sort(key=lambda knobs: unlike(knobs, taken))
        taken.append(left.pop())
    return taken


def changes(random: Random, offers: tuple[Candidate, ...]) -> list[tuple[Candidate, Knobs]]:
    """Offers, and other knobs that are legal, what is seldom changed among them first."""
    found = [(offer, changed(random, offer)) for offer in random.choices(offers, k=150)]
    legal = [each for each in found if not isinstance(settled(*each), Support)]
    how = {id(each): frozenset(n for n, v in each[1] if (n, v) not in each[0].knobs) for each in legal}
    often = Counter(name for names in how.values() for name in names)
    legal = [each for each in legal if how[id(each)]]
    return sorted(legal, key=lambda each: min(often[name] for name in how[id(each)]))


def of_rows(kernel: Any, bits: Bits) -> Bits:
    """The results that each row has of its own, where a kernel sums over rows."""
    if not getattr(kernel, "columns", ()):
        return bits
    own = {o.tensor for o in kernel.writes}
    return {name: found for name, found in bits.items() if name in own}


# ------------------------------------------------------------------------------------------------ tests


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Residences of small blocks, of which several share a segment however short it is."""
    small_slices(monkeypatch)
    for name, value in {"_THREADS": (64, 96), "_MEMBERS": (2, 4, 8), "_BLOCKS": (8, 4)}.items():
        monkeypatch.setattr(residence, name, value)


SEEDS = pytest.mark.parametrize(
    "number", [0, *(pytest.param(n, marks=pytest.mark.thorough) for n in range(1, 9))]
)
# Of two tests, which look at the same kernels, `make test` has each call in one.
EVEN, ODD = (pytest.mark.parametrize("call", sampled(CALLS, *range(k, len(CALLS), 2))) for k in range(2))


@SEEDS
@EVEN
@pytest.mark.usefixtures("small")
def test_schedules_give_a_row_the_bits_that_they_say(call: Call, number: int) -> None:
    """Of a kernel some schedules that say the same, as different as may be."""
    random, trial = Random(number), Trial(call, PLAIN)
    strategy, offers = random.choice(list(trial.offers()))
    kernel, alike = offers[0].kernel, dict[Knobs, list[Knobs]]()
    for offer in offers:
        alike.setdefault(offer.bits, []).append(offer.knobs)
    several = sorted(alike.values(), key=lambda some: len({pair for knobs in some for pair in knobs}))
    for some in {id(each): each for each in (several[-1], random.choice(several))}.values():
        taken = varied(random, some, SCHEDULES)
        bits = {knobs: of_rows(kernel, trial.results(strategy, kernel.name, knobs)) for knobs in taken}
        for knobs in taken:
            assert bits[knobs] == bits[taken[0]], (knobs, taken[0])


@SEEDS
@ODD
@pytest.mark.usefixtures("small")
def test_legal_schedules_are_right(call: Call, number: int) -> None:
    """Of a kernel some offers with changed knobs."""
    random, trial = Random(number), Trial(call, CHECKED)
    strategy, offers = random.choice(list(trial.offers()))
    for offer, knobs in changes(random, offers)[:CHANGED]:
        trial.results(strategy, offer.kernel.name, knobs)
