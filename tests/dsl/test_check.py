"""What expressions mean, and faults of a spec beyond those of `tests/diagnostics.md`, all in one run."""

from __future__ import annotations

from fractions import Fraction

import pytest

from normgen.diagnostics import SpecError
from normgen.ir import expr as ir

from .loading import faults, load

D = frozenset({"D"})
BD = frozenset({"B", "D"})
X, W = ir.load("x", BD), ir.load("w", D)
HEAD = """norm example
attr   n: int = 5
attr   k = 1
attr   flag: bool = true
axis   G = n - 3
input  x[B, D]
input  z[(G C)]
param  w[D] = 1
"""


def define(value: str, axes: str = "B, D", head: str = HEAD, **attrs: object) -> ir.Expr:
    """The IR of a value with these axes."""
    definition = load(f"{head}output y[{axes}] = {value}\n", **attrs)
    return definition.program.results[-1].expr


def fault(statements: str, head: str = HEAD, **attrs: object) -> str:
    """Code and headline of the one fault of statements after the usual head."""
    ((code, message),) = faults(f"{head}{statements}\noutput last[B, D] = x * w\n", **attrs)
    return f"{code}: {message}"


# ---- expressions


@pytest.mark.parametrize(
    ("value", "axes", "expected"),
    [
        ("2 * x / 4", "B, D", ir.mul(Fraction(1, 2), X)),
        ("-x^2", "B, D", ir.neg(ir.power(X, 2))),
        ("x^-0.75", "B, D", ir.power(X, Fraction(-3, 4))),
        ("x^k", "B, D", ir.power(X, ir.scalar("k"))),
        ("max(x, w)", "B, D", ir.call("max", X, W)),
        ("min[B, D](x)", "", ir.reduce("min", ("B", "D"), X)),
        ("x * size[G]", "B, D", ir.mul(X, ir.extent("G"))),  # a symbol: it must cancel with lengths of sums
        ("sum[D: -(n // 2)..(n - 1) // 2](x)", "B, D", ir.window_sum(X, (("D", -2, 2),))),
        ("sum[D: 0..1, B: -1..0](x)", "B, D", ir.window_sum(X, (("B", -1, 0), ("D", 0, 1)))),
        ("sum[C: -1..1](z)", "(G C)", ir.window_sum(ir.load("z", ("G", "C")), (("C", -1, 1),))),
        ("bf16(x)", "B, D", ir.round_to(X, "bf16")),
        ("cast(x^2, w)", "B, D", ir.round_to(ir.power(X, 2), "like w")),
        (
            "x if x < w and not x == 0 or w > 1 else 0",
            "B, D",
            ir.select(
                ir.call(
                    "or",
                    ir.call("and", ir.compare("<", X, W), ir.call("not", ir.compare("==", X, 0))),
                    ir.compare(">", W, 1),
                ),
                X,
                0,
            ),
        ),
        ("stop(x)", "B, D", ir.call("stop", X)),
    ],
)
def test_expressions(value: str, axes: str, expected: ir.Expr) -> None:
    assert define(value, axes) is expected


def test_constants() -> None:
    for value, number in {
        "(0 - 1) // 2": -1,
        "-n // 2": -3,
        "n // (0 - 2)": -3,
        "n / 2": 2.5,
        "2^-1": 0.5,
        "max(n, 7) // 2": 3,
        "abs(0 - n) // 2": 2,
        "size[G] // 2": 1,
        "4^0.5": 2,
        "3 if n == 4 else 7": 7,
        "3 if flag and n != 5 else 7": 7,
        "3 if not flag or True else 7": 3,
        "1 if 0.1 + 0.2 == 0.3 else 0": 1,
        "3 if false else 7 if flag else 8": 7,
    }.items():
        assert define(value, "") is ir.const(Fraction(str(number))), value


def test_the_branch_not_taken_has_no_say() -> None:
    """Its names are checked; its axes, and what it computes, are not."""
    assert define("x if flag else mean[B](x)") is X
    assert define("x if flag else sum[C](x)") is X
    assert define("x if flag else x / (n - 5)") is X
    assert define("x if flag else mean[B](x)", "D", flag=False) is not X
    for value, named in (
        ("nothing", "`nothing` is not defined"),
        ("mean[Q](x)", "no tensor above has an axis `Q`"),
        ("x < 1 + bad(x)", "there is no function `bad`"),
    ):
        assert fault(f"let v = x if flag else {value}\noutput y[B, D] = v") == f"name: {named}"


def test_axes_are_those_of_the_text() -> None:
    """Folding does not change what a result must declare."""
    assert define("x^0", "B, D") is ir.ONE
    assert fault("let a[] = x^0\noutput y[B, D] = x * a") == (
        "axes: `a` is declared without axes `B` and `D`, but its value varies over them"
    )


def test_names_inside_functions() -> None:
    text = HEAD + "fn f[A](v, w) = sum[A](v) * w\nfn g[B](x) = f[B](x, 2)\n"
    value = load(text + "output y[] = g[B, D](x)\n").program.results[0].expr
    assert value is ir.mul(2, ir.reduce("sum", ("B", "D"), X))


