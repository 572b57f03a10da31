"""`normgen.check`: what it returns, what it raises, and how pytest shows that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

import normgen
from normgen.errors import ToolchainMissing
from normgen.kernel import names
from normgen.verify import places
from normgen.verify.events import Row
from normgen.verify.report import SHOWN, Report

pytestmark = pytest.mark.kernels

SPEC = "norm scaled\ninput x[..., D]\nparam w[D] = 1\noutput y[..., D] = x * w\n"
FAST: dict[str, Any] = {"sizes": {"D": 5, "...": 2}, "dtype": "f32", "executors": ["host"], "quick": True}


def test_a_check_reports_what_it_compared(tmp_path: Path) -> None:
    path = tmp_path / "scaled.norm"
    path.write_text(SPEC)
    for source in (SPEC, path):
        report = normgen.check(source, **FAST)
        assert report and report.ok and report.spec == "scaled"
        assert {row.direction for row in report.passed if row.stage == "kernels"} == {"forward", "backward"}
        assert report.worst is not None and 0 < report.worst.worst <= 1
        assert str(report).startswith(f"scaled: {len(report.passed)} checks passed")
    assert not normgen.check(SPEC, **FAST, samples={"x": "constant(0)"}).failed


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that subtract where they are to multiply."""

    headed = names.headed
    monkeypatch.setattr(names, "headed", lambda source, *rest: headed(source.replace(" * ", " - "), *rest))


@pytest.mark.usefixtures("broken")
def test_a_failed_check_raises_with_what_failed() -> None:
    with pytest.raises(
        normgen.CheckFailed, match=r"^scaled: \d+ of \d+ checks failed\nfailed: kernels"
    ) as caught:
        normgen.check(SPEC, **FAST)
    report = caught.value.report
    assert not report and report.failed and report.worst in report.failed
    assert normgen.check(SPEC, **FAST, raise_exception=False).failed


def test_pytest_shows_a_failure_where_check_is_called(tmp_path: Path) -> None:
    """And none of the frames below."""
    test = tmp_path / "test_own.py"
    test.write_text(
        dedent(f"""
        from unittest import mock
        import normgen
        from normgen.verify import report
        from normgen.verify.events import Row

        def test_own_norm():
            where = ("forward", "D=5", "f32", "host", "y")
            row = Row("n", "", "kernels", "failed", *where, 3.0, "", "y[0] is 1")
            with mock.patch.object(report, "run", lambda *_: iter([row])):
                normgen.check({SPEC!r}, quick=True)
        """)
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(test),
    ]
    printed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    assert "scaled: 1 of 1 checks failed" in printed
    assert "failed: kernels, forward, y, D=5, f32, host: y[0] is 1" in printed
    assert "api.py" not in printed and "raise CheckFailed" not in printed


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sizes": {"Q": 4}}, "there is no axis Q; the axes are ..., D"),
        ({"dtype": "f64"}, "kernels are not checked in f64: pass one of f32, f16, bf16"),
        ({"executors": ["tpu"]}, "there is no executor tpu: pass host or cuda"),
        ({"samples": {"q": "constant(1)"}}, "there is no tensor q; the tensors are x, w, dy"),
        ({"samples": {"x": "gamma(1)"}}, "'gamma.1.' is not a distribution"),
        ({"quick": True, "thorough": True}, "exclude each other"),
        ({"attrs": {"eps": 1}}, "eps"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises((ValueError, normgen.SpecError), match=said):
        normgen.check(SPEC, **options)


def test_a_machine_that_runs_no_kernel_passes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> list[places.Place]:
        raise ToolchainMissing("no compiler")

    monkeypatch.setattr(places, "MAKERS", {"host": missing, "cuda": missing})
    with pytest.raises(ToolchainMissing, match="no kernel ran"):
        normgen.check(SPEC, quick=True)


def test_a_report_lists_the_first_failures() -> None:
    row = Row("n", "", "kernels", "failed", "forward", "D=5", "f32", "host", "y", 3.0, "", "y[0] is 1.0")
    text = str(Report("n", (row,) * (SHOWN + 2)))
    assert text.count("failed: kernels") == SHOWN and text.endswith("and 2 more")
