"""What the bundled specs compute, each against its formula in NumPy, written here and independent of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from normgen.ir.program import Definition
from normgen.ir.reference import evaluate

from .test_specs import bundled

Array = Any
LENGTHS = {"B": 4, "S": 3, "G": 2, "C": 3, "D": 8, "K": 3, "H": 6, "W": 5, "E": 4, "...": 5}
ERF = np.vectorize(math.erf)


def mean(x: Array, *axes: int) -> Array:
    return x.mean(axes, keepdims=True)


def normal(x: Array, eps: float, *axes: int) -> Array:
    """(x - mean) / sqrt(biased variance + eps)."""
    centred = x - mean(x, *axes)
    return centred / np.sqrt(mean(centred**2, *axes) + eps)


def rms(x: Array, *axes: int, eps: float = 1e-6) -> Array:
    return x / np.sqrt(mean(x**2, *axes) + eps)


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def softmax(x: Array, axis: int) -> Array:
    return np.exp(x) / np.exp(x).sum(axis, keepdims=True)


def up(v: Array) -> Array:
    """A value per channel, beside space."""
    return v[..., None]


def window(x: Array, n: int, *axes: int) -> Array:
    """Sums of squares over n along axes, from n // 2 before to (n - 1) // 2 behind."""
    sums = x**2
    for axis in axes:
        moved = np.moveaxis(sums, axis, 0)
        parts = [moved[max(i - n // 2, 0) : i + (n - 1) // 2 + 1].sum(0) for i in range(len(moved))]
        sums = np.moveaxis(np.stack(parts), 0, axis)
    return sums


def local(n: int, *axes: int) -> Callable[..., dict[str, Array]]:
    """Local response normalization over n channels, or over n by n pixels."""

    def computed(x: Array) -> dict[str, Array]:
        d = 1 + 1e-4 / n ** len(axes) * window(x, n, *axes)
        return {"d": d, "y": x / d**0.75}

    return computed


def trained(x: Array, w: Array, b: Array, running_mean: Array, running_var: Array, ddof: int = 1) -> Array:
    """Batch normalization of [rows, C]."""
    return {
        "y": normal(x, 1e-5, 0) * w + b,
        "mu": x.mean(0),
        "update:running_mean": 0.9 * running_mean + 0.1 * x.mean(0),
        "update:running_var": 0.9 * running_var + 0.1 * x.var(0, ddof=ddof),
    }


def of_images(function: Callable[..., Any], **more: Any) -> Callable[..., Any]:
    """The same of [B, C, space]."""

    def computed(x: Array, **rest: Array) -> Any:
        made = function(np.moveaxis(x, 1, 2).reshape(-1, x.shape[1]), **rest, **more)
        y = made["y"].reshape(x.shape[0], x.shape[2], x.shape[1])
        return {**made, "y": np.moveaxis(y, 1, 2)}

    return computed


def evaluated(x: Array, w: Array, b: Array, running_mean: Array, running_var: Array) -> dict[str, Array]:
    return {"y": (x - running_mean) / np.sqrt(running_var + 1e-5) * w + b}


def adaln_zero(x: Array, residual: Array, gate: Array, shift: Array, scale: Array) -> dict[str, Array]:
    h = residual + gate[:, None] * x
    return {"h": h, "y": normal(h, 1e-6, 2) * (1 + scale[:, None]) + shift[:, None]}


# By spec and attrs: a function of its operands by name, of dimensions as their axes; y, or results by name.
FORMULAS: list[tuple[str, dict[str, object], Callable[..., Any]]] = [
    ("rmsnorm", {}, lambda x, w: {"y": rms(x, 1) * w, "rstd": 1 / np.sqrt((x**2).mean(1) + 1e-6)}),
    ("rmsnorm_zero_centred", {}, lambda x, w: rms(x, 1) * (1 + w)),
    ("rmsnorm_llama", {}, lambda x, w: rms(x, 1) * w),
    ("rmsnorm_eps_outside", {}, lambda x, w: x / (np.sqrt(mean(x**2, 1)) + 1e-8) * w),
    ("rmsnorm2d", {}, lambda x, w: rms(x, 1) * up(w)),
    ("layernorm", {}, lambda x, w, b: normal(x, 1e-5, 1) * w + b),
    ("layernorm_zero_centred", {}, lambda x, w, b: normal(x, 1e-5, 1) * (1 + w) + b),
    ("layernorm2d", {}, lambda x, w, b: {"y": normal(x, 1e-6, 1) * up(w) + up(b), "mu": x.mean(1)}),
    ("groupnorm", {}, lambda x, w, b: normal(x, 1e-5, 2, 3) * up(w) + up(b)),
    ("groupnorm_silu", {}, lambda x, w, b: silu(normal(x, 1e-5, 2, 3) * up(w) + up(b))),
    ("groupnorm_channels_last", {}, lambda x, w, b: normal(x, 1e-5, 1, 3) * w + b),
    ("groupnorm_silu_channels_last", {}, lambda x, w, b: silu(normal(x, 1e-5, 1, 3) * w + b)),
    ("adagn", {}, lambda x, shift, scale: normal(x, 1e-5, 2, 3) * (1 + up(scale)) + up(shift)),
    ("instancenorm", {}, lambda x, w, b: normal(x, 1e-5, 2) * up(w) + up(b)),
    ("batchnorm_channels_last", {}, trained),
    ("batchnorm_channels_last", {"training": False}, evaluated),
    ("batchnorm", {}, of_images(trained)),
    ("batchnorm", {"training": False}, of_images(evaluated)),
    # Nothing subtracted from the count: the running variance is the biased one.
    ("batchnorm", {"correction": 0}, of_images(trained, ddof=0)),
    ("add_rmsnorm", {}, lambda x, residual, w: {"h": x + residual, "y": rms(x + residual, 1) * w}),
    ("add_layernorm", {}, lambda x, residual, w, b: normal(x + residual, 1e-5, 1) * w + b),
    ("adaln_zero", {}, adaln_zero),
    ("gated_rmsnorm", {}, lambda x, z, w: rms(x, 1) * w * silu(z)),
    ("gated_rmsnorm", {"norm_before_gate": False}, lambda x, z, w: rms(x * silu(z), 1) * w),
    ("gated_rmsnorm_grouped", {}, lambda x, z, w: rms(x, 2) * w * silu(z)),
    ("gated_rmsnorm_grouped", {"norm_before_gate": False}, lambda x, z, w: rms(x * silu(z), 2) * w),
    ("softmax", {}, lambda x: softmax(x, 1)),
    ("softmax2d", {}, lambda x: softmax(x, 1)),
    ("log_softmax", {}, lambda x: np.log(softmax(x, 1))),
    ("l2norm", {}, lambda x: x / np.linalg.norm(x, axis=1, keepdims=True)),
    ("scalenorm", {}, lambda x, w: w * x / np.linalg.norm(x, axis=1, keepdims=True)),
    ("dyt", {}, lambda x, alpha, w, b: np.tanh(alpha * x) * w + b),
    ("derf", {}, lambda x, alpha, shift, w, b: ERF(alpha * x + shift) * w + b),
    ("weight_norm", {}, lambda x, w: x / np.linalg.norm(x, axis=1, keepdims=True) * up(w)),
    ("weight_standardization", {"scaled": False}, lambda x, w: normal(x, 1e-5, 1) * up(w)),
    ("weight_standardization", {"scaled": True}, lambda x, w: normal(x, 1e-5, 1) * up(w) * 5**-0.5),
    *(("local_response_norm", {"n": n}, local(n, 1)) for n in (1, 2, 4, 5, 9)),
    *(("local_response_norm_recomputed", {"n": n}, lambda x, n=n: local(n, 1)(x)["y"]) for n in (1, 4, 20)),
    *(("local_response_norm_within", {"n": n}, local(n, 2, 3)) for n in (1, 2, 3, 4, 9, 13)),
]


def drawn(definition: Definition) -> dict[str, Array]:
    """A number for each element of each operand; those of a variance are positive."""
    random, found = np.random.default_rng(11), {}
    for tensor in definition.program.operands:
        values = random.normal(size=[LENGTHS[axis] for axis in tensor.order])
        found[tensor.name] = values**2 if "var" in tensor.name else values
    return found


@pytest.mark.parametrize(
    ("name", "attrs", "formula"), FORMULAS, ids=[f"{name}-{i}" for i, (name, *_) in enumerate(FORMULAS)]
)
def test_what_a_spec_computes(name: str, attrs: dict[str, object], formula: Callable[..., Any]) -> None:
    definition = bundled(name, **attrs)
    operands = drawn(definition)
    lengths = {axis.name: axis.extent or LENGTHS[axis.name] for axis in definition.program.axes}
    got = evaluate(definition.program, operands, lengths)
    wanted = formula(**operands)
    for key, want in (wanted if isinstance(wanted, dict) else {"y": wanted}).items():
        np.testing.assert_allclose(got[key], want, rtol=1e-12, atol=1e-14, err_msg=key)


def test_a_batch_of_one_element() -> None:
    arrays = {"x": np.ones((1, 3, 1)), "running_mean": np.zeros(3), "running_var": np.ones(3)}
    got = evaluate(bundled("batchnorm").program, arrays, {"B": 1, "C": 3, "...": 1})
    assert np.isfinite(got["update:running_var"]).all()  # divided by 1, not by 0
