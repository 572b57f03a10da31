"""Softmax and logsumexp of rows and columns with infinities, the first values too, in every form."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import normgen
from normgen.launching.machine import HOST_MACHINE
from tests.codegen.ways import first, of_form
from tests.host.mutation import Altered
from tests.sampling import sampled

inf, nan = float("inf"), float("nan")
# So few registers that no row is held in them.
STARVED = replace(HOST_MACHINE, multiprocessors=1, registers_per_multiprocessor=4096)
LOGSUMEXP = {
    "rows": "norm merged\ninput x[..., D]\noutput y[...] = logsumexp[D](x)",
    "columns": "norm merged\ninput x[B, C, H, W]\noutput y[B, H, W] = logsumexp[C](x)",
}
# By form: the norm, its device, the reduced axis and the shape.
FORMS = {
    "columns multipass": ("softmax2d", HOST_MACHINE, 1, (1, 20000, 2, 4)),
    "columns registers": ("softmax2d", HOST_MACHINE, 1, (1, 200, 2, 4)),
    "rows multipass": ("softmax", STARVED, 1, (8, 40000)),
    "rows registers": ("softmax", HOST_MACHINE, 1, (8, 1000)),
    "rows registers of a warp": ("softmax", HOST_MACHINE, 1, (8, 40)),
}


def exact(x: np.ndarray, axis: int) -> np.ndarray:
    """Softmax in float64, as IEEE has it."""
    with np.errstate(invalid="ignore"):
        top = x.max(axis, keepdims=True)
        e = np.exp(x - top)
        return e / e.sum(axis, keepdims=True)


@pytest.mark.parametrize("summed", [False, True], ids=["softmax", "logsumexp"])
@pytest.mark.parametrize("form", sampled(FORMS, 0, 2, 3))
def test_exponentials_of_infinities(form: str, summed: bool) -> None:
    name, device, axis, shape = FORMS[form]
    name = LOGSUMEXP[form.split()[0]] if summed else name
    x = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
    lines = np.moveaxis(x, axis, -1).reshape(-1, shape[axis])
    lines[0, 0] = -inf
    lines[1, : shape[axis] // 2] = -inf
    lines[2, :-1] = -inf
    lines[3, ::2] = -inf
    lines[4] = -inf
    lines[5, -1] = inf
    lines[6, 3] = nan
    x = np.moveaxis(lines.reshape(*shape[:axis], *shape[axis + 1 :], shape[axis]), -1, axis).copy()
    executor = Altered(device)
    taken = form.split()[1]
    with first(of_form(taken)):
        y = normgen.load(name).on(executor).forward(x).y
    assert [entry.split("_")[-1] for entry in executor.texts] == [taken]
    wide = x.astype(np.float64)
    with np.errstate(invalid="ignore"):
        wanted = np.logaddexp.reduce(wide, axis) if summed else exact(wide, axis)
    np.testing.assert_allclose(y, wanted, rtol=2e-5, atol=1e-7)
