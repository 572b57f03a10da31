"""A check as a run: what it draws and covers, that it sees planted faults, and that it passes over
nothing in silence."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from normgen.devices.host.executor import HostExecutor, HostFault
from normgen.diagnostics import Diagnostic, Source, SpecError
from normgen.dsl import load_definition
from normgen.dsl.syntax import parse
from normgen.errors import DeviceMissing, DriverError
from normgen.ir.program import Definition, Program
from normgen.runtime.calls.arguments import Arguments
from normgen.runtime.norm import Norm
from normgen.verify import places
from normgen.verify import run as checks
from normgen.verify.cases import make_case
from normgen.verify.coverage import covering
from normgen.verify.draw import NORMAL, POSITIVE, Sample, attr_choices, draw, parse_sample, scalar_values
from normgen.verify.events import FAILED, OK, SKIPPED, Progress, Row
from normgen.verify.expected import Expectation
from normgen.verify.kernels import run_case
from normgen.verify.memory import HOST
from normgen.verify.places import Place
from normgen.verify.run import Options, run
from tests.verify.subjects import bundled_source, case_of, subject_of

pytestmark = pytest.mark.kernels


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


def test_samples() -> None:
    samples = {
        "normal(0, 1)": NORMAL,
        " uniform(0.5,1.5) ": POSITIVE,
        "constant(7)": Sample("constant", 7.0),
        "1e6": Sample("constant", 1e6),
    }
    assert {text: parse_sample(text) for text in samples} == samples
    for text in ("", "normal", "normal(1)", "normal(0, 1", "cauchy(0, 1)", "constant()", "normal(a, b)"):
        with pytest.raises(ValueError, match="not a distribution"):
            parse_sample(text)
    for text in ("uniform(2, 1)", "normal(0, -1)", "uniform(0, inf)", "nan", "constant(inf)"):
        with pytest.raises(ValueError, match=r"not a distribution: (give the lower|a standard|its numbers)"):
            parse_sample(text)


def test_sizes_and_dtypes_are_what_was_asked_for() -> None:
    definition = load_definition(bundled_source("rmsnorm"))
    cases = covering(definition, {"D": 300})
    assert {case.extents["D"] for case in cases} == {300}
    rows = rows_of(bundled_source("rmsnorm"), Options(sizes={"D": 20}, dtype="bf16", executors=("host",)))
    kernels = [row for row in rows if row.stage == "kernels"]
    assert kernels and {row.dtypes for row in kernels} == {"bf16"}
    assert all("D=20" in row.shape for row in kernels)


def test_what_sizes_make_too_large_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks.case_lists, "MOST", 400)
    rows = rows_of(bundled_source("l2norm"), Options(sizes={"D": 300}, dtype="f32", executors=("host",)))
    kernels = [row for row in rows if row.stage == "kernels"]
    assert {row.shape.split()[0] for row in kernels if row.ok} == {"...=0", "...=()", "...=1"}
    (note,) = [row.note for row in rows if row.status == SKIPPED]
    assert note.endswith("cases have more than 400 elements")


def test_progress_reaches_its_end() -> None:
    events = list(run(bundled_source("l2norm"), Options(sizes={"D": 8}, dtype="f32", executors=("host",))))
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
            if buffer.access != "read" and buffer.itemsize == 4:
                memory = (ctypes.c_float * (buffer.bytes // 4)).from_address(buffer.pointer)
                values = np.frombuffer(memory, np.float32)
                values *= np.float32(1 + self.by)


@pytest.mark.parametrize("name", ["rmsnorm", "layernorm", "softmax", "l2norm"])
@pytest.mark.parametrize(("by", "status"), [(0.0, OK), (2e-5, FAILED), (-2e-5, FAILED)])
def test_planted_errors_fail(name: str, by: float, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "find_places", lambda wanted: ([Place("planted", Off(by), HOST)], []))
    monkeypatch.setattr(checks.case_lists, "covering", lambda *about: covering(*about)[:4])
    rows = rows_of(bundled_source(name), Options(sizes={"D": 128}, dtype="f32"))
    kernels = [row for row in rows if row.stage == "kernels" and "=0 " not in row.shape]
    assert {row.status for row in kernels} == {status}
    assert {row.direction for row in kernels} == {"forward", "backward"}


@pytest.mark.parametrize(("by", "ok"), [(0.0, True), (2.0**-20, False)])
def test_what_is_added_to_gradients_is_held_to_the_rounding_of_the_sum(by: float, ok: bool) -> None:
    """Of a gradient that is exact, which leaves no more room than that."""
    subject = subject_of(
        Source("b.norm", "norm bias\ninput x[..., D]\nparam b[D]\noutput y[..., D] = x + b\n")
    )
    case = case_of(subject, 1, 5, accumulate=True, given_out=True)
    expectation = Expectation(subject, case, draw(subject.definition, case, {}), {})
    found = {each.result: each.comparison for each in run_case(subject, expectation, Off(by))}
    assert found["db"].ok is ok


def test_calls_are_made_as_the_cases_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Absent cotangents are None, some gradients are not asked for, results lie over operands."""
    calls: list[dict[str, Any]] = []
    for direction in (Norm.forward, Norm.backward):

        def spied(norm: Norm, call: Any = direction, **asked: Any) -> Any:
            calls.append(asked)
            return call(norm, **asked)

        monkeypatch.setattr(Norm, direction.__name__, spied)
    few = [
        case for case in covering(load_definition(bundled_source("add_rmsnorm"))) if case.extents["..."] == 33
    ]
    monkeypatch.setattr(checks.case_lists, "covering", lambda *about: few[:8])
    rows = rows_of(bundled_source("add_rmsnorm"), Options(executors=("host",)))
    assert not [row for row in rows if row.status == FAILED]
    forward, backward = ([c for c in calls if word in c] for word in ("save", "wrt"))
    for name in ("dh", "dy"):
        assert any(call[name] is None for call in backward) and any(
            call[name] is not None for call in backward
        )
    assert {call["wrt"] for call in backward} >= {None, ("x",)}
    assert {call["accumulate"] for call in backward} == {call["save"] for call in forward} == {False, True}
    for made in (forward, backward):
        over = [any(array is call.get(o) for o in call) for call in made for array in call["out"].values()]
        assert set(over) == {False, True}


