"""Columns of planes whose length is no multiple of a vector: threads cut vectors out of the words around
them, and store words that they share with their neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest

from normgen.families.columns.launch import family
from normgen.families.columns.launch.family import Columns
from normgen.families.columns.launch.schedule import ColumnSchedule, ColumnShape
from normgen.families.columns.launch.space import neighbours, starts
from normgen.launching.call import Call
from normgen.launching.machine import HOST_MACHINE
from normgen.runtime.norm import Norm
from normgen.runtime.planning.choose import plan_launches
from normgen.verify.cases import DTYPE_SETS
from normgen.verify.draw import Sample
from tests.codegen.holding import case
from tests.codegen.norms import H200, bound
from tests.codegen.test_columns import MASKED, MODULATED, POOLED, SCALED, SOFTMAX, kernel_of, subject
from tests.host.mutation import Altered
from tests.verify.subjects import prove, same_bits

ONE = replace(HOST_MACHINE, multiprocessors=1)  # so that blocks walk several tiles
# Planes of which a vector has all columns, that end within its first words, that lanes of a slice share, and
# that several slices have.
PLANES = ((3, 1), (3, 3), (17, 3), (7, 47))
TEXTS = {"layernorm2d": 2, SOFTMAX: 2, SCALED: 2, POOLED: 2, MODULATED: 3}  # with axes of images and pixels
SOME = 8  # of all schedules that differ in vectors and lanes


def offered(shape: ColumnShape) -> list[ColumnSchedule]:
    """The realigned schedules, each vector with each number of lanes once."""
    every = (each for one in starts(shape) for each in (one, *neighbours(one, shape)))
    return list({(s.vector, s.lanes): s for s in every if s.realigned}.values())


@contextmanager
def taking(turn: int, order: int = 0) -> Iterator[tuple[Altered, list[ColumnSchedule]]]:
    """An executor for kernels that take a realigned schedule, each turn another, and what they took."""
    usual, taken = family.pick, []

    def picked(*given: Any) -> ColumnSchedule:
        found = offered(family.shape_of(*given[1:3])) or [usual(*given)]
        taken.append(found[5 * turn % len(found)])
        return taken[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(family, "pick", picked)
        yield Altered(ONE, order), taken


def lengths(text: str, plane: tuple[int, int]) -> dict[str, int]:
    height, width = plane
    pixels = {"H": height, "W": width} if text is MODULATED else {"rest": height * width}
    return {"B": 3, "C": 21, **pixels}


def check(text: str, plane: tuple[int, int], dtypes: str, turn: int, samples=None, **rest: object) -> None:
    found = subject(text)
    fresh = replace(found, norm=Norm(found.norm.package, planner=partial(plan_launches, strategy="fused")))
    with taking(turn) as (executor, taken):
        prove(fresh, replace(case(found, dtypes, **lengths(text, plane)), **rest), executor, samples)
    assert all(s.realigned for s in taken)


CASES = [
    pytest.param(*each, marks=[pytest.mark.thorough] if place % 47 else [])
    for place, each in enumerate(product(TEXTS, PLANES, ("f32", "bf16", DTYPE_SETS[5].name), range(SOME)))
]


@pytest.mark.parametrize(("text", "plane", "dtypes", "turn"), CASES, ids=lambda v: str(v)[:12].strip())
def test_vectors_are_cut_out_of_words(text: str, plane: tuple[int, int], dtypes: str, turn: int) -> None:
    check(text, plane, dtypes, turn, offset=turn % 3, out_offset=turn % 5, given_out=True)


@pytest.mark.parametrize("turn", range(SOME))
def test_over_their_operands(turn: int) -> None:
    check("layernorm2d", (17, 3), "bf16", turn, in_place=True)


def test_large_mean_and_small_deviation() -> None:
    check("layernorm2d", (3, 3), "f32", 1, {"x": Sample("normal", 1e6, 1.0)})


def test_results_are_the_same_bits_with_any_vectors_in_any_order() -> None:
    random = np.random.default_rng(3)
    x, dy = random.normal(size=(2, 5, 33, 51)).astype(np.float16)
    w, b = random.normal(size=(2, 33)).astype(np.float16)
    found: dict[object, list[object]] = {}
    for turn, order in product(range(SOME), (0, 1)):
        with taking(turn, order) as (executor, taken):
            norm = Norm(subject("layernorm2d").norm.package).on(executor)
            y, mu, rstd = norm.forward(x=x, w=w, b=b)
            dx = norm.backward(dy=dy, x=x, w=w, mu=mu, rstd=rstd, wrt=("x",)).dx
            found.setdefault(tuple((s.team, s.items) for s in taken), []).append((y, mu, rstd, dx))
    assert any(len(alike) > 2 for alike in found.values())
    for first, *others in found.values():
        assert all(same_bits(a, b) for other in others for a, b in zip(first, other, strict=True))


def test_they_are_offered_where_no_aligned_vector_is_as_wide() -> None:
    record, kernel = subject("layernorm2d").norm.package.forward, kernel_of("layernorm2d", "forward")
    for plane, widest in ((49, 1), (50, 2), (52, 4), (56, 8)):
        call = Call(bound(record, "bf16", B=8, C=64, rest=plane), H200, "")
        widths = {(s.vector, s.realigned) for s in Columns().space(kernel, call) if s.form == "registers"}
        assert {vector for vector, realigned in widths if realigned} == {v for v in (2, 4, 8) if v > widest}
        assert max(vector for vector, realigned in widths if not realigned) == widest


def test_they_are_not_where_operands_are_picked_column_by_column() -> None:
    record, kernel = subject(MASKED).norm.package.forward, kernel_of(MASKED, "forward")
    call = Call(bound(record, "bf16", B=3, C=70, H=11, W=7), H200, "")
    assert not any(s.realigned for s in Columns().space(kernel, call))
