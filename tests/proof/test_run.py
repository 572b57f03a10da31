"""The proof as a run: what it draws and covers, that it sees planted faults, and that it passes over
nothing in silence."""

from __future__ import annotations

import ctypes
from itertools import groupby, product
from math import prod
from typing import Any

import numpy as np
import pytest

from normgen import bundled
from normgen.codegen.package import package
from normgen.diagnostics import Source, SpecError
from normgen.dsl import load_definition
from normgen.dsl.syntax import parse
from normgen.dtypes import DTYPES
from normgen.ir.program import Definition
from normgen.proof import run as proof
from normgen.proof import spaces
from normgen.proof.cases import DTYPE_SETS, Case, make_case
from normgen.proof.coverage import ROWS, WIDTHS, covering, thorough
from normgen.proof.draw import NORMAL, POSITIVE, Sample, attr_choices, draw, parse_sample, scalar_values
from normgen.proof.memory import HOST, layout
from normgen.proof.run import CHECKED_ELEMENTS, FAILED, OK, SKIPPED, Options, Place, Progress, Row, run
from normgen.runtime import arrays
from normgen.runtime.binding import bind
from normgen.runtime.errors import DeviceMissing
from normgen.runtime.host import HostExecutor
from normgen.runtime.launch import plan_launches
from normgen.runtime.norm import Norm
from normgen.runtime.query import USUAL_DEVICE


def source(name: str) -> Source:
    found = bundled.read(name)
    assert found is not None
    return found


def rows_of(where: Source, options: Options) -> list[Row]:
    return [event for event in run(where, options) if isinstance(event, Row)]


TEXT = """norm drawn
attr n: int
attr on: bool = true
attr scale
input x[..., D]
param w[D] = 2
output y[..., D] = x * w * scale + n if on else log(x) * w * scale + n
"""


@pytest.mark.parametrize(
    ("given", "count"),
    [({}, 6), ({"n": 3}, 2), ({"on": False}, 3), ({"n": 3, "on": True}, 1), ({"scale": 2.0}, 6)],
)
def test_attr_choices(given: dict[str, object], count: int) -> None:
    choices = attr_choices(parse(Source("d.norm", TEXT)), given)
    assert len(choices) == count
    assert all(choice.items() >= given.items() for choice in choices)
    if not given:
        assert {(c["n"], c["on"]) for c in choices} == {(n, on) for n in (1, 2, 4) for on in (False, True)}


def test_draws() -> None:
    """N(0, 1); 0.2 around a default; U(0.5, 1.5) where the result of the first is not finite; what was
    asked for."""
    definition = load_definition(Source("d.norm", TEXT), {"n": 1, "on": True})
    case, scalars = make_case(definition, 33, 100), scalar_values(definition.program)
    assert scalars == {"scale": 0.5}
    drawn = draw(definition, case, scalars)
    assert (drawn.text, drawn.finite) == ("x N(0, 1), w U(1.8, 2.2), dy N(0, 1)", True)
    assert abs(drawn.arrays["x"].mean()) < 0.1 and 0.9 < drawn.arrays["x"].std() < 1.1
    assert np.all(np.abs(drawn.arrays["w"] - 2) <= 0.2)
    again = draw(definition, case, scalars)
    assert all(np.array_equal(drawn.arrays[k], again.arrays[k]) for k in drawn.arrays), "repeatable"
    logarithm = load_definition(Source("d.norm", TEXT), {"n": 1, "on": False})
    assert draw(logarithm, case, scalars).text == "x U(0.5, 1.5), w U(1.8, 2.2), dy N(0, 1)"
    asked = draw(definition, case, scalars, {"x": Sample("constant", 7.0)})
    assert np.all(asked.arrays["x"] == 7.0) and asked.text.startswith("x 7,")


@pytest.mark.parametrize(
    ("text", "sample"),
    [
        ("normal(0, 1)", NORMAL),
        (" uniform(0.5,1.5) ", POSITIVE),
        ("constant(7)", Sample("constant", 7.0)),
        ("1e6", Sample("constant", 1e6)),
    ],
)
def test_samples(text: str, sample: Sample) -> None:
    assert parse_sample(text) == sample


@pytest.mark.parametrize(
    "text", ["", "normal", "normal(1)", "normal(0, 1", "cauchy(0, 1)", "constant()", "normal(a, b)"]
)
def test_samples_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="no distribution"):
        parse_sample(text)


