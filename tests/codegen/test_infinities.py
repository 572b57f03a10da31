"""A mean, the differences from it and their squares where some values are infinite or NaN: as the float64
reference has them, at every length, in every form and strategy that is offered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from normgen.diagnostics import Source
from normgen.runtime.norm import Norm
from normgen.verify.cases import make_case, same_dtype
from normgen.verify.draw import draw
from normgen.verify.expected import Expectation
from normgen.verify.kernels import run_case
from tests.every_way import in_every_way
from tests.sampling import sampled
from tests.verify.subjects import PLAIN, subject_of

inf, nan = float("inf"), float("nan")
# What varies, what is kept and what is reduced, lengths, element type, the strategies tried if not all.
CASES: list[tuple[str, str, str, dict[str, int], str, tuple[str, ...]]] = [
    ("[..., D]", "...", "D", {"...": 3, "D": 1000}, "f32", ()),
    ("[B, C, ...]", "C", "B, ...", {"B": 3, "C": 2, "...": 40}, "f32", ("folded", "whole")),
    ("[B, C, ...]", "B, ...", "C", {"B": 2, "C": 40, "...": 48}, "f32", ()),
    ("[..., (G C)]", "G", "C, ...", {"G": 2, "C": 4, "...": 30}, "f32", ("folded", "whole")),
    ("[..., D]", "...", "D", {"...": 1, "D": 70_000}, "bf16", ()),
    ("[..., C]", "C", "...", {"...": 300, "C": 40}, "bf16", ()),
]
BAD = {
    "inf": [inf], "-inf": [-inf], "both": [inf, -inf], "several": [inf] * 3, "nan": [nan], "mixed": [inf, nan]
}  # fmt: skip
EACH = 3  # of them for each way


@pytest.mark.parametrize("given", sampled(CASES, 0, 1, 2, 3))
def test_one_answer_in_every_form(given: Any) -> None:
    """Every way with some of the bad values, and over all ways each of them."""
    axes, kept, over, sizes, dtype, strategies = given
    text = f"""norm centred "Mean, variance, and differences from the mean."
{"axis G = 2" if "G" in axes else ""}
input x{axes}
save mu[{kept}] = mean[{over}](x)
save var[{kept}] = mean[{over}]((x - mu)^2)
output y{axes}: f32 = x - mu
"""
    found = subject_of(Source("centred.norm", text))
    package = found.norm.package
    left = tuple(s for s in package.forward.strategies if not strategies or s.name in strategies)
    forward = replace(package.forward, strategies=left)
    found = replace(found, norm=Norm(replace(package, forward=forward)))
    case = make_case(found.definition, 1, 1, same_dtype(dtype), sizes)
    case = replace(case, rest=(sizes.get("...", 1),))
    for taken, ways in in_every_way(found):
        for index in range(EACH * ways.turn, EACH * (ways.turn + 1)):
            values = list(BAD.values())[index % len(BAD)]
            drawn = draw(found.definition, case, {})
            x = drawn.arrays["x"].reshape(-1)
            # at times the first value is one, and a half of all has none, so that some results stay finite
            room = max(1, len(x) // 2)
            count = min(len(values), room)
            x[np.random.default_rng(index).choice(room, count, replace=False)] = values[:count]
            x[0] = values[0] if index % 3 == 0 else x[0]
            expectation = Expectation(found, case, drawn, {})
            for outcome in run_case(taken, expectation, PLAIN, directions=("forward",)):
                assert outcome.comparison.ok, (ways.choice, values, outcome)
    assert ways.turns * EACH >= len(BAD)
