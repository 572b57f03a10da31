"""Derived backwards: their texts, what they read, kinks, and that they are stable where the forward is.

That gradients are those of differences, tests/verify shows of bundled and of drawn specs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from normgen.ir.expr import Reduce, Select, reductions, walk
from normgen.ir.grad import backward
from normgen.ir.levels import differentiated
from normgen.ir.program import Program
from normgen.ir.reference import check_gradient, evaluate
from normgen.ir.show import show, show_program

from .specs import NAMES, bundled, draw, written

TOLERANCE = 1e-6


def sums(program: Program) -> list[Reduce]:
    return reductions(*(r.expr for r in program.results))


@pytest.mark.parametrize("name", NAMES)
def test_golden_backward(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"gradients/{name}.txt", show_program(backward(bundled(name))))


# --------------------------------------------------------------------------- operands, results, notes


def test_a_repeated_reduction_is_noted() -> None:
    derived = backward(
        written("input x[..., D]\nlet ms = mean[D](x^2)\noutput y[..., D] = x * rsqrt(ms + 1)")
    )
    assert derived.notes == (
        "the backward computes sum[D](x^2) again (see `ms`); a `save` of it would spare that",
    )


def test_a_gradient_that_is_zero_whatever_the_data() -> None:
    derived = backward(written("input x[D]\ninput z[D]\noutput y[D] = x * stop(z)\ngrad y wrt x, z"))
    assert show(derived.results[1].expr) == "0"
    assert derived.notes == ("`dz` is zero: nothing that is differentiated depends on `z`",)


def test_a_root_that_may_be_negative_recovers_nothing() -> None:
    """sqrt(s) is |x + r|, not x + r, although to read s would be less work."""
    definition = written("input x[D]\ninput r[D]\nsave s[D] = (x + r)^2\noutput y[D] = tanh(x + r)")
    derived = backward(definition)
    assert "s" not in {t.name for t in derived.operands}
    even = written("input x[D]\ninput r[D]\nsave s[D] = (x + r)^2\noutput y[D] = (x + r)^5 / 5")
    assert show(backward(even).results[0].expr) == "dy * s^2"


def test_a_power_is_recovered_from_another() -> None:
    """rho = sqrt(s), so that the sum of squares is rho^2 and exp(-s) needs no sum."""
    text = "input x[..., D]\nsave rho[...] = sqrt(sum[D](x^2))\noutput y[..., D] = x * exp(-sum[D](x^2))"
    derived = backward(written(text))
    assert "exp(-rho^2)" in show_program(derived)
    assert len(sums(derived)) == 1


def test_of_kept_values_that_tell_the_same_the_first_is_read() -> None:
    text = "input x[..., D]\nsave a[...] = sum[D](x^2)\nsave b[...] = sqrt(a)\noutput y[..., D] = x * b + a"
    assert [t.name for t in backward(written(text)).operands if t.role == "saved"] == ["a"]


def test_what_a_kept_quotient_was_divided_by_is_not_summed_again() -> None:
    derived = backward(bundled("softmax"))
    assert [show(s) for s in sums(derived)] == ["sum[D](dy * y)"]


def test_the_exponential_of_a_kept_logarithm_is_a_quotient() -> None:
    """exp(y) is exp(x) over its sum."""
    definition = written("input x[D]\nsave output y[D] = x - log(sum[D](exp(x)))")
    derived = backward(definition)
    assert show(derived.results[0].expr) == "dy - sum[D](dy) * exp(y)"
    arrays = draw(definition, derived, {"D": 5})
    assert max(check_gradient(definition, derived, arrays, {"D": 5}).values()) < TOLERANCE


def test_a_kept_maximum_tells_where_it_was_larger() -> None:
    """Neither the bias nor the residual is read again."""
    text = (
        "input x[B, C]\ninput r[B, C]\nparam b[C] = 0\n"
        "save output y[B, C] = max(r + x * b, 0)\nsave output z[B, C] = min(x * r + b, 2)"
    )
    definition = written(text)
    derived = backward(definition)
    conditions = {
        show(n.condition) for n in walk(*(r.expr for r in derived.results)) if isinstance(n, Select)
    }
    assert conditions == {"0 < y", "z < 2"}
    sizes = {"B": 4, "C": 5}
    arrays = draw(definition, derived, sizes)
    assert max(check_gradient(definition, derived, arrays, sizes).values()) < TOLERANCE


RELU = """input x[B, C]
param w[C] = 1
param b[C] = 0
save   mu[C]   = mean[B](x)
save   rstd[C] = rsqrt(mean[B]((x - mu)^2) + 1)
save output y[B, C] = max((x - mu) * rstd * w + b, 0)
"""


def test_masked_sums_leave_what_they_share_behind() -> None:
    """dx, dw and db share two sums, as without the mask."""
    definition = written(RELU)
    derived = backward(definition)
    assert {show(s) for s in sums(derived)} == {
        "sum[B](dy if 0 < y else 0)",
        "sum[B](dy * (x - mu) if 0 < y else 0)",
    }
    sizes = {"B": 6, "C": 5}
    arrays = draw(definition, derived, sizes)
    assert max(check_gradient(definition, derived, arrays, sizes).values()) < TOLERANCE


def test_what_is_masked_everywhere_has_no_gradient() -> None:
    """However large the factor that the masked sums share: it may be infinite just where all is masked."""
    text = (
        "input x[..., D]\ninput m[..., D]\ninput k[...]\ninput g[...]\n"
        "output y[..., D] = x * k * g if m > 0 else 0\ngrad y wrt g"
    )
    definition = written(text)
    sizes = {"...": 2, "D": 4}
    derived = backward(definition)
    assert "k" not in show(sums(derived)[0])  # it is shared
    arrays = draw(definition, derived, sizes)
    arrays["m"] = np.array([[0.0] * 4, [1.0, 0.0, 1.0, 1.0]])
    arrays["k"] = np.array([np.inf, 2.0])
    found = evaluate(derived, arrays, sizes)["dg"]
    assert found[0] == 0 and np.isfinite(found[1]) and found[1]


def test_a_sum_of_cotangents_is_summed_once() -> None:
    """A bias inside the residual stream: its gradient sums dx, not each of the three terms of dx."""
    text = (
        "input x[..., D]\nparam b[D] = 0\nparam w[D] = 1\nsave output h[..., D] = x + b\n"
        "save rstd[...] = rsqrt(mean[D](h^2) + 1)\noutput y[..., D] = h * rstd * w"
    )
    derived = backward(written(text))
    dx, db, _ = (r.expr for r in derived.results)
    assert isinstance(db, Reduce) and db.arg is dx
    assert len(sums(derived)) == 3


def test_division_by_what_may_be_zero_recovers_nothing() -> None:
    """y / w would give x * rstd back, were w never 0; and s of a softmax is e / y, were y never 0."""
    text = "input x[..., D]\nparam w[D] = 1\nsave output y[..., D] = x * rsqrt(mean[D](x^2) + 1) * w"
    derived = backward(written(text))
    assert "y" not in {t.name for t in derived.operands}


# --------------------------------------------------------------------------- kinks


def gradient(text: str, arrays: dict[str, Any], **sizes: int) -> dict[str, Any]:
    definition = written(text)
    saved = evaluate(definition.program, arrays, sizes)
    return evaluate(backward(definition), {**saved, **arrays}, sizes)


INF, NAN = np.inf, np.nan


@pytest.mark.parametrize(
    ("value", "x", "want"),
    [
        ("max(x, 1)", [0, 1, 2, NAN], [0, 0, 1, 0]),  # the tie goes to the second
        ("max(1, x)", [0, 1, 2, NAN], [0, 1, 1, 1]),
        ("min(x, 1)", [0, 1, 2, NAN], [1, 0, 0, 0]),
        ("min(1, x)", [0, 1, 2, NAN], [1, 1, 0, 1]),
        ("abs(x)", [-2, 0, 2, NAN], [-1, 0, 1, 1]),
        ("sqrt(x)", [0, 4, INF, -1], [INF, 0.25, 0, NAN]),
        ("sqrt(x) if x > 0 else 0", [0, 4, -1, -4], [0, 0.25, 0, 0]),
        ("1 / x if x != 0 else 5", [0, 2, -1, INF], [0, -0.25, -1, 0]),
        ("log(max(x, 0.5))", [0, -1, 2, 0.5], [0, 0, 0.5, 0]),
        ("bf16(x)", [0, 1.001, 2, 3], [1, 1, 1, 1]),
        ("stop(x) * x", [0, 1, 2, 3], [0, 1, 2, 3]),
        ("x - x", [0, 1, 2, 3], [0, 0, 0, 0]),
        ("sigmoid(x)", [-1e4, 0, 1e4, INF], [0, 0.25, 0, 0]),
        ("silu(x)", [-1e4, 0, 1e4, 40], [0, 0.5, 1, 1]),
    ],
)
def test_elementwise_gradient(value: str, x: list[float], want: list[float]) -> None:
    text = f"input x[D]\noutput y[D] = {value}\ngrad y wrt x"
    got = gradient(text, {"x": np.array(x, float), "dy": np.ones(4)}, D=4)["dx"]
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


def test_an_infinite_slope_stays_behind_its_masks() -> None:
    """What all terms share is no factor of their sum where it is masked in all of them."""
    arrays = {"x": np.array([-1.0, 0, 0.5]), "dy": np.ones(3)}
    for other in ("sqrt(x) if x > 1 else 0", "x^1.5 if x > 0 else 0"):
        text = f"input x[D]\noutput y[D] = (sqrt(x) if x > 0 else 0) + ({other})"
        got = gradient(text, arrays, D=3)["dx"]
        assert list(got[:2]) == [0, 0] and got[2] > 0


def test_an_infinite_slope_stays_behind_many_masks() -> None:
    """A cotangent of more masked terms than are distributed is scaled as a whole: 0 stays 0."""
    terms = " + ".join(f"({k} * r if x > {k} else 0)" for k in range(1, 12))
    text = f"input x[D]\ninput z[D]\nlet r[D] = exp(sqrt(z))\noutput y[D] = {terms}\ngrad y wrt z"
    arrays = {"x": np.array([0.0, 3.5]), "z": np.array([0.0, 4]), "dy": np.ones(2)}
    got = gradient(text, arrays, D=2)["dz"]
    np.testing.assert_allclose(got, [0, (1 + 2 + 3) * np.exp(2) / 4])


def test_gradient_of_a_power_whose_exponent_is_data() -> None:
    """By the exponent the limit of b^p * log(b), and none below 0. By the base 0 where p is 0."""
    pairs = [[2, 3], [0, 2], [0, 0.5], [0, 1], [1, 5], [INF, -1], [-2, 2], [0, 0], [-3, 0], [INF, 0], [0, -1]]
    base, exponent = np.array(pairs).T
    text = "input b[D]\ninput p[D]\noutput y[D] = b ^ p"
    got = gradient(text, {"b": base, "p": exponent, "dy": np.ones(11)}, D=11)
    np.testing.assert_allclose(got["db"], [12, 0, INF, 1, 5, 0, -4, 0, 0, 0, -INF], rtol=1e-12)
    np.testing.assert_allclose(
        got["dp"], [8 * np.log(2), 0, 0, 0, 0, NAN, NAN, 0, NAN, INF, -INF], rtol=1e-12
    )


@pytest.mark.parametrize(
    ("reduction", "want"), [("max", [[0, 0.5, 0.5, 0], [0.25] * 4]), ("min", [[0, 0, 0, 1], [0.25] * 4])]
)
def test_gradient_of_an_extreme_in_equal_shares(reduction: str, want: list[list[float]]) -> None:
    text = f"input x[..., D]\nsave m[...] = {reduction}[D](x)\noutput y[..., D] = x * 0 + m"
    arrays = {"x": np.array([[1.0, 3, 3, 0], [2, 2, 2, 2]]), "dy": np.array([[0.0, 1, 0, 0]] * 2)}
    np.testing.assert_allclose(gradient(text, arrays, D=4, **{"...": 2})["dx"], want)


def test_zero_beside_an_infinite_derivative() -> None:
    """The row of zeros: rho = 0, where the derivative of the root is infinite and selected away."""
    definition = bundled("l2norm")
    arrays = {"x": np.zeros((2, 3)), "dy": np.ones((2, 3))}
    arrays["x"][1] = 3, 0, 4
    sizes = {"...": 2, "D": 3}
    saved = evaluate(definition.program, arrays, sizes)
    got = evaluate(backward(definition), {**saved, **arrays}, sizes)["dx"]
    np.testing.assert_allclose(got[0], 1e12)
    np.testing.assert_allclose(got[1], [(1 - 0.6 * 1.4) / 5, 1 / 5, (1 - 0.8 * 1.4) / 5])


def test_windows_transpose_to_windows() -> None:
    """A lopsided window over both axes of a box; beyond the edges there is nothing."""
    text = "input x[A, B]\nsave s[A, B] = sum[A: -1..0, B: 0..2](x^2)\noutput y[A, B] = x * s"
    definition = written(text)
    derived = backward(definition)
    (window,) = sums(derived)
    assert window.window == (("A", 0, 1), ("B", -2, 0))
    sizes = {"A": 3, "B": 4}
    assert (
        max(check_gradient(definition, derived, draw(definition, derived, sizes), sizes).values()) < TOLERANCE
    )


# --------------------------------------------------------------------------- f32


def in_f32(name: str, arrays: dict[str, Any], sizes: dict[str, int]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The gradients in f32, statistics stored in f32 included, and the truth of the same operands."""
    definition = bundled(name)
    derived = backward(definition)
    arrays = {k: np.asarray(v, np.float32).astype(float) for k, v in arrays.items()}
    saved = evaluate(definition.program, arrays, sizes, dtype=np.float32)
    got = evaluate(derived, {**saved, **arrays}, sizes, dtype=np.float32)
    truth = evaluate(definition.program, arrays, sizes)
    want = evaluate(derived, {**truth, **arrays}, sizes)
    return got, want


