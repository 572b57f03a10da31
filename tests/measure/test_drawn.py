"""What measured calls are given."""

from __future__ import annotations

import numpy as np

from normgen.measure.norms import drawn


def test_every_operand_has_values_of_its_own() -> None:
    """With dy equal to x, dx is 0 but for rounding, and `normgen tune` refused schedules for that."""
    x, again, dy = drawn("x", None, 4096), drawn("x", None, 4096), drawn("dy", None, 4096)
    assert (x == again).all()
    assert abs(np.corrcoef(x, dy)[0, 1]) < 0.1
    assert abs(x.std() - 1) < 0.1


def test_params_lie_near_their_defaults() -> None:
    w = drawn("w", 1.0, 4096)
    assert w.dtype == np.float32
    assert abs(w.mean() - 1) < 0.01
    assert abs(w.std() - 0.1) < 0.01
