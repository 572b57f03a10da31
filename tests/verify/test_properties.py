"""Properties over drawn shapes, element types, strides and offsets, and over drawn specs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, note, settings
from hypothesis import strategies as st

from normgen.diagnostics import Source, SpecError
from normgen.dsl import load_definition
from normgen.dsl.syntax import parse
from normgen.ir.centre import centre
from normgen.ir.grad import backward
from normgen.ir.reference import check_gradient, evaluate
from normgen.verify.bounds import BACKWARD_SLACK, Setting, analyse
from normgen.verify.cases import DTYPE_SETS, Case, make_case
from normgen.verify.compare import compare
from normgen.verify.draw import attr_choices, draw, scalar_values
from normgen.verify.gradient import CENTRING_TOLERANCE, TOLERANCE
from normgen.verify.memory import PITCHES
from tests.channel_specs import channel_specs
from tests.sampling import sampled
from tests.strategies import distinct_arrays, well_typed_specs
from tests.verify.subjects import CHECKED, PLAIN, bundled_subject, prove, subject_of

# Drawn the same in every run, so that the kernels are found compiled; not shrunk, which compiles hundreds
# more.
STEADY = settings(
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much),
)
ANY_SPECS = well_typed_specs() | channel_specs()
FAMILIES = {
    "one input": ("rmsnorm", "layernorm", "softmax", "log_softmax", "l2norm", "dyt"),
    "several inputs": ("add_rmsnorm", "gated_rmsnorm", "adaln_modulate", "qk_norm"),
}
ATTRS = {"qk_norm": (("head_dim", 64),), "gated_rmsnorm": (("norm_before_gate", True),)}
# Few widths, since kernels are specialised by them, but of every kind; numbers of rows are free.
WIDTHS = (1, 5, 8, 24, 33, 96, 127, 320, 768, 1001, 2048, 6144)


@st.composite
def layouts(draw_from: st.DrawFn, names: tuple[str, ...]) -> tuple[str, Case]:
    name = draw_from(st.sampled_from(names))
    subject = bundled_subject(name, ATTRS.get(name, ()))
    width = draw_from(st.sampled_from(WIDTHS))
    rows = draw_from(st.integers(0, max(1, min(70, 50_000 // width))))
    case = make_case(subject.definition, rows, width, draw_from(st.sampled_from(DTYPE_SETS)))
    params = [t.name for t in subject.definition.program.operands if t.default is not None]
    return name, replace(
        case,
        offset=draw_from(st.integers(0, 3)),
        out_offset=draw_from(st.integers(0, 3)),
        pitch=draw_from(st.sampled_from(PITCHES)),
        given_out=draw_from(st.booleans()),
        accumulate=draw_from(st.booleans()),
        absent=tuple(draw_from(st.lists(st.sampled_from(params), unique=True))) if params else (),
        seed=draw_from(st.integers(0, 1000)),
    )


@pytest.mark.parametrize("family", sampled(FAMILIES, 0))
def test_any_layout(family: str) -> None:
    @given(layouts(FAMILIES[family]))
    @settings(STEADY, max_examples=30)
    def check(drawn: tuple[str, Case]) -> None:
        name, case = drawn
        note(f"{name} {case}")
        prove(bundled_subject(name, ATTRS.get(name, ())), case, CHECKED if case.seed % 3 else PLAIN)

    check()


def definition_of(text: str):  # type: ignore[no-untyped-def]
    source = Source("drawn.norm", text)
    return load_definition(source, attr_choices(parse(source), {})[-1])


@given(ANY_SPECS, st.integers(0, 5))
@settings(STEADY, max_examples=80)
def test_drawn_specs_have_the_gradient_of_their_differences(text: str, seed: int) -> None:
    """And the centred programs, which the kernels are made of, have the values of the plain ones."""
    note(text)
    definition = definition_of(text)
    derived = backward(definition)
    case = make_case(definition, 3, 5)
    scalars = scalar_values(definition.program)
    tensors = (*definition.program.operands, *(t for t in derived.operands if t.role == "cotangent"))
    arrays = distinct_arrays(tensors, case.extents, seed)
    errors = check_gradient(definition, derived, arrays, case.extents, scalars)
    assert all(error <= TOLERANCE for error in errors.values()), errors
    saved = evaluate(definition.program, arrays, case.extents, scalars)
    for program, given_arrays in ((definition.program, arrays), (derived, {**saved, **arrays})):
        plain = evaluate(program, given_arrays, case.extents, scalars)
        for name, value in evaluate(centre(program), given_arrays, case.extents, scalars).items():
            scale = max(float(np.max(np.abs(plain[name]))), 1e-3)
            assert np.max(np.abs(value - plain[name])) <= CENTRING_TOLERANCE * scale, name


@given(ANY_SPECS, st.sampled_from([0.0, 3.0, 1000.0]), st.integers(1, 5), st.integers(1, 300))
@settings(STEADY, max_examples=80)
def test_float32_evaluation_of_drawn_specs_stays_within_the_bounds(
    text: str, shift: float, rows: int, width: int
) -> None:
    note(text)
    definition = definition_of(text)
    scalars = scalar_values(definition.program)
    case = make_case(definition, rows, width)
    arrays = dict(draw(definition, case, scalars).arrays)
    arrays["x"] = (arrays["x"] + shift).astype(np.float32).astype(np.float64)
    saved = {
        name: value.astype(np.float32).astype(np.float64)
        for name, value in evaluate(definition.program, arrays, case.extents, scalars).items()
    }
    for program in (definition.program, backward(definition)):
        centred = centre(program)
        read = {**saved, **arrays}
        truth = evaluate(centred, read, case.extents, scalars)
        got = evaluate(centred, read, case.extents, scalars, dtype=np.float32)
        bounds = analyse(centred, Setting(read, case.extents, scalars, case.dtypes), slack=BACKWARD_SLACK)
        for name, bound in bounds.items():
            found = compare(got[name], "f32", truth[name], bound.error)
            assert found.worst <= 1.0, (name, found)


@given(
    well_typed_specs(), st.integers(0, 3), st.sampled_from([1, 7, 33, 128, 300]), st.sampled_from(DTYPE_SETS)
)
@settings(STEADY, max_examples=24)
def test_kernels_of_drawn_specs(text: str, rows: int, width: int, dtypes) -> None:  # type: ignore[no-untyped-def]
    note(text)
    try:
        subject = subject_of(
            Source("drawn.norm", text), attr_choices(parse(Source("drawn.norm", text)), {})[-1]
        )
    except SpecError as error:  # a shape of reduction that has no kernel yet
        assert [d.code for d in error.diagnostics] == ["unsupported"]
        assume(False)
    prove(subject, make_case(subject.definition, rows, width, dtypes))
