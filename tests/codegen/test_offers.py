"""What the families offer beside the schedule that they take: all of it must be right, whatever is picked.

That is what makes tuning safe, and why a stored choice needs no other check than that it is offered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from normgen.proof.cases import Case, make_case, same_dtype
from normgen.proof.expected import Subject
from normgen.runtime.launch import (
    Candidate,
    Choice,
    alternatives,
    candidates,
    choose_strategy,
    chosen,
)
from normgen.runtime.launches import LaunchPlan
from normgen.runtime.norm import Norm
from normgen.runtime.offers import Knob
from normgen.runtime.records import PassRecord
from tests.proof.subjects import bundled_subject, prove

Attrs = tuple[tuple[str, object], ...]


def covering(offers: tuple[Candidate, ...]) -> list[Candidate]:
    """The first, and then as few as have every value of every knob that any has."""
    left = {pair for each in offers for pair in each.offer.knobs}
    found: list[Candidate] = []
    while left:
        best = max(offers, key=lambda each: len(left & set(each.offer.knobs))) if found else offers[0]
        found.append(best)
        left -= set(best.offer.knobs)
    return found


class Forced:
    """Plans launches with the `turn`-th of the covering offers of every kernel, and counts what there was."""

    def __init__(self, turn: int, strategy: str | None = None) -> None:
        self.turn, self.strategy, self.turns = turn, strategy, 0
        self.picked: list[dict[str, Mapping[str, Knob]]] = []

    def __call__(self, record: PassRecord, binding: Any, device: Any, header: str = "") -> LaunchPlan:
        taken = choose_strategy(alternatives(record, binding, device, header, self.strategy)).strategy
        schedules = {}
        for offers in candidates(taken, binding, device, header):
            some = covering(offers)
            self.turns = max(self.turns, len(some))
            schedules[offers[0].kernel.name] = some[self.turn % len(some)].offer.knobs
        self.picked.append({name: dict(knobs) for name, knobs in schedules.items()})
        found = chosen(record, binding, device, header, Choice(taken.name, schedules))
        assert found is not None
        return found.plan


def forced(subject: Subject, planner: Forced) -> Subject:
    return Subject(subject.definition, subject.backward, Norm(subject.norm.package, planner=planner))


def lengths(subject: Subject, dtype: str, rows: int, width: int, sizes: Mapping[str, int]) -> Case:
    return make_case(subject.definition, rows, width, same_dtype(dtype), sizes=dict(sizes))


# Rows, columns, windows, tiles; with clusters and without; segments, moments, states, several kernels.
CASES: list[tuple[str, Attrs, str, str | None, tuple[int, int], dict[str, int]]] = [
    ("rmsnorm", (), "bf16", None, (29, 2088), {}),
    ("layernorm", (), "f16", None, (23, 1000), {}),
    ("layernorm", (), "f32", None, (11, 333), {}),
    ("softmax", (), "bf16", None, (9, 3000), {}),
    ("adaln_modulate", (), "bf16", None, (14, 520), {}),
    ("qk_norm", (("head_dim", 64),), "bf16", None, (9, 64), {}),
    ("dyt", (), "bf16", None, (9, 1040), {}),
    ("groupnorm", (("groups", 2),), "bf16", None, (3, 96), {}),
    ("batchnorm", (), "bf16", None, (4, 200), {}),
    ("batchnorm_channels_last", (), "bf16", None, (33, 40), {}),
    ("layernorm2d", (), "bf16", None, (2, 48), {}),
    ("softmax2d", (), "f32", None, (2, 40), {}),
    ("local_response_norm", (), "bf16", None, (2, 48), {}),
    ("local_response_norm_within", (), "f32", None, (2, 60), {}),
    ("rmsnorm_fp8", (), "bf16", None, (40, 256), {}),
]


@pytest.mark.parametrize(
    ("name", "attrs", "dtype", "strategy", "shape", "sizes"),
    CASES,
    ids=[f"{name}-{dtype}" for name, _, dtype, *_ in CASES],
)
def test_every_kind_of_offer_is_right(
    name: str,
    attrs: Attrs,
    dtype: str,
    strategy: str | None,
    shape: tuple[int, int],
    sizes: dict[str, int],
) -> None:
    subject = bundled_subject(name, attrs)
    case = lengths(subject, dtype, *shape, sizes)
    turn, turns = 0, 1
    while turn < turns:
        planner = Forced(turn, strategy)
        prove(forced(subject, planner), replace(case, seed=turn))
        turn, turns = turn + 1, max(turns, planner.turns)
