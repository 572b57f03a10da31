"""Functions that a spec defines under a name that the language or the prelude has: it means its own, and the
prelude what it meant before. And which outputs are differentiated where a spec does not say."""

from __future__ import annotations

import pytest

from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.dsl.functions import built_in, built_in_names, prelude
from normgen.ir.program import Definition

HEAD = "norm own\ninput x[B, D]\ninput z[B, D]\n"


def loaded(text: str) -> Definition:
    return load_definition(Source("own.norm", HEAD + text), {})


def value_of(text: str) -> object:
    (result,) = loaded(text).program.results
    return result.expr


def of_the_language(name: str) -> tuple[bool, int]:
    """Whether a function takes axes, and how many values, in one way of calling it."""
    if name in prelude():
        function = prelude()[name]
        return function.axis is not None, len(function.parameters)
    called = built_in(name)
    assert called is not None
    return bool(called.axes), called.parameters


@pytest.mark.parametrize("name", [*built_in_names(), *prelude()])
def test_any_name_may_be_hidden(name: str) -> None:
    """By a function of other arguments too, with which no other would be taken for it."""
    axes, count = of_the_language(name)
    for brackets, extra in (("[A]" if axes else "", 0), ("" if axes else "[A]", 1)):
        parameters = [f"p{k}" for k in range(count + extra)]
        body = " + ".join(f"{k + 2} * {p}" for k, p in enumerate(parameters))
        own = f"fn {{}}{brackets}({', '.join(parameters)}) = {body}\n"
        given = ", ".join(("x", "z", "x * z", "2")[: len(parameters)])
        call = f"output y[B, D] = {{}}{brackets.replace('A', 'D')}({given}) + 0 * z\n"
        hidden, plain = (value_of((own + call).format(n, n)) for n in (name, "of_its_own"))
        assert hidden is plain, name


@pytest.mark.parametrize(
    ("own", "uses"),
    [
        ("fn mean[A](v) = max[A](v)", "var[D](x)"),
        ("fn exp(v) = v^2", "x * logsumexp[D](x)"),
        ("fn max(a, b) = a + b", "relu(x)"),
        ("fn sum[A](v) = v", "x * rms[D](x)"),
    ],
)
def test_the_prelude_keeps_its_meaning(own: str, uses: str) -> None:
    output = f"output y[B, D] = z + {uses}\n"
    assert value_of(f"{own}\n{output}") is value_of(output)


def test_functions_of_ones_own_mean_those_of_ones_own() -> None:
    text = "fn mean[A](v) = max[A](v)\nfn centred[A](v) = v - mean[A](v)\noutput y[B, D] = centred[D](x)\n"
    assert value_of(text) is value_of("output y[B, D] = x - max[D](x)\n")


@pytest.mark.parametrize(
    ("outputs", "of"),
    [
        ("output q[B, D]: f8e4m3 = x\n", ()),
        ("output q[B, D]: f8e5m2 = x\noutput y[B, D] = 2 * x\n", ("y",)),
        ("input e[B, D]: f8e4m3\noutput u[B, D]: like e = z\noutput y[B, D] = x\n", ("y",)),
        ("output y[B, D]: bf16 = x\noutput s[B] = max[D](x)\n", ("y", "s")),
        ("output q[B, D]: f8e4m3 = x\noutput y[B, D] = z\ngrad q, y wrt x\n", ("q", "y")),
    ],
)
def test_outputs_of_8_bits_are_differentiated_where_that_is_said(outputs: str, of: tuple[str, ...]) -> None:
    assert loaded(outputs).of == of
