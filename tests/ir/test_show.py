"""Expressions as text: the language's own syntax, with no parentheses to spare."""

from __future__ import annotations

import pytest

from normgen.ir.expr import Expr
from normgen.ir.show import show, show_program

from .specs import written

CASES = [
    "1 - x",
    "2 * x / 3",
    "x / (r * w)",
    "x^(1/3)",
    "1 / x^2",
    "rsqrt(x)",
    "-x * r",
    "(x - r)^2",
    "w * (x - r)",
    "x^-a",
    "x^(1 + a)",
    "1e-12 * x",
    "(x if x < r else r) + 1",
    "x if x < r and not r == 0 else 2",
    "bf16(x)",
    "cast(x, r)",
    "sum[D](x^2) / size[D]",
    "max[D](x) * x",
    "sum[D: -2..1](x)",
    "0 * x",
    "x / x",
]


def value(text: str) -> Expr:
    spec = f"attr a = 0.5\ninput x[B, D]\ninput r[B, D]\ninput w[D]\nlet unused = a * r * w\nlet v = {text}\n"
    return written(f"{spec}output y[B, D] = v * x").program.bindings[1].expr


@pytest.mark.parametrize("text", CASES)
def test_text_means_the_expression(text: str) -> None:
    """What is shown reads back as the very same node."""
    node = value(text)
    assert value(show(node)) is node, show(node)


def test_a_program() -> None:
    text = (
        "norm demo\nattr eps = 1e-6\nattr k: int = 3\ninput x[..., (G C)]: bf16\nparam w[(G C)] = 1\n"
        "state s[] = 0\naxis G = 2\nlet m = sum[G, C](x)\nsave rstd[...] = rsqrt(m + eps)\n"
        "output y[..., (G C)]: like w = x * rstd * w * m / k\nupdate s = s + 1"
    )
    assert show_program(written(text).program) == (
        "norm demo\n"
        "attr eps = 1e-6\n"
        "axis G = 2\n"
        "input x[..., (G C)]: bf16\n"
        "param w[(G C)]\n"
        "state s[]: f32\n"
        "let m = sum[C, G](x)\n"
        "save rstd[...]: f32 = rsqrt(m + eps)\n"
        "output y[..., (G C)]: like w = m * w * x * rstd / 3\n"
        "update s = s + 1\n"
    )


def test_a_choice_by_sign_is_a_sign() -> None:
    shown = show(value("-r * w if x < 0 else 0 if x == 0 else r * w"))
    assert shown == "sign(x) * w * r"
    assert show(value("1 - (-3 * r if x < 0 else 0 if x == 0 else 3 * r)")) == "1 - 3 * sign(x) * r"
    assert "sign" not in show(value("r if x < 0 else 0 if x == 0 else r"))
    assert "sign" not in show(value("-r if x < 0 else 0 if w == 0 else r"))


def test_a_number_stands_right_of_what_it_is_compared_with() -> None:
    assert show(value("w if x == 0 else r")) == "w if x == 0 else r"


def test_what_is_used_twice_and_reduces_is_shown_once() -> None:
    text = (
        "norm power\nattr eps = 1e-6\ninput x[..., D]\noutput m[...] = mean[D](abs(x)) + eps\n"
        "output y[..., D] = x * (mean[D](x^2) + eps)^-2 + exp(mean[D](x^2) + eps)"
    )
    assert show_program(written(text).program).splitlines()[3:] == [
        "output m[...]: like x = sum[D](abs(x)) / size[D] + eps",
        "let s0 = sum[D](x^2) / size[D] + eps",
        "output y[..., D]: like x = x / s0^2 + exp(s0)",
    ]
