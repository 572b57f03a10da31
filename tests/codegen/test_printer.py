"""Expressions as C++: precedence, literals, names."""

from __future__ import annotations

from fractions import Fraction

import pytest

from normgen.codegen.printer import Printer, literal
from normgen.codegen.tidy import tidy
from normgen.ir.expr import add, call, compare, extent, load, minus, mul, neg, power, round_to, select, sub

A, B, C = (load(n, "D") for n in "abc")
NAMES = {A: "a", B: "b", C: "c"}

TEXTS = [
    (add(A, B), "a + b"),
    (sub(A, B), "a - b"),
    (mul(add(A, B), C), "c * (a + b)"),
    (neg(A), "-a"),
    (mul(2, A), "a * 2.f"),
    (power(A, 2), "square(a)"),
    (power(A, 3), "cube(a)"),
    (power(A, 5), "integer_power<5>(a)"),
    (power(A, -1), "1.f / a"),
    (mul(A, power(B, -1)), "a / b"),
    (mul(A, power(B, -2)), "a / square(b)"),
    (power(A, Fraction(1, 2)), "sqrtf(a)"),
    (power(A, Fraction(-1, 2)), "rsqrtf(a)"),
    (power(A, Fraction(-3, 2)), "cube(rsqrtf(a))"),
    (power(A, Fraction(-3, 4)), "quarter_power<-3>(a)"),
    (power(A, Fraction(-2, 3)), "powf(a, -0.6666667f)"),
    (call("max", A, B), "maximum(a, b)"),
    (call("exp", sub(A, B)), "expf(a - b)"),
    (minus(A, add(B, C)), "a - (b + c)"),
    (mul(A, minus(B, C)), "a * (b - c)"),
    (select(compare("<", A, B), A, C), "a < b ? a : c"),
    (round_to(A, "bf16"), "round_to<__nv_bfloat16>(a)"),
    (round_to(A, "like b"), "round_to<b_t>(a)"),
    (mul(A, power(extent("D"), -1)), "(1.f / float(size_D)) * a"),
    (power(extent("..."), 1), "float(size_rest)"),
]


@pytest.mark.parametrize(("node", "text"), TEXTS, ids=[t for _, t in TEXTS])
def test_text(node, text):
    assert Printer(NAMES, {"b": "b_t"}).text(node) == text


LITERALS = [
    (Fraction(1), "1.f"),
    (Fraction(-1, 2), "-0.5f"),
    (Fraction(1, 10), "0.1f"),
    (Fraction(1, 10**6), "1e-06f"),
    (Fraction(10**40), "INFINITY"),
    (Fraction(1, 3), "0.33333334f"),
]


@pytest.mark.parametrize(("value", "text"), LITERALS, ids=[t for _, t in LITERALS])
def test_literal(value, text):
    assert literal(value) == text


def test_tidy_indents_by_brackets():
    text = 'void f(\nint a) {\n#pragma unroll\nfor (;;) {\n\n\nif (a) { // {\nb(")");\n}\n\n}\n}\n'
    assert tidy(text) == (
        'void f(\n    int a) {\n#pragma unroll\n    for (;;) {\n        if (a) { // {\n            b(")");\n'
        "        }\n    }\n}\n"
    )


def test_what_a_vector_shares_is_multiplied_first():
    w, scale = load("w", "GE"), load("s", "G")
    names = {w: "w", scale: "s", A: "a"}
    product = mul(w, scale)
    assert Printer(names, {}, frozenset("GE")).text(product) == "s * w"
    assert Printer(names, {}).text(mul(scale, w)) == Printer(names, {}).text(product)