def test_a_gradient_that_nobody_wants_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Arguments, "_gradients", lambda arguments, *_: tuple(arguments._gradient_of.values()))
    narrow = [case for case in covering(load_definition(bundled_source("rmsnorm"))) if case.wrt is not None]
    monkeypatch.setattr(checks.case_lists, "covering", lambda *about: narrow[:1])
    rows = rows_of(bundled_source("rmsnorm"), Options(executors=("host",)))
    failed = [row for row in rows if row.status == FAILED]
    assert {(row.direction, row.result) for row in failed} == {("backward", "dw (not requested)")}


class Broken(HostExecutor):
    def launch(self, *args: Any) -> None:
        raise RuntimeError("a fault\nin detail")


def test_a_fault_is_a_failed_row_and_the_rest_still_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    places = [Place("broken", Broken(), HOST), Place("sound", HostExecutor(), HOST)]
    monkeypatch.setattr(checks, "find_places", lambda wanted: (places, []))
    rows = [
        r
        for r in rows_of(bundled_source("l2norm"), Options(sizes={"D": 8}, dtype="f32"))
        if "=0 " not in r.shape
    ]
    broken = [row for row in rows if row.executor == "broken"]
    assert broken and all(r.status == FAILED and r.internal for r in broken)
    assert all(r.note.startswith("RuntimeError: a fault / in detail (test_run.py, line ") for r in broken)
    assert not any(r.internal for r in rows if r.executor == "sound")
    assert {row.status for row in rows if row.executor == "sound"} == {OK}


@pytest.mark.parametrize("kind", [HostFault, DriverError])
def test_a_fault_of_a_kernel_is_none_of_the_check(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def launch(*_: Any) -> None:
        raise kind("a read outside")

    monkeypatch.setattr(Broken, "launch", launch)
    monkeypatch.setattr(checks, "find_places", lambda wanted: ([Place("broken", Broken(), HOST)], []))
    rows = rows_of(bundled_source("l2norm"), Options(sizes={"D": 8, "...": 2}, dtype="f32"))
    failed = [row for row in rows if row.status == FAILED]
    assert failed and not any(row.internal for row in failed)
    assert {row.note for row in failed} == {f"{kind.__name__}: a read outside"}


@pytest.mark.parametrize(("code", "told"), [("unsupported", True), ("axes", False)])
def test_what_has_no_kernel_says_so(code: str, told: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(definition: Definition, derived: Program | None) -> None:
        raise SpecError([Diagnostic(code, "no kernel for this", ())], bundled_source("rmsnorm"))

    monkeypatch.setattr("normgen.codegen.package.package", refused)
    if not told:  # any other fault of the compiler is not passed over
        with pytest.raises(SpecError):
            rows_of(bundled_source("rmsnorm"), Options(executors=("host",)))
        return
    rows = rows_of(bundled_source("rmsnorm"), Options(executors=("host",)))
    kernels = [row for row in rows if row.stage == "kernels"]
    assert [(row.status, row.note) for row in kernels] == [(SKIPPED, "no kernel for this")]
    assert any(row.stage == "differences" and row.ok for row in rows)


def test_a_missing_gpu_is_a_row_unless_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> list[Place]:
        raise DeviceMissing("no CUDA driver")

    monkeypatch.setitem(places.MAKERS, "cuda", missing)
    rows = rows_of(bundled_source("l2norm"), Options(sizes={"D": 8}, dtype="f32"))
    assert [(row.executor, row.note) for row in rows if row.status == SKIPPED] == [("cuda", "no CUDA driver")]
    with pytest.raises(DeviceMissing):
        rows_of(bundled_source("l2norm"), Options(executors=("cuda",)))


def test_a_faulty_spec_is_its_diagnostics() -> None:
    with pytest.raises(SpecError):
        rows_of(Source("bad.norm", "norm bad\ninput x[D]\noutput y[D] = z\n"), Options())