@pytest.mark.parametrize("name", ["layernorm", "softmax", "add_rmsnorm"])
def test_the_covering_cases_cover(name: str) -> None:
    """Every width with every number of rows, in one layout and one set of element types each."""
    cases = covering(load_definition(source(name)))
    assert {(case.extents["..."], case.extents["D"]) for case in cases} >= set(product(ROWS, WIDTHS))
    assert {case.dtype_name for case in cases} >= {dtypes.name for dtypes in DTYPE_SETS}
    assert {case.offset for case in cases} == {0, 1, 2, 3}
    assert {case.padded for case in cases} == {case.given_out for case in cases} == {False, True}
    assert {len(case.rest) for case in cases} >= {1, 2}
    if name == "layernorm":
        assert {case.absent for case in cases} >= {(), ("w",), ("b",)}
    for group in {case.group for case in cases}:
        kinds = {(c.dtype_name, c.offset, c.padded, c.absent, c.save) for c in cases if c.group == group}
        assert len(kinds) == 1, "what shares a group shares its kernels"


@pytest.mark.parametrize("name", ["rmsnorm", "layernorm"])
def test_numbers_of_rows_share_kernels(name: str) -> None:
    """Of one group, a single row may differ, whose distance from the next says nothing; no rows need none."""
    definition = load_definition(source(name))
    norm = Norm(package(definition))
    for group, cases in groupby(covering(definition), key=lambda case: case.group):
        texts = {
            text for case in cases if case.extents["..."] > 1 for text in sources(norm, definition, case)
        }
        assert len(texts) == 1, group


def sources(norm: Norm, definition: Definition, case: Case) -> set[str]:
    """The texts that a forward of the case would run."""
    direction, views = norm._forward.direction, {}
    for tensor in definition.program.operands:
        kind = DTYPES[case.dtypes[tensor.name]].numpy
        where = layout(case.memory_shape(tensor), case.offset, case.padded)
        buffer = np.empty(where.length, kind)
        views[tensor.name] = arrays.view(HOST.upload(buffer, where))
    bound = bind(direction, views, {}, tuple(direction.results))
    assert not bound.copies
    plan = plan_launches(direction.record, bound.binding, USUAL_DEVICE, "")
    return {launch.source for launch in plan.launches}


# A spec and attrs; what its statistics go over; which lengths its cases must have.
SPACES = {
    "batchnorm": ("training", {"B": {1, 2, 3, 33, spaces.MANY}, "C": {1, 2, 3, 7, 8, 33, 100, 128}}),
    "groupnorm": ("groups", {"B": {0, 1, 2, 3, 33, spaces.MANY}, "C": {1, 2, 3, 10, 33, 128}}),
    "softmax2d": (None, {"B": {0, 1, 2, 3, 33}, "C": {1, 10, 33, 128}, "H": {1, 7, 32}, "W": {1, 7, 32}}),
    "local_response_norm": (None, {"B": {0, 1, 33}, "C": {1, 2, 3, 7, 10, 33, 100}}),
}


@pytest.mark.parametrize("name", SPACES)
def test_the_cases_of_channels_cover(name: str) -> None:
    """Batch, channels and space vary apart; `...` is of no to three dimensions; all kinds of calls occur."""
    attr, lengths = SPACES[name]
    for attrs in attr_choices(parse(source(name)), {}):
        cases = covering(load_definition(source(name), attrs))
        assert attr is None or attr in attrs
        for axis, wanted in lengths.items():
            assert {case.extents[axis] for case in cases} >= wanted, axis
        assert {prod(case.rest) for case in cases} >= {1, 49, 196, 1024} or "H" in lengths
        assert {len(case.rest) for case in cases} >= {0, 1, 2, 3} or "H" in lengths
        assert {case.offset for case in cases} == {0, 1, 2, 3}
        assert {case.padded for case in cases} == {case.save for case in cases} == {False, True}
        assert {case.accumulate for case in cases} == {case.given_out for case in cases} == {False, True}
        assert {case.dtype_name for case in cases} >= {dtypes.name for dtypes in DTYPE_SETS}
        assert len(cases) <= 80
        if name == "batchnorm":
            left_out = {name for case in cases for name in case.absent}
            assert left_out == {"w", "b"} | ({"running_mean", "running_var"} if attrs["training"] else set())


@pytest.mark.parametrize(
    ("name", "attrs", "rows"),
    [
        ("layernorm", {}, True),
        ("dyt", {}, True),
        ("qk_norm", {"head_dim": 4}, True),
        ("adaln_modulate", {}, True),
        ("batchnorm", {}, False),
        ("groupnorm", {"groups": 2}, False),
        ("softmax2d", {}, False),
        ("local_response_norm", {}, False),
        ("rmsnorm_fp8", {}, False),
    ],
)
def test_which_specs_are_of_rows(name: str, attrs: dict[str, object], rows: bool) -> None:
    given = attr_choices(parse(source(name)), attrs)[0]
    assert spaces.is_of_rows(load_definition(source(name), given)) is rows


@pytest.mark.parametrize("name", bundled.names())
def test_cases_of_every_spec_have_sizes_in_reason(name: str) -> None:
    for attrs in attr_choices(parse(source(name)), {}):
        definition = load_definition(source(name), attrs)
        for case in (*covering(definition), *thorough(definition)):
            assert case.elements(definition) <= 33 * 65537 + 4 * 65537
            for tensor in definition.program.operands:
                assert np.prod(case.memory_shape(tensor)) == np.prod([case.extents[a] for a in tensor.order])


