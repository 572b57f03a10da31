"""What the bundled specs compute, each against its formula in NumPy, written here and independent of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from normgen.ir.reference import evaluate

from .test_specs import bundled

Array = Any
RNG = np.random.default_rng(11)
ROWS = RNG.normal(size=(3, 8))
PIXELS = RNG.normal(size=(2, 6, 5))  # B, C and all of space
LAST = RNG.normal(size=(2, 5, 6))  # channels last
SQUARE = RNG.normal(size=(2, 3, 6, 5))
TOKENS = RNG.normal(size=(2, 4, 8))
W, B = RNG.normal(size=8), RNG.normal(size=8)
CW, CB = RNG.normal(size=6), RNG.normal(size=6)
KW = RNG.normal(size=3)
GATE, SHIFT, SCALE = RNG.normal(size=(3, 2, 8))
ERF = np.vectorize(math.erf)
FLAT = {"...": 3, "D": 8}


def mean(x: Array, *axes: int) -> Array:
    return x.mean(axes, keepdims=True)


def normalized(x: Array, eps: float, *axes: int) -> Array:
    """(x - mean) / sqrt(biased variance + eps)."""
    centred = x - mean(x, *axes)
    return centred / np.sqrt(mean(centred**2, *axes) + eps)


def over_rms(x: Array, eps: float, *axes: int) -> Array:
    return x / np.sqrt(mean(x**2, *axes) + eps)


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def channels(v: Array) -> Array:
    """A value per channel beside [B, C, space]."""
    return v[:, None]


def grouped(function: Callable[..., Array], x: Array, eps: float) -> Array:
    """Two groups of three channels of [B, C, space]."""
    return function(x.reshape(2, 2, 3, 5), eps, 2, 3).reshape(x.shape)


def last_to_first(x: Array) -> Array:
    return np.swapaxes(x, 1, 2)


def window(x: Array, n: int) -> Array:
    """Sums of squares over n by n pixels, from n // 2 before to (n - 1) // 2 behind."""
    low, high = n // 2, (n - 1) // 2
    found = np.zeros_like(x)
    for i in range(x.shape[2]):
        for j in range(x.shape[3]):
            box = x[:, :, max(i - low, 0) : i + high + 1, max(j - low, 0) : j + high + 1]
            found[:, :, i, j] = (box**2).sum((2, 3))
    return found


@dataclass(frozen=True)
class Case:
    """Operands of a spec, the lengths of its axes, and what it computes."""

    extents: dict[str, int]
    operands: dict[str, Array]
    results: dict[str, Array]
    attrs: dict[str, object] = field(default_factory=dict)


