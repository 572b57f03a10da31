"""Expressions as C++: precedence, literals, names."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest

from normgen.ir.expr import (
    add,
    call,
    compare,
    extent,
    load,
    minus,
    mul,
    neg,
    power,
    reduce,
    round_to,
    scalar,
    select,
    sub,
)
from normgen.kernel.forms import tidy
from normgen.kernel.printer import Printer, literal
from normgen.kernel.rates import Rates

A, B, C = (load(n, "D") for n in "abc")
NAMES = {A: "a", B: "b", C: "c"}

TEXTS = [
    (sub(A, B), "a - b"),
    (mul(add(A, B), C), "c * (a + b)"),
    (neg(A), "-a"),
    (mul(2, A), "a * 2.f"),
    (power(A, 5), "integer_power<5>(a)"),
    (mul(A, power(B, -1)), "a / b"),
    (mul(A, power(B, -2)), "a / square(b)"),
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
]


@pytest.mark.parametrize(("node", "text"), TEXTS, ids=[t for _, t in TEXTS])
def test_text(node, text):
    assert Printer(NAMES, {"b": "b_t"}).text(node) == text


def test_literal():
    values = (1, Fraction(-1, 2), Fraction(1, 10**6), 10**40, Fraction(1, 3))
    found = [literal(Fraction(value)) for value in values]
    assert found == ["1.f", "-0.5f", "1e-06f", "INFINITY", "0.33333334f"]


def test_tidy_indents_by_brackets():
    text = 'void f(\nint a) {\n#pragma unroll\nfor (;;) {\n\n\nif (a) { // {\nb(")");\n}\n\n}\n}\n'
    assert tidy(text) == (
        'void f(\n    int a) {\n#pragma unroll\n    for (;;) {\n        if (a) { // {\n            b(")");\n'
        "        }\n    }\n}\n"
    )


def test_what_a_vector_shares_is_multiplied_first():
    w, scale = load("w", "GE"), load("s", "G")
    assert Printer({w: "w", scale: "s"}, {}, frozenset("GE")).text(mul(w, scale)) == "s * w"


R, X, Y = load("r", "B"), load("x", "BD"), load("y", "BD")
S, T = reduce("sum", {"D"}, X), reduce("sum", {"D"}, Y)
# A high power is taken factor by factor, so that no partial product leaves range before the whole does.
IN_RANGE = [
    (mul(power(R, 3), S, power(extent("D"), -1)), "s * (1.f / float(size_D)) * r * r * r"),
    (mul(power(R, 3), S, T), "t * r * s * r * r"),
    (mul(power(R, 3), power(X, 3)), "cube(r * x)"),
    (mul(power(R, -4), power(X, 4)), "integer_power<4>(x / r)"),
]


@pytest.mark.parametrize(("node", "text"), IN_RANGE, ids=[t for _, t in IN_RANGE])
def test_high_powers_stay_in_range(node, text):
    assert Printer({R: "r", X: "x", S: "s", T: "t"}, {}, frozenset("D")).text(node) == text


def test_high_powers_of_a_row_wait_for_the_element():
    """What is computed once for a row has no high power that only the element balances."""
    names = {R: "r", X: "x", S: "s"}
    rates = Rates(frozenset("D"), names, Counter(), ())
    assert rates.hoist(mul(power(R, 3), power(X, 3))) is mul(power(R, 3), power(X, 3))
    hoisted = rates.hoist(mul(power(R, 3), S, X))
    assert list(rates.leaves.values()) == [mul(power(R, 3), S)] and hoisted.axes == frozenset("BD")


@pytest.mark.parametrize("sign", [1, -1])
def test_what_a_row_adds_is_added_once(sign):
    element, a, b, r = call("abs", load("x", frozenset("D"))), *(load(name, frozenset()) for name in "abr")
    level = mul(b, add(a, b))
    gradient = add(element, level)
    rates = Rates(frozenset("D"), {}, Counter(), [gradient])
    row = add(a, mul(sign, r, level))
    found = rates.hoist(add(a, mul(sign, r, gradient)))
    assert found == add(scalar(f"%{row.key}"), mul(sign, r, element))
    assert rates.leaves[scalar(f"%{row.key}")] == row
