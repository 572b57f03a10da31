"""Kernels call their own values by what these are made of."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest

from normgen.codegen.package import package
from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.ir.expr import (
    ONE,
    Expr,
    add,
    call,
    div,
    extent,
    load,
    minus,
    mul,
    neg,
    power,
    reduce,
    scalar,
    sub,
)
from normgen.kernel.identifiers import LONGEST, Numbered, identifier, stem_of
from tests.codegen.norms import packaged, source_of

X, W, DY = (load(name, "D") for name in ("x", "w", "dy"))
MU = load("mu", "")
EPS = scalar("eps")
SQUARES = reduce("sum", "D", power(X, 2))
MEAN = div(SQUARES, extent("D"))
RSTD = power(add(MEAN, EPS), Fraction(-1, 2))


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (SQUARES, "sum_x2"),
        (reduce("max", "D", X), "max_x"),
        (MEAN, "mean_x2"),
        (add(MEAN, EPS), "mean_x2_plus_eps"),
        (mul(DY, W), "dy_w"),
        (sub(X, MU), "x_minus_mu"),
        (minus(X, MU), "x_minus_mu"),
        (power(sub(X, MU), 2), "x_minus_mu_squared"),
        (reduce("sum", "D", mul(DY, W, X)), "sum_dy_w_x"),
        (mul(X, RSTD), "rstd_x"),
        (mul(X, power(RSTD, 3)), "rstd3_x"),
        (neg(mul(X, W)), "neg_w_x"),
        (sub(-1, X), "neg_x_minus_one"),
        (power(X, -1), "inv_x"),
        (div(W, X), "w_over_x"),
        (power(X, Fraction(1, 2)), "sqrt_x"),
        (call("exp", X), "exp_x"),
        (add(W, ONE), "w_plus_one"),
        (mul(*(load(f"operand_{k}", "D") for k in range(9))), ""),  # too long
        (load("é", "D"), ""),  # no word of C
    ],
)  # fmt: skip
def test_an_identifier_spells_the_expression(value: Expr, wanted: str) -> None:
    found = identifier(value, lambda node: "rstd" if node is RSTD else "")
    assert found == wanted


def test_however_large_an_expression_is_it_is_read_no_further_than_a_name_is_long() -> None:
    value: Expr = X
    asked = []
    for _ in range(2000):
        value = call("exp", minus(value, W))

    def known(node: Expr) -> str:
        asked.append(node)
        return ""

    assert identifier(value, known) == "" and len(asked) < 4 * LONGEST


def test_a_text_gives_an_identifier_once() -> None:
    numbered = Numbered()
    given = [
        numbered.of(*each) for each in (("w_x", "value"), ("w_x", "value"), ("", "value"), ("", "value"))
    ]
    assert given == ["w_x", "w_x_2", "value_1", "value_2"]


def test_what_a_text_has_of_a_value_is_called_by_its_name() -> None:
    texts = ("x[i]", "(exp_x[item * VEC + i] * scale)", "if_finite(sum_x)", "x_moments.mean", "0.f", "")
    assert [*map(stem_of, texts)] == ["x", "exp_x", "sum_x", "x_moments_mean", "", ""]


def test_kernels_have_these_names() -> None:
    record = packaged("rmsnorm").forward.kernels[0]
    for form in record.forms:
        if "rstd =" in source_of(form):
            assert "sum_x2" in source_of(form) and "mean_x2_plus_eps" in source_of(form)


def test_two_sums_of_one_value_have_two_names() -> None:
    """Of a cotangent over the places of an image, and over the samples too."""
    text = """norm image
input  x[B, ..., C]
param  w[C] = 1
param  b[C] = 0
save   mu[B, C] = mean[...](x)
save   rstd[B, C] = rsqrt(mean[...]((x - mu)^2) + 1)
output y[B, ..., C] = (x - mu) * rstd * w + b
"""
    backward = package(load_definition(Source("image.norm", text), {})).backward
    assert backward is not None
    kernels = [kernel for strategy in backward.strategies for kernel in strategy.kernels]
    sources = [source_of(form) for kernel in kernels for form in getattr(kernel, "forms", ())]
    found = [re.findall(r"float (\w+)\[ITEMS \* VEC\] = \{\};", source) for source in sources]
    assert {"dy_sum", "dy_sum_"} <= {name for names in found for name in names}
    assert all(len(names) == len(set(names)) for names in found)
