"""What the families offer beside the schedule that they take: all of it must be right, whatever is picked.

That is what makes tuning safe, and why a stored choice needs no other check than that it is offered.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

import normgen
from normgen.launching.knobs import Knob, knobs_of
from normgen.launching.launch import LaunchPlan
from normgen.launching.machine import USUAL_MACHINE
from normgen.measure.norms import contiguous_binding
from normgen.package.direction import directions
from normgen.package.records import PassRecord
from normgen.runtime.norm import Norm
from normgen.runtime.planning.choose import (
    Candidate,
    Choice,
    alternatives,
    candidates,
    chosen,
    fastest,
)
from normgen.verify.cases import make_case, same_dtype
from tests.sampling import sampled
from tests.verify.subjects import bundled_subject, prove

Attrs = tuple[tuple[str, object], ...]


def covering(offers: tuple[Candidate, ...]) -> list[Candidate]:
    """The first, and then as few as have every value of every knob that any has, and every form with every
    set of switches. What shared memory follows from the others, and how many blocks are resident makes no
    difference on the host; four stages differ from more in number alone."""

    def pairs(each: Candidate) -> set[tuple[str, Knob]]:
        knobs = {name: value for name, value in each.knobs if name not in ("shared", "blocks")}
        knobs["stages"] = min(knobs.get("stages", 0), 4)
        switches = [name for name, value in knobs.items() if value is True]
        return {*knobs.items(), ("form and switches", f"{knobs.get('form')} {switches}")}

    have = [pairs(each) for each in offers]
    left = set().union(*have)
    found: list[Candidate] = []
    while left:
        best = max(range(len(offers)), key=lambda place: len(left & have[place])) if found else 0
        found.append(offers[best])
        left -= have[best]
    return found


class Forced:
    """Plans launches with the `turn`-th of the covering offers of every kernel, and counts what there was."""

    def __init__(self, turn: int) -> None:
        self.turn, self.turns = turn, 0

    def __call__(self, record: PassRecord, binding: Any, device: Any) -> LaunchPlan:
        taken = fastest(record, binding, device).strategy
        schedules = {}
        for offers in candidates(taken, binding, device):
            some = covering(offers)
            self.turns = max(self.turns, len(some))
            schedules[offers[0].kernel.name] = some[self.turn % len(some)].knobs
        found = chosen(record, binding, device, Choice(taken.name, schedules))
        assert found is not None
        return found.plan


# Rows, columns, windows, tiles; with clusters and without; segments, moments, states, several kernels.
CASES: list[tuple[str, Attrs, str, tuple[int, int]]] = [
    ("rmsnorm", (), "bf16", (29, 2088)),
    ("layernorm", (), "f16", (23, 1000)),
    ("softmax", (), "bf16", (9, 3000)),
    ("adaln_modulate", (), "bf16", (14, 520)),
    ("qk_norm", (("head_dim", 64),), "bf16", (9, 64)),
    ("dyt", (), "bf16", (9, 1040)),
    ("groupnorm", (("groups", 2),), "bf16", (3, 96)),
    ("batchnorm", (), "bf16", (2, 96)),
    ("batchnorm_channels_last", (), "bf16", (33, 40)),
    ("layernorm2d", (), "bf16", (2, 48)),
    ("softmax2d", (), "f32", (2, 40)),
    ("local_response_norm", (), "bf16", (2, 48)),
    ("local_response_norm_within", (), "f32", (2, 60)),
    ("rmsnorm_fp8", (), "bf16", (40, 256)),
]


@pytest.mark.parametrize("call", sampled(CASES, 1, 6, 8, 11))
def test_every_kind_of_offer_is_right(call: tuple[str, Attrs, str, tuple[int, int]]) -> None:
    name, attrs, dtype, shape = call
    subject = bundled_subject(name, attrs)
    case = make_case(subject.definition, *shape, same_dtype(dtype))
    both = ("forward", "backward")
    directions = (
        both[:1] if name in ("rmsnorm_fp8", "batchnorm_channels_last") else both
    )  # others have theirs
    turn, turns = 0, 1
    while turn < turns:
        planner = Forced(turn)
        forced = replace(subject, norm=Norm(subject.norm.package, planner=planner))
        prove(forced, replace(case, seed=turn), directions=directions)
        turn, turns = turn + 1, max(turns, planner.turns)


# ------------------------------------------------------------------------------------------------ offered

SIZES: list[tuple[str, dict[str, object], dict[str, int]]] = [
    ("rmsnorm", {}, {"...": 4096, "D": 5120}),
    ("layernorm", {}, {"...": 64, "D": 300_000}),
    ("layernorm2d", {}, {"B": 8, "C": 96, "...": 784}),
    ("local_response_norm", {}, {"B": 8, "C": 96, "...": 784}),
    ("rmsnorm_fp8", {}, {"...": 512, "G": 32, "E": 16}),
    ("groupnorm_channels_last", {"groups": 8}, {"B": 8, "C": 40, "...": 256}),
    ("batchnorm_channels_last", {}, {"C": 512, "...": 12544}),
]


@pytest.mark.parametrize(("name", "attrs", "sizes"), SIZES, ids=[name for name, *_ in SIZES])
def test_the_first_offer_is_what_is_taken_and_every_one_can_be_named(
    name: str, attrs: dict[str, object], sizes: dict[str, int]
) -> None:
    package = normgen.load(name, **attrs).package
    fixed = {axis.name: axis.extent for axis in package.axes if axis.extent is not None}
    lengths = {axis: fixed.get(axis, length) for axis, length in sizes.items()}
    for direction in filter(None, directions(package)):
        binding = contiguous_binding(direction, lengths, "bf16")
        for alternative in alternatives(direction.record, binding, USUAL_MACHINE):
            every = candidates(alternative.strategy, binding, USUAL_MACHINE)
            for taken, offers in zip(alternative.kernels, every, strict=True):
                assert offers[0].lowered == taken.lowered
                named = [each.knobs for each in offers]
                assert len(set(named)) == len(named), "each once"
                assert all(tuple(json.loads(json.dumps(dict(knobs))).items()) == knobs for knobs in named)
                assert all(each.microseconds > 0 and each.text for each in offers)
                for each in (offers[0], offers[-1]):
                    choice = Choice(alternative.strategy.name, {taken.kernel.name: each.knobs})
                    found = chosen(direction.record, binding, USUAL_MACHINE, choice)
                    assert found is not None
                    again = next(k for k in found.kernels if k.kernel.name == taken.kernel.name)
                    assert again.lowered == each.lowered


def test_knobs_are_what_a_schedule_decides() -> None:
    package = normgen.load("rmsnorm").package
    binding = contiguous_binding(directions(package)[0], {"...": 64, "D": 1024}, "bf16")
    ((first, *_),) = candidates(package.forward.strategies[0], binding, USUAL_MACHINE)
    knobs = dict(first.knobs)
    assert knobs["form"] == "registers" and not {"reason", "registers"} & knobs.keys()
    noted = replace(first.schedule, registers=999)
    assert knobs_of(noted) == first.knobs
    assert not {"stages", "blocks"} & dict(first.bits).keys() and dict(first.bits).keys() < knobs.keys()


def test_stages_and_blocks_that_are_asked_for_are_kept() -> None:
    package = normgen.load("rmsnorm").package
    backward = directions(package)[1]
    assert backward is not None
    binding = contiguous_binding(backward, {"...": 4096, "D": 4096}, "bf16")
    (offers,) = candidates(backward.record.strategies[0], binding, USUAL_MACHINE)
    bits = offers[0].bits
    alike = [dict(each.knobs) for each in offers if each.bits == bits]
    assert {2, 3, 4} <= {knobs["stages"] for knobs in alike}
    assert {1, 2} <= {knobs["blocks"] for knobs in alike}