# ---- faults


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        # Names.
        ("let v[B, D] = x\nlet dv = x\ngrad v wrt w", "name: `dv` is the name of a gradient"),
        ("let v = silu", "name: `silu` is a function"),
        ("let v = x(w)", "name: `x` is a value, not a function"),
        ("let v = size(x)", "name: `size` takes axes"),
        ("fn size(v) = v", "name: `size` is part of the language and cannot be redefined"),
        (
            "let v = sum[D](x)\nfn sum(v) = v",
            "name: `sum` is defined after a call of the function that it replaces",
        ),
        (
            "fn sum(v) = sum[D](v)",
            "name: `sum` calls itself, but functions are expanded where they are called",
        ),
        ("fn exp(v) = v\nfn exp(v) = 2 * v", "name: function `exp` is already defined"),
        # Axes.
        ("let v = max[B, D](w)", "axes: the argument of this max does not vary over `B`"),
        # Arguments.
        ("let v = sum[D](x, w)", "arguments: `sum` takes one argument, not 2"),
        ("let v = mean[D]", "arguments: `mean` has no arguments here"),
        # Windows.
        (
            "let v = sum[D: 0..99999999](x)",
            "window: the window from 0 to 99999999 reaches beyond 1048576 elements",
        ),
        ("let v = size[D: 0..1]", "window: `size` takes axes, not windows"),
        (
            "fn f[A](v) = sum[A: 0..1](v)\nlet v = f[B, D](x)",
            "window: the function sums over a window of one axis, but this call passes 2",
        ),
        # Integers and numbers.
        ("let v = (0 - 8)^0.5", "number: root of a negative number"),
        ("let v = log(0)", "number: the logarithm of a number that is not above 0"),
        ("let v = x^1001", "number: the exponent is 1001, but a constant exponent is at most 1000"),
        ("let v = 1e30 * 1e30", "number: this constant is larger than the largest float32, 3.402823e+38"),
        ("let v = 0^-1", "number: division by zero"),
        ("let v = k // 2", "integer: an operand of `//` must be an integer known at compile time"),
        # Types.
        ("let v = flag", "type: a bool is a condition, not a number"),
        # Tensors.
        ("input v[B]: like u", "name: no tensor `u` is declared above"),
        # States.
        ("update v = x", "name: no state `v` is declared above"),
        (
            "state v[D] = 0\nupdate v = x",
            "axes: `v` is declared without axis `B`, but its value varies over it",
        ),
        # What is differentiated.
        ("grad last wrt k", "grad: `k` is an attr, and an attr has no gradient"),
        ("grad last wrt x, x", "grad: `x` is listed twice"),
        ("grad last wrt last", "grad: `last` is not an input, a param or a `let`"),
        ("grad last wrt x\ngrad last wrt w", "grad: a second `grad`"),
    ],
)
def test_faults(statements: str, expected: str) -> None:
    assert fault(statements) == expected


def test_every_fault_of_a_file_in_one_run_and_none_twice() -> None:
    text = """norm for
attr   n: int
attr   m = 1 / 0
axis   G = n
input  x[..., D]
param  w[D] = missing
let    a = x * unknown
let    b = a + 1
save   c[...] = b
save   d[...] = x
let    e = (x / 0) * (x < 1) + other
output y[..., D] = a * b * c * d * e * w * m
"""
    assert faults(text, extra=1) == [
        ("name", "`for` is a keyword of Python and cannot be a name"),
        ("attr", "`for` has no attr `extra`"),
        ("attr", "attr `n` has no value, and an int needs one"),
        ("number", "division by zero"),
        ("name", "`missing` is not defined"),
        ("name", "`unknown` is not defined"),
        ("axes", "`d` is declared without axis `D`, but its value varies over it"),
        ("number", "division by zero"),
        ("type", "a comparison is a condition, not a number"),
        ("name", "`other` is not defined"),
    ]


def test_a_spec_reads_and_writes() -> None:
    text = "norm t\nparam w[]\noutput y[] = w\ninput x[D]\n"
    assert faults(text) == [("input", "`y` takes its dtype from the first input, which is declared below it")]


# ---- bounds


def test_numbers_do_not_grow_without_bound() -> None:
    square = "\n".join(f"let v{i} = v{i - 1} * v{i - 1}" for i in range(1, 40))
    for lets, value in (("let v0 = 1.00001 * x\n" + square, "v39"), ("", "(((2 * x)^1000)^1000)^1000")):
        assert faults(f"norm t\ninput x[D]\n{lets}\noutput y[D] = {value}\n") == [
            ("number", "the constants of this expression grow too large")
        ]


def test_chains_of_functions_are_cut_short() -> None:
    chain = "\n".join(f"fn g{i}(v) = g{i - 1}(v)" for i in range(1, 400))
    ((code, _),) = faults(f"norm t\nfn g0(v) = v\n{chain}\ninput x[D]\noutput y[D] = g399(x)\n")
    assert code == "nesting"


def test_long_chains_of_lets() -> None:
    """As deep as a file may be: it is fine, or it is said to be too deep."""
    chain = "\n".join(f"let v{i} = exp(v{i - 1}) + 1" for i in range(1, 3000))
    text = f"norm t\ninput x[D]\nlet v0 = x\n{chain}\noutput y[D] = v2999\n"
    try:
        load(text)
    except SpecError as error:
        assert [d.code for d in error.diagnostics] == ["nesting"]


def test_fractional_exponents_cost_nothing() -> None:
    for value in ("2.5^1e-20", "(2 * x)^0.123456789", "10^30 * x^0.00000001"):
        load(f"norm t\ninput x[D]\noutput y[D] = x * {value}\n")
