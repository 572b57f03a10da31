"""Terms are added as a spec has them: x and m may be large and alike, and what is added to x - m small."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, note, settings
from hypothesis import strategies as st

import normgen
from normgen.diagnostics import Source, SpecError
from normgen.runtime.norm import Norm
from normgen.verify.cases import make_case
from normgen.verify.draw import Sample
from tests.axis_specs import axis_specs
from tests.poisoned import poisoned
from tests.strategies import well_typed_specs
from tests.verify.subjects import CHECKED, PLAIN, prove, subject_of
from tests.verify.test_properties import STEADY

FAR = {"x": Sample("normal", 1e5, 1.0), "m": Sample("normal", 1e5, 1.0), "b": Sample("normal", 0.0, 1e-3)}
SPECS = {
    "of a row and of a column": """
        input x[..., D]
        input m[...]
        param b[D]
        output y[..., D] = (x - m) + b
    """,
    "two of the row": """
        input x[..., D]
        input m[...]
        input b[...]
        output y[..., D] = x - m + b
    """,
    "with factors": """
        input x[..., D]
        input m[...]
        input b[...]
        output y[..., D] = (abs(x) - m) * sigmoid(b) + b
    """,
    "from a maximum": """
        input x[..., D]
        save top[...] = max[D](x)
        output y[..., D] = (abs(x) - top) * tanh(top) - log(sum[D](exp(x - top)))
    """,
    "summed over rows": """
        input x[B, D]
        param b[D]
        save top[B] = max[D](x)
        save s[D] = sum[B](abs(x) - top)
        output y[B, D] = x - top + s * b
    """,
    "summed over rows and columns": """
        input x[B, S, D]
        param b[D]
        save top[B, S] = max[D](x)
        save s[B] = sum[S, D]((abs(x) - top) * b)
        output y[B, S, D] = s + (x - top)
    """,
}


def prove_far(text: str) -> None:
    """Every strategy of a spec, on operands of which differences are small."""
    subject = subject_of(Source("far.norm", text))
    package, samples = subject.norm.package, {k: v for k, v in FAR.items() if f" {k}[" in text}
    passes = [record for record in (package.forward, package.backward) if record is not None]
    for strategy in dict.fromkeys(s.name for record in passes for s in record.strategies):
        named = replace(subject, norm=Norm(package, planner=poisoned(4, strategy)))
        prove(named, make_case(subject.definition, 3, 40), PLAIN, samples)


@pytest.mark.parametrize("name", SPECS)
def test_terms_are_added_as_written(name: str) -> None:
    prove_far(f"norm far{SPECS[name]}")


@given(st.one_of(well_typed_specs(), axis_specs()))
@settings(STEADY, max_examples=4)
def test_terms_of_drawn_specs_are_added_as_written(text: str) -> None:
    note(text)
    try:
        prove_far(text)
    except SpecError as error:
        assert [d.code for d in error.diagnostics] == ["unsupported"], error
        assume(False)


@pytest.mark.parametrize("size", [2, 300, 9000])
@pytest.mark.parametrize("value", [1e8, -3e9])
def test_log_softmax_of_what_is_large_keeps_its_normalizer(size: int, value: float) -> None:
    x = np.full((1, size), value, np.float32)
    for made in (
        normgen.load("log_softmax"),
        normgen.load("norm by_hand\ninput x[..., D]\noutput y[..., D] = log_softmax[D](x)"),
    ):
        y = made.on(CHECKED).forward(x).y
        np.testing.assert_allclose(y, np.full((1, size), -np.log(size)), rtol=1e-6)


@pytest.mark.parametrize(("t", "end"), [(0.0, "a"), (1.0, "b")])
def test_lerp_is_exact_at_both_ends(t: float, end: str) -> None:
    spec = "norm between\nattr t = 0.5\ninput a[..., D]\ninput b[..., D]\noutput y[..., D] = lerp(a, b, t)"
    given_arrays = {"a": np.array([[1, -1e8, 1e-8]], np.float32), "b": np.array([[1e-8, 3, 1e8]], np.float32)}
    made = normgen.load(spec).on(CHECKED).forward(**given_arrays, t=t).y
    np.testing.assert_array_equal(made, given_arrays[end])


def test_momentum_1_keeps_the_statistics_of_the_batch() -> None:
    x = (1e-4 * np.random.default_rng(0).standard_normal((8, 3, 5))).astype(np.float32)
    mean, variance = np.zeros(3, np.float32), np.ones(3, np.float32)
    norm = normgen.load("batchnorm", momentum=1.0).on(CHECKED)
    norm.forward(x, running_mean=mean, running_var=variance)
    exact = x.astype(np.float64)
    np.testing.assert_allclose(mean, exact.mean((0, 2)), rtol=1e-5, atol=1e-10)
    np.testing.assert_allclose(variance, exact.var((0, 2), ddof=1), rtol=1e-5)
