"""Rows whose lengths are arguments are right: of all lengths, wherever they begin, by one text."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from normgen.launching.images import VARIABLE
from normgen.runtime.planning.choose import plan_launches
from tests.codegen.holding import case, subject
from tests.codegen.norms import H200, bound
from tests.verify.subjects import CHECKED, PLAIN, prove

BOTH = ("forward", "backward")
# Lanes of a warp, warps, a cluster, more than one round of a thread's vectors; whole words, and rows that
# begin anywhere; more samples than one.
LENGTHS = {
    "instancenorm": ((3, 2, 1), (5, 3, 49), (2, 3, 2000), (1, 2, 9001)),
    "batchnorm": ((4, 3, 5), (5, 3, 49), (3, 2, 1024), (7, 2, 2005)),
    "groupnorm": ((3, 4, 9), (2, 6, 49), (1, 4, 3003)),
    "groupnorm_silu": ((2, 6, 25),),
}
CALLS = [(name, *found) for name, every in LENGTHS.items() for found in every]


@pytest.fixture(autouse=True)
def general(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts for images of all sizes are asked for."""
    monkeypatch.setenv(VARIABLE, "general")


@pytest.mark.parametrize(("name", "images", "channels", "pixels"), CALLS)
@pytest.mark.parametrize("dtypes", ["bf16", "f32"])
def test_images_of_every_size(name: str, images: int, channels: int, pixels: int, dtypes: str) -> None:
    groups = 2 if name.startswith("groupnorm") else 0
    found = subject(name, groups)
    extents = {"B": images, "C": channels // max(1, groups), "rest": pixels}
    fixed = {axis.name: axis.extent for axis in found.norm.package.axes if axis.extent is not None}
    plan = plan_launches(
        found.norm.package.forward, bound(found.norm.package.forward, dtypes, **fixed, **extents), H200
    )
    assert plan.launches[0].entry == f"{name}_forward_any_size"
    prove(found, case(found, dtypes, **extents), CHECKED, directions=BOTH)


@pytest.mark.parametrize("name", ["instancenorm", "batchnorm", "groupnorm"])
def test_results_over_operands_and_sums_that_are_added(name: str) -> None:
    groups = 2 if name == "groupnorm" else 0
    found = subject(name, groups)
    made = case(found, "bf16", B=3, C=4 // max(1, groups), rest=77)
    for way in ({"in_place": True}, {"accumulate": True}, {"given_out": True, "offset": 3}, {"wrt": ("w",)}):
        prove(found, replace(made, **way), CHECKED, directions=BOTH)


@pytest.mark.parametrize("name", ["instancenorm", "batchnorm"])
def test_rows_of_several_rounds(name: str) -> None:
    """More than the threads of a cluster have in registers."""
    found = subject(name, 0)
    prove(found, case(found, "f32", B=2, C=1, rest=70_001), PLAIN, directions=BOTH)


def test_images_have_the_bits_of_any_batch() -> None:
    norm = subject("instancenorm", 0).norm.on(PLAIN)
    x = np.random.default_rng(45).standard_normal((5, 3, 64)).astype(np.float32)
    every = norm.forward(x=x).y
    for place in range(len(x)):
        assert np.array_equal(norm.forward(x=x[place : place + 1].copy()).y, every[place : place + 1])
