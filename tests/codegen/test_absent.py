"""What a call leaves out takes no room: rings hold what is read."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import normgen
from normgen.devices.host.executor import HostExecutor
from normgen.runtime.norm import Norm
from normgen.runtime.planning.choose import plan_launches

RANDOM = np.random.default_rng(3)


def drawn(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("wanted", ["x", "w", "b", ("w", "b")])
def test_operands_of_results_that_nobody_wants(wanted: str | tuple[str, ...]) -> None:
    loaded = normgen.load("instancenorm")
    split = Norm(loaded.package, planner=partial(plan_launches, strategy="split"))
    norm = split.on(HostExecutor(checked=True))
    x, dy, w = drawn(3, 5, 70), drawn(3, 5, 70), drawn(5)
    kept = norm.forward(x, w)
    arrays = {"dy": dy, "x": x, "w": w, "b": drawn(5), "mu": kept.mu, "rstd": kept.rstd}
    arrays = {name: array for name, array in arrays.items() if name in (*norm.backward_args, "b")}
    found, truth = norm.backward(**arrays, wrt=wanted), loaded.reference.backward(**arrays)
    for name in (wanted,) if isinstance(wanted, str) else wanted:
        np.testing.assert_allclose(
            getattr(found, f"d{name}"), getattr(truth, f"d{name}"), rtol=1e-4, atol=1e-4
        )


def test_a_cotangent_that_is_absent() -> None:
    loaded = normgen.load("add_rmsnorm")
    norm = loaded.on(HostExecutor(checked=True))
    x, residual, dy = drawn(40, 96), drawn(40, 96), drawn(40, 96)
    kept = norm.forward(x, residual)
    for given in ({"dy": dy, "dh": None}, {"dy": None, "dh": dy}):
        arrays = given | {"w": drawn(96), "h": kept.h, "rstd": kept.rstd}
        found, truth = norm.backward(**arrays), loaded.reference.backward(**arrays)
        for name in found._fields:
            np.testing.assert_allclose(getattr(found, name), getattr(truth, name), rtol=1e-4, atol=1e-4)
