"""A single row whose results lie over what they are computed from: a block has thread groups beyond the row,
which must not read what the row's own one stores."""

from __future__ import annotations

from dataclasses import replace

import pytest

from normgen.codegen.package import package
from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.runtime.norm import Norm
from normgen.verify.cases import make_case
from normgen.verify.expected import Subject
from tests.every_way import in_every_way
from tests.sampling import paired
from tests.verify.subjects import F32, prove, subject_of

# What there is beside x, and what is made of both.
BESIDE = (
    ("", "x"),
    ("state s[D] = 1\nupdate s = 0.5 * s + x\n", "(x + s)"),
    ("state c[] = 1\nupdate c = 0.5 * c\n", "(x * c)"),
    ("state s[D] = 1\nstate c[] = 1\nupdate s = lerp(s, x, c)\nupdate c = 2 * c\n", "(x * c + s)"),
    ("param w[D] = 1\nstate s[D] = 0\nupdate s = max(s, x)\n", "(w * max(x, s))"),
)
RESULTS = (
    "output y[D] = v * 2\n",
    "output t[] = sum[D](v)\noutput y[D] = v * 2\n",
    "output y[D] = v - mean[D](v)\n",
    "output y[D] = v * rsqrt(var[D](v) + 1)\n",
    "output y[D] = softmax[D](v)\n",
)
SIZES = (40, 333)  # of which a warp, and a block, has a row


@pytest.mark.parametrize(("beside", "results", "size"), paired(BESIDE, RESULTS, SIZES))
def test_beside_states_that_move_on(beside: tuple[str, str], results: str, size: int) -> None:
    declared, value = beside
    text = f"norm row\ninput x[D]\n{declared}let v[D] = {value}\n{results}"
    definition = replace(load_definition(Source("row.norm", text), {}), of=())
    subject = Subject(definition, None, Norm(package(definition)))
    in_place_in_every_way(subject, size, "forward")


@pytest.mark.parametrize(("results", "size"), paired(RESULTS[2:], SIZES))
def test_a_gradient_over_its_cotangent(results: str, size: int) -> None:
    subject = subject_of(Source("row.norm", f"norm row\ninput x[D]\nlet v[D] = x\n{results}"))
    in_place_in_every_way(subject, size, "backward")


def in_place_in_every_way(subject: Subject, size: int, direction: str) -> None:
    case = replace(make_case(subject.definition, 1, 1, F32, {"D": size}), in_place=True)
    for one, ways in in_every_way(subject):
        try:
            prove(one, case, directions=(direction,))
        except Exception as fault:
            raise AssertionError(str(ways.choice)) from fault