def close(got: dict[str, Any], want: dict[str, Any], tolerance: float = 1e-5) -> None:
    for name, value in want.items():
        assert np.isfinite(got[name]).all(), name
        scale = np.abs(value).max() or 1.0
        np.testing.assert_allclose(got[name] / scale, value / scale, atol=tolerance, err_msg=name)


ROWS = {"...": 4, "D": 64}
RNG = np.random.default_rng(5)
DATA = RNG.normal(size=(4, 64))
DY, W = RNG.normal(size=(4, 64)), RNG.normal(size=64)


def test_logits_far_apart() -> None:
    x = DATA.copy()
    x[:, ::2] = -1e4
    x[0, 1:] = -np.inf
    for name in ("softmax", "log_softmax"):
        got, _ = in_f32(name, {"x": x, "dy": DY}, ROWS)
        assert np.isfinite(got["dx"]).all()


@pytest.mark.parametrize("scale", [1e-12, 1e12, 1e15])
def test_rows_very_small_and_very_large(scale: float) -> None:
    """Nothing vanishes or overflows on the way to a gradient that f32 can hold."""
    arrays = {"x": scale * DATA, "residual": np.zeros((4, 64)), "w": W, "dy": DY, "dh": 0 * DY, "b": W}
    for name in ("rmsnorm", "add_rmsnorm", "layernorm", "l2norm"):
        needed = {t.name for d in (bundled(name),) for t in (*d.program.operands, *backward(d).operands)}
        close(*in_f32(name, {k: v for k, v in arrays.items() if k in needed}, ROWS))


def test_what_was_stored_is_not_rounded_again() -> None:
    definition = written(
        "input x[A, D]\n"
        "input r[A, D]\n"
        "save output h[A, D]: like r = x + r\n"
        "save rstd[A] = rsqrt(mean[D](cast(h, r)^2) + 1)\n"
        "output y[A, D] = cast(cast(h, r) * rstd, r) * x\n"
    )
    # What else has that type names what is read: nobody passes `r` for its type alone.
    text = show_program(backward(definition))
    assert "cast(h, " not in text and "cast(rstd * h, h)" in text and "input r" not in text
    level = differentiated(definition)
    assert level is not None
    again = show_program(backward(level.definition))
    assert "cast(h, " not in again and "cast(rstd * h, h)" in again and "input r" not in again