def test_large_cases_run_where_nothing_checks_and_all_of_them() -> None:
    checked, sampled = Place("checked", None, HOST, limit=CHECKED_ELEMENTS), Place("s", None, HOST, every=3)
    assert [checked.takes(group, 100) for group in range(4)] == [True] * 4
    assert [sampled.takes(group, 100) for group in range(4)] == [True, False, False, True]
    assert not checked.takes(0, 33 * 65537) and all(sampled.takes(group, 33 * 65537) for group in range(4))


def test_sizes_and_dtypes_are_what_was_asked_for() -> None:
    definition = load_definition(source("rmsnorm"))
    cases = covering(definition, {"D": 300})
    assert {case.extents["D"] for case in cases} == {300}
    rows = rows_of(source("rmsnorm"), Options(sizes={"D": 20}, dtype="bf16", executors=("host",)))
    kernels = [row for row in rows if row.stage == "kernels"]
    assert kernels and {row.dtypes for row in kernels} == {"bf16"}
    assert all("D=20" in row.shape for row in kernels)


def test_progress_reaches_its_end() -> None:
    events = list(run(source("l2norm"), Options(sizes={"D": 8}, dtype="f32", executors=("host",))))
    progress = [event for event in events if isinstance(event, Progress)]
    assert [event.done for event in progress] == sorted(event.done for event in progress)
    assert progress[-1].done == progress[-1].total > 0


class Off(HostExecutor):
    """A host whose results are all off by a little: the number is relative."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by

    def launch(self, function: Any, launch: Any, packed: bytes, buffers: Any, stream: int) -> None:
        super().launch(function, launch, packed, buffers, stream)
        for buffer in buffers:
            if buffer.access == "write" and buffer.itemsize == 4:
                memory = (ctypes.c_float * (buffer.bytes // 4)).from_address(buffer.pointer)
                values = np.frombuffer(memory, np.float32)
                values *= np.float32(1 + self.by)


@pytest.mark.parametrize("name", ["rmsnorm", "layernorm", "softmax", "l2norm"])
@pytest.mark.parametrize(("by", "status"), [(0.0, OK), (2e-5, FAILED), (-2e-5, FAILED)])
def test_planted_errors_fail(name: str, by: float, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "_places", lambda wanted: ([Place("planted", Off(by), HOST)], []))
    monkeypatch.setattr(proof.case_lists, "covering", lambda *about: covering(*about)[:4])
    rows = rows_of(source(name), Options(sizes={"D": 128}, dtype="f32"))
    kernels = [row for row in rows if row.stage == "kernels" and "=0 " not in row.shape]
    assert {row.status for row in kernels} == {status}
    assert {row.direction for row in kernels} == {"forward", "backward"}


class Broken(HostExecutor):
    def launch(self, *args: Any) -> None:
        raise RuntimeError("a fault\nin detail")


def test_a_fault_is_a_failed_row_and_the_rest_still_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    places = [Place("broken", Broken(), HOST), Place("sound", HostExecutor(), HOST)]
    monkeypatch.setattr(proof, "_places", lambda wanted: (places, []))
    rows = [
        r for r in rows_of(source("l2norm"), Options(sizes={"D": 8}, dtype="f32")) if "=0 " not in r.shape
    ]
    broken = [row for row in rows if row.executor == "broken"]
    assert broken and all(
        r.status == FAILED and r.note == "RuntimeError: a fault / in detail" for r in broken
    )
    assert {row.status for row in rows if row.executor == "sound"} == {OK}


def test_what_has_no_kernel_yet_says_so() -> None:
    text = "norm column\ninput x[B, D]\nparam w[D] = 1\noutput y[B, D] = x * w / (1 + sum[B](x^2))\n"
    rows = rows_of(Source("column.norm", text), Options(executors=("host",)))
    kernels = [row for row in rows if row.stage == "kernels"]
    assert [row.status for row in kernels] == [SKIPPED]
    assert kernels[0].note.startswith("no kernel yet: `column`")
    assert any(row.stage == "differences" and row.ok for row in rows)


def test_a_missing_gpu_is_a_row_unless_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> list[Place]:
        raise DeviceMissing("no CUDA driver")

    monkeypatch.setitem(proof._MAKERS, "cuda", missing)
    rows = rows_of(source("l2norm"), Options(sizes={"D": 8}, dtype="f32"))
    assert [(row.executor, row.note) for row in rows if row.status == SKIPPED] == [("cuda", "no CUDA driver")]
    with pytest.raises(DeviceMissing):
        rows_of(source("l2norm"), Options(executors=("cuda",)))


def test_a_faulty_spec_is_its_diagnostics() -> None:
    with pytest.raises(SpecError):
        rows_of(Source("bad.norm", "norm bad\ninput x[D]\noutput y[D] = z\n"), Options())