CHANNELS = {"B": 2, "C": 6, "...": 5}
GROUPS = {"B": 2, "G": 2, "C": 3, "...": 5}
H = TOKENS[::-1] + GATE[:, None] * TOKENS
CASES: list[tuple[str, Case]] = [
    (
        "rmsnorm_zero_centred",
        Case(FLAT, {"x": ROWS, "w": W}, {"y": over_rms(ROWS, 1e-6, 1) * (1 + W)}),
    ),
    ("rmsnorm_llama", Case(FLAT, {"x": ROWS, "w": W}, {"y": over_rms(ROWS, 1e-6, 1) * W})),
    (
        "rmsnorm_eps_outside",
        Case(
            FLAT,
            {"x": ROWS, "w": W},
            {"y": ROWS / (np.sqrt(mean(ROWS**2, 1)) + 1e-8) * W, "rho": np.sqrt((ROWS**2).mean(1))},
        ),
    ),
    (
        "rmsnorm2d",
        Case(CHANNELS, {"x": PIXELS, "w": CW}, {"y": over_rms(PIXELS, 1e-6, 1) * channels(CW)}),
    ),
    (
        "layernorm_zero_centred",
        Case(FLAT, {"x": ROWS, "w": W, "b": B}, {"y": normalized(ROWS, 1e-5, 1) * (1 + W) + B}),
    ),
    (
        "layernorm2d",
        Case(
            CHANNELS,
            {"x": PIXELS, "w": CW, "b": CB},
            {"y": normalized(PIXELS, 1e-6, 1) * channels(CW) + channels(CB), "mu": PIXELS.mean(1)},
        ),
    ),
    (
        "groupnorm_silu",
        Case(
            GROUPS,
            {"x": PIXELS.reshape(2, 2, 3, 5), "w": CW.reshape(2, 3), "b": CB.reshape(2, 3)},
            {"y": silu(grouped(normalized, PIXELS, 1e-5) * channels(CW) + channels(CB))},
        ),
    ),
    (
        "groupnorm",
        Case(
            GROUPS,
            {"x": PIXELS.reshape(2, 2, 3, 5), "w": CW.reshape(2, 3), "b": CB.reshape(2, 3)},
            {"y": grouped(normalized, PIXELS, 1e-5) * channels(CW) + channels(CB)},
        ),
    ),
    (
        "softmax2d",
        Case(
            {"B": 2, "C": 3, "H": 6, "W": 5},
            {"x": SQUARE},
            {"y": np.exp(SQUARE) / np.exp(SQUARE).sum(1, keepdims=True)},
        ),
    ),
    (
        "groupnorm_channels_last",
        Case(
            GROUPS,
            {"x": LAST.reshape(2, 5, 2, 3), "w": CW.reshape(2, 3), "b": CB.reshape(2, 3)},
            {"y": last_to_first(grouped(normalized, last_to_first(LAST), 1e-5)) * CW + CB},
        ),
    ),
    (
        "adagn",
        Case(
            GROUPS,
            {
                "x": PIXELS.reshape(2, 2, 3, 5),
                "shift": SHIFT[:, :6].reshape(2, 2, 3),
                "scale": SCALE[:, :6].reshape(2, 2, 3),
            },
            {
                "y": grouped(normalized, PIXELS, 1e-5) * (1 + SCALE[:, :6, None]) + SHIFT[:, :6, None],
            },
        ),
    ),
    (
        "instancenorm",
        Case(
            CHANNELS,
            {"x": PIXELS, "w": CW, "b": CB},
            {"y": normalized(PIXELS, 1e-5, 2) * channels(CW) + channels(CB)},
        ),
    ),
    (
        "batchnorm_channels_last",
        Case(
            {"...": 10, "C": 6},
            {"x": LAST.reshape(10, 6), "w": CW, "b": CB, "running_mean": CB, "running_var": CW**2},
            {
                "y": normalized(LAST.reshape(10, 6), 1e-5, 0) * CW + CB,
                "update:running_mean": 0.9 * CB + 0.1 * LAST.mean((0, 1)),
                "update:running_var": 0.9 * CW**2 + 0.1 * LAST.var((0, 1), ddof=1),
            },
        ),
    ),
    (
        "batchnorm_channels_last",
        Case(
            {"...": 10, "C": 6},
            {"x": LAST.reshape(10, 6), "w": CW, "b": CB, "running_mean": CB, "running_var": CW**2},
            {"y": (LAST.reshape(10, 6) - CB) / np.sqrt(CW**2 + 1e-5) * CW + CB},
            {"training": False},
        ),
    ),
    (
        "batchnorm",  # nothing subtracted from the count: the running variance is the biased one
        Case(
            CHANNELS,
            {"x": PIXELS, "running_mean": CB, "running_var": CW**2},
            {"update:running_var": 0.9 * CW**2 + 0.1 * PIXELS.var((0, 2))},
            {"correction": 0},
        ),
    ),
    (
        "add_layernorm",
        Case(
            FLAT,
            {"x": ROWS, "residual": ROWS[::-1], "w": W, "b": B},
            {"h": ROWS + ROWS[::-1], "y": normalized(ROWS + ROWS[::-1], 1e-5, 1) * W + B},
        ),
    ),
    (
        "adaln_zero",
        Case(
            {"B": 2, "S": 4, "D": 8},
            {"x": TOKENS, "residual": TOKENS[::-1], "gate": GATE, "shift": SHIFT, "scale": SCALE},
            {"h": H, "y": normalized(H, 1e-6, 2) * (1 + SCALE[:, None]) + SHIFT[:, None]},
        ),
    ),
    (
        "gated_rmsnorm_grouped",
        Case(
            {"...": 3, "G": 2, "D": 4},
            {"x": ROWS.reshape(3, 2, 4), "z": (2 * ROWS[::-1]).reshape(3, 2, 4), "w": W.reshape(2, 4)},
            {"y": over_rms(ROWS.reshape(3, 2, 4), 1e-6, 2).reshape(3, 8) * W * silu(2 * ROWS[::-1])},
        ),
    ),
    (
        "gated_rmsnorm_grouped",
        Case(
            {"...": 3, "G": 2, "D": 4},
            {"x": ROWS.reshape(3, 2, 4), "z": (2 * ROWS[::-1]).reshape(3, 2, 4), "w": W.reshape(2, 4)},
            {"y": over_rms((ROWS * silu(2 * ROWS[::-1])).reshape(3, 2, 4), 1e-6, 2).reshape(3, 8) * W},
            {"norm_before_gate": False},
        ),
    ),
    (
        "scalenorm",
        Case(FLAT, {"x": ROWS, "w": 1.5}, {"y": 1.5 * ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True)}),
    ),
    (
        "derf",
        Case(
            FLAT,
            {"x": ROWS, "alpha": 0.5, "shift": 0.25, "w": W, "b": B},
            {"y": ERF(0.5 * ROWS + 0.25) * W + B},
        ),
    ),
    (
        "weight_norm",
        Case(
            {"K": 3, "...": 8},
            {"x": ROWS, "w": KW},
            {"y": ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True) * KW[:, None]},
        ),
    ),
    *(
        (
            "weight_standardization",
            Case(
                {"K": 3, "...": 8},
                {"x": ROWS, "w": KW},
                {"y": normalized(ROWS, 1e-5, 1) * KW[:, None] * factor},
                {"scaled": scaled},
            ),
        )
        for scaled, factor in ((False, 1), (True, 8**-0.5))
    ),
    *(
        (
            "local_response_norm_within",
            Case(
                {"B": 2, "C": 3, "H": 6, "W": 5},
                {"x": SQUARE},
                {
                    "d": 1 + 1e-4 / n**2 * window(SQUARE, n),
                    "y": SQUARE / (1 + 1e-4 / n**2 * window(SQUARE, n)) ** 0.75,
                },
                {"n": n},
            ),
        )
        for n in (1, 2, 3, 4, 9, 13)
    ),
]


@pytest.mark.parametrize(("name", "case"), CASES, ids=[f"{name}-{i}" for i, (name, _) in enumerate(CASES)])
def test_what_a_spec_computes(name: str, case: Case) -> None:
    operands = {k: np.asarray(v, float) for k, v in case.operands.items()}
    got = evaluate(bundled(name, **case.attrs).program, operands, case.extents)
    for key, want in case.results.items():
        np.testing.assert_allclose(got[key].reshape(np.shape(want)), want, rtol=1e-12, err_msg=key)


def test_the_windows_that_save_nothing() -> None:
    """The two ways to treat denominators compute the same."""
    extents = {"B": 2, "C": 6, "...": 5}
    for n in (1, 4, 5, 20):
        saved = evaluate(bundled("local_response_norm", n=n).program, {"x": PIXELS}, extents)
        again = evaluate(bundled("local_response_norm_recomputed", n=n).program, {"x": PIXELS}, extents)
        np.testing.assert_allclose(again["y"], saved["y"], rtol=1e-15)
        assert again.keys() == {"y"}
