"""Programs built by hand for the tests of the analysis: it must not need the language to be right."""

from __future__ import annotations

from fractions import Fraction

from normgen.ir.expr import (
    add,
    call,
    compare,
    div,
    extent,
    load,
    mul,
    neg,
    power,
    reduce,
    scalar,
    select,
    sub,
    window_sum,
)
from normgen.ir.nodes import Expr
from normgen.ir.program import Axis, Program, Result, Tensor

AXES = ("B", "D")


def tensor(name: str, role: str, axes: str) -> Tensor:
    return Tensor(name, role, tuple((a,) for a in axes), None, None, None, "", None)


X, W, BIAS, DY = (tensor("x", "input", "BD"), tensor("w", "param", "D"), tensor("b", "param", "D"),
                  tensor("dy", "cotangent", "BD"))  # fmt: skip
MU, RSTD = tensor("mu", "saved", "B"), tensor("rstd", "saved", "B")
x, w, b, dy = load("x", "BD"), load("w", "D"), load("b", "D"), load("dy", "BD")
mu, saved_rstd = load("mu", "B"), load("rstd", "B")


def program(operands: list[Tensor], **results: tuple[str, Expr]) -> Program:
    written = [Result(tensor(name, "output", axes), expr, False) for name, (axes, expr) in results.items()]
    axes = tuple(Axis(name, None) for name in AXES)
    return Program("p", "", (), axes, tuple(operands), (), tuple(written), ())


def mean(v: Expr) -> Expr:
    return div(reduce("sum", "D", v), extent("D"))


def rsqrt(v: Expr) -> Expr:
    return power(v, Fraction(-1, 2))


EPS = scalar("eps")
rms = rsqrt(add(mean(power(x, 2)), EPS))
RMSNORM = program([X, W], rstd=("B", rms), y=("BD", mul(x, rms, w)))

centred = call("minus", x, mean(x))
residual = mean(centred)
variance = sub(mean(power(centred, 2)), power(residual, 2))
LAYERNORM = program(
    [X, W, BIAS],
    mu=("B", mean(x)),
    rstd=("B", rsqrt(add(variance, EPS))),
    y=("BD", add(mul(sub(centred, residual), rsqrt(add(variance, EPS)), w), b)),
)
# The same mathematics without the correction: what the bound must not excuse.
difference = sub(x, mean(x))
UNCORRECTED = program(
    [X, W, BIAS], y=("BD", add(mul(difference, rsqrt(add(mean(power(difference, 2)), EPS)), w), b))
)
MOMENTS = program(
    [X, W, BIAS],
    y=("BD", add(mul(difference, rsqrt(add(sub(mean(power(x, 2)), power(mean(x), 2)), EPS)), w), b)),
)

BLURRED = program([X], y=("BD", window_sum(x, (("B", -1, 1), ("D", -4, 4)))))

shifted = call("exp", sub(x, call("stop", reduce("max", "D", x))))
SOFTMAX = program([X], y=("BD", div(shifted, reduce("sum", "D", shifted))))

recentred = call("minus", x, mu)
rest = mean(recentred)
hat = mul(sub(recentred, rest), saved_rstd)
g = mul(dy, w)
projection = sub(mean(mul(g, recentred, saved_rstd)), mul(rest, saved_rstd, mean(g)))
LAYERNORM_BACKWARD = program(
    [DY, X, W, MU, RSTD],
    dx=("BD", mul(saved_rstd, add(g, neg(mean(g)), neg(mul(hat, projection))))),
    dw=("D", reduce("sum", "B", mul(dy, hat))),
    db=("D", reduce("sum", "B", dy)),
)

EVERYTHING = program(
    [X, W],
    y=(
        "BD",
        add(
            call("tanh", mul(x, w)),
            mul(Fraction(1, 3), call("erf", x)),
            call("sigmoid", add(x, call("log", add(power(x, 2), 1)))),
            power(add(call("abs", x), 1), Fraction(-3, 4)),
            call("max", x, mul(2, w)),
            select(compare("<", x, w), mul(x, w), neg(x)),
            call("pow", add(power(x, 2), 1), EPS),
            reduce("max", "D", mul(x, w)),
        ),
    ),
)
