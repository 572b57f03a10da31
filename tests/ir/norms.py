"""The norms that the counts and the stability of derived backwards are tested on, built by hand."""

from __future__ import annotations

from fractions import Fraction

from normgen.ir.expr import add, call, const, div, mul, neg, power, reduce, sub, window_sum
from normgen.ir.program import Definition

from .build import Spec, mean

HALF = Fraction(1, 2)


def rsqrt(value):
    return power(value, -HALF)


def layernorm(rows: str = "...", over: str = "D") -> Definition:
    s = Spec("layernorm")
    x, w, b = s.input("x", f"{rows} {over}"), s.param("w", over, 1), s.param("b", over, 0)
    mu = s.save("mu", rows, mean(over, x))
    rstd = s.save("rstd", rows, rsqrt(add(mean(over, power(sub(x, mu), 2)), s.attr("eps", "1e-5"))))
    s.output("y", f"{rows} {over}", add(mul(sub(x, mu), rstd, w), b))
    return s.define()


def rmsnorm() -> Definition:
    s = Spec("rmsnorm")
    x, w = s.input("x", "... D"), s.param("w", "D", 1)
    rstd = s.save("rstd", "...", rsqrt(add(mean("D", power(x, 2)), s.attr("eps", "1e-6"))))
    s.output("y", "... D", mul(x, rstd, w))
    return s.define()


def add_rmsnorm() -> Definition:
    s = Spec("add_rmsnorm")
    x, r, w = s.input("x", "... D"), s.input("residual", "... D"), s.param("w", "D", 1)
    h = s.output("h", "... D", add(x, r), kept=True)
    rstd = s.save("rstd", "...", rsqrt(add(mean("D", power(h, 2)), s.attr("eps", "1e-6"))))
    s.output("y", "... D", mul(h, rstd, w))
    return s.define()


def groupnorm() -> Definition:
    s = Spec("groupnorm")
    x, w, b = s.input("x", "B (G C) ..."), s.param("w", "(G C)", 1), s.param("b", "(G C)", 0)
    mu = s.save("mu", "B G", mean("C ...", x))
    rstd = s.save("rstd", "B G", rsqrt(add(mean("C ...", power(sub(x, mu), 2)), s.attr("eps", "1e-5"))))
    s.output("y", "B (G C) ...", add(mul(sub(x, mu), rstd, w), b))
    return s.define()


def batchnorm() -> Definition:
    s = Spec("batchnorm")
    x, w, b = s.input("x", "B C ..."), s.param("w", "C", 1), s.param("b", "C", 0)
    mu = s.save("mu", "C", mean("B ...", x))
    var = s.let("var", mean("B ...", power(sub(x, mu), 2)))
    rstd = s.save("rstd", "C", rsqrt(add(var, s.attr("eps", "1e-5"))))
    s.output("y", "B C ...", add(mul(sub(x, mu), rstd, w), b))
    return s.define()


def adaln() -> Definition:
    s = Spec("adaln")
    x, shift, scale = s.input("x", "B S D"), s.input("shift", "B D"), s.input("scale", "B D")
    mu = s.save("mu", "B S", mean("D", x))
    rstd = s.save("rstd", "B S", rsqrt(add(mean("D", power(sub(x, mu), 2)), s.attr("eps", "1e-6"))))
    s.output("y", "B S D", add(mul(sub(x, mu), rstd, add(1, scale)), shift))
    return s.define()


def gated_rmsnorm(before: bool = True) -> Definition:
    s = Spec("gated_rmsnorm")
    x, z, w = s.input("x", "... D"), s.input("z", "... D"), s.param("w", "D", 1)
    gate = mul(z, call("sigmoid", z))
    h = s.let("h", x if before else mul(x, gate))
    rstd = s.save("rstd", "...", rsqrt(add(mean("D", power(h, 2)), s.attr("eps", "1e-6"))))
    s.output("y", "... D", mul(h, rstd, w, gate if before else 1))
    return s.define()


def softmax2d() -> Definition:
    s = Spec("softmax2d")
    x = s.input("x", "B C H W")
    e = s.let("e", call("exp", sub(x, call("stop", reduce("max", ["C"], x)))))
    s.output("y", "B C H W", div(e, reduce("sum", ["C"], e)), kept=True)
    return s.define()


def log_softmax() -> Definition:
    s = Spec("log_softmax")
    x = s.input("x", "... D")
    t = s.let("t", sub(x, call("stop", reduce("max", ["D"], x))))
    s.output("y", "... D", sub(t, call("log", reduce("sum", ["D"], call("exp", t)))), kept=True)
    return s.define()


def l2norm() -> Definition:
    s = Spec("l2norm")
    x = s.input("x", "... D")
    rho = s.save("rho", "...", power(reduce("sum", ["D"], power(x, 2)), HALF))
    s.output("y", "... D", div(x, call("max", rho, s.attr("eps", "1e-12"))))
    return s.define()


def local_response(n: int = 5) -> Definition:
    s = Spec("local_response")
    x = s.input("x", "B C ...")
    alpha, beta, k = s.attr("alpha", "1e-4"), s.attr("beta", "0.75"), s.attr("k", "1")
    window = window_sum(power(x, 2), (("C", -(n // 2), (n - 1) // 2),))
    d = s.save("d", "B C ...", add(k, mul(div(alpha, n), window)))
    s.output("y", "B C ...", mul(x, power(d, neg(beta))))
    return s.define()


def rmsnorm_fp8() -> Definition:
    s = Spec("rmsnorm_fp8")
    xq, xs, w = s.input("xq", "... (G E)", "f8e4m3"), s.input("xs", "... G", "bf16"), s.param("w", "(G E)", 1)
    x = s.let("x", mul(xq, xs), "... (G E)", opened=True)
    rstd = s.save("rstd", "...", rsqrt(add(mean("G E", power(x, 2)), s.attr("eps", "1e-6"))))
    y = s.let("y", mul(x, rstd, w), "... (G E)")
    amax = reduce("max", ["...", "G", "E"], call("abs", y))
    scale = s.output("scale", "", div(amax, s.attr("fp8_max", "448")))
    s.output("q", "... (G E)", div(y, scale))
    s.output("qt", "(G E) ...", div(y, scale))
    return s.define(of="y", wrt="x w")


def qk_norm() -> Definition:
    s = Spec("qk_norm")
    q, k = s.input("q", "... (H D)"), s.input("k", "... (K D)")
    wq, wk, eps = s.param("wq", "D", 1), s.param("wk", "D", 1), s.attr("eps", "1e-6")
    rq = s.save("rq", "... H", rsqrt(add(mean("D", power(q, 2)), eps)))
    rk = s.save("rk", "... K", rsqrt(add(mean("D", power(k, 2)), eps)))
    s.output("qn", "... (H D)", mul(q, rq, wq))
    s.output("kn", "... (K D)", mul(k, rk, wk))
    return s.define()


# How many sums of the backward run over the axes that a statistic lacks (rows), how many over the axes that a
# parameter lacks (columns), how many windows.
ALL: dict[str, tuple[Definition, int]] = {
    d.program.name: (d, count)
    for d, count in (
        (layernorm(), 4),
        (rmsnorm(), 2),
        (add_rmsnorm(), 2),
        (groupnorm(), 4),
        (batchnorm(), 2),
        (adaln(), 4),
        (gated_rmsnorm(), 2),
        (softmax2d(), 1),
        (log_softmax(), 1),
        (l2norm(), 1),
        (local_response(), 1),
        (rmsnorm_fp8(), 2),
        (qk_norm(), 4),
    )
}
_ = const
