"""Bytes, rotations, geometric means, and what measured calls are given."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import normgen
from normgen.measure.arithmetic import MOST_SETS, least_bytes, sets_for
from normgen.measure.norms import contiguous_binding, drawn
from normgen.package.direction import directions

ROWS, D = 32, 64
X, IMAGES = ROWS * D, 4 * 6 * 35
MAPS = {"B": 4, "C": 6, "...": (5, 7)}


@pytest.mark.parametrize(
    ("spec", "direction", "sizes", "read", "written", "ceiling"),
    [
        # Saves, such as rstd, are the norm's own business and do not count.
        ("rmsnorm", "forward", {"...": ROWS, "D": D}, 2 * X + 2 * D, 2 * X, "copy"),
        # b is not read again.
        ("layernorm", "backward", {"...": ROWS, "D": D}, 4 * X + 2 * D, 2 * X + 4 * D, "triad"),
        # What is kept and an output too is the caller's.
        ("softmax", "backward", {"...": ROWS, "D": D}, 4 * X, 2 * X, "triad"),
        ("add_rmsnorm", "forward", {"...": ROWS, "D": D}, 4 * X + 2 * D, 4 * X, "copy"),
        # The window's sums are saved in float32, but need not be.
        ("local_response_norm", "backward", MAPS, 4 * IMAGES, 2 * IMAGES, "triad"),
        # Running statistics are read and written.
        ("batchnorm", "forward", MAPS, 2 * IMAGES + 6 * (2 + 2 + 4 + 4), 2 * IMAGES + 6 * (4 + 4), "copy"),
    ],
)
def test_least_bytes(
    spec: str, direction: str, sizes: Mapping[str, int], read: int, written: int, ceiling: str
) -> None:
    forward, backward = directions(normgen.load(spec).package)
    chosen = forward if direction == "forward" else backward
    assert chosen is not None
    found = least_bytes(chosen, contiguous_binding(chosen, sizes, "bf16"))
    assert (found.read, found.written, found.ceiling) == (read, written, ceiling)
    assert found.total == read + written


@given(st.integers(1, 1 << 34), st.integers(1, 1 << 28))
def test_rotating_buffers_take_more_than_three_caches(total: int, cache: int) -> None:
    sets = sets_for(total, cache)
    assert sets >= 2
    assert sets == MOST_SETS or sets * total > 3 * cache


def test_rotation_is_no_longer_than_it_need_be() -> None:
    assert sets_for(30, 60) == 8
    assert sets_for(1 << 30, 60) == 2
    assert sets_for(1, 60 << 20) == MOST_SETS


def test_every_operand_has_values_of_its_own() -> None:
    """With dy equal to x, dx is 0 but for rounding, and `normgen tune` refused schedules for that. Params lie
    near their defaults."""
    x, again, dy = drawn("x", None, 4096), drawn("x", None, 4096), drawn("dy", None, 4096)
    assert (x == again).all() and abs(np.corrcoef(x, dy)[0, 1]) < 0.1 and abs(x.std() - 1) < 0.1
    w = drawn("w", 1.0, 4096)
    assert w.dtype == np.float32 and abs(w.mean() - 1) < 0.01 and abs(w.std() - 0.1) < 0.01
