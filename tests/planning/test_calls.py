"""How many functions of ours a call enters that differs from calls before it in the number of its rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import normgen
from normgen.launching.machine import usual_machine
from normgen.runtime.norm import Norm
from normgen.runtime.planning.tuned import plan_tuned
from tests.counting import entered
from tests.runtime.stubs import Recorder

ROWS = None  # the length that differs


@pytest.mark.parametrize(
    ("norm", "attrs", "direction", "shapes", "most"),
    [
        pytest.param("rmsnorm", {}, "forward", [(ROWS, 4096), (4096,)], 900, id="measured"),
        pytest.param("rmsnorm", {}, "forward", [(ROWS, 1000), (1000,)], 920, id="predicted"),
        pytest.param(
            "rmsnorm", {}, "backward", [(ROWS, 4096), (ROWS, 4096), (4096,), (ROWS,)], 1430, id="second stage"
        ),
        pytest.param("layernorm2d", {}, "forward", [(ROWS, 64, 100), (64,), (64,)], 970, id="columns"),
        pytest.param("local_response_norm", {"n": 5}, "forward", [(ROWS, 64, 100)], 800, id="windows"),
        pytest.param("instancenorm", {}, "forward", [(ROWS, 16, 100), (16,), (16,)], 2460, id="strategies"),
        pytest.param(
            "groupnorm_channels_last", {"groups": 32}, "forward", [(ROWS, 784, 64), (64,), (64,)], 4150,
            id="resident",
        ),
    ],
)  # fmt: skip
def test_a_further_number_of_rows_takes_few_steps(
    norm: str, attrs: dict[str, int], direction: str, shapes: list[tuple[Any, ...]], most: int
) -> None:
    """A measure of host time that no busy machine disturbs. What is chosen for one number of rows serves
    those near it: nothing is chosen anew, and what is not taken is not made."""
    recorder = Recorder(usual_machine("sm_90"))
    package = normgen.load(norm, **attrs).package
    run = getattr(Norm(package, executors=lambda device: recorder, planner=plan_tuned), direction)
    calls = [
        [np.zeros([rows if n is ROWS else n for n in shape], "f4") for shape in shapes]
        for rows in (64, 70, 80)
    ]
    run(*calls[0])
    run(*calls[1])
    assert entered(lambda: run(*calls[2])) <= most
