"""Checks that answer soon: few cases, few kernels to compile, several at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from normgen import bundled
from normgen.devices.host.executor import HostExecutor
from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.dsl.syntax import parse
from normgen.ir.program import Definition
from normgen.verify.ahead import in_order
from normgen.verify.coverage import covering, quick
from normgen.verify.draw import attr_choices
from normgen.verify.events import FAILED, Row
from normgen.verify.places import CHECKED_ELEMENTS, Place
from normgen.verify.run import Options, run
from tests.sampling import sampled
from tests.verify.subjects import bundled_source

pytestmark = pytest.mark.kernels

FOLDER = Path(__file__).parent / "specs"
WRITTEN = sorted(path.stem for path in FOLDER.glob("*.norm"))


def written(name: str) -> Source:
    return Source(f"{name}.norm", (FOLDER / f"{name}.norm").read_text())


def definition_of(source: Source) -> Definition:
    return load_definition(source, attr_choices(parse(source), {})[-1])


def rows_of(source: Source, **options: Any) -> list[Row]:
    events = run(source, Options(executors=("host",), **options))
    return [event for event in events if isinstance(event, Row)]


@pytest.mark.parametrize("name", bundled.names())
def test_quick_cases_are_few_and_of_all_kinds(name: str) -> None:
    definition = definition_of(bundled_source(name))
    cases = quick(definition)
    assert {case.group for case in cases} <= {case.group for case in covering(definition)}
    assert 2 <= len({case.group for case in cases}) <= 4 and len(cases) <= 8
    assert all(all(case.extents.values()) for case in cases)
    assert {bool(case.offset) for case in cases} == {bool(case.pitch) for case in cases} == {False, True}
    assert {case.given_out for case in cases} == {case.in_place for case in cases} == {False, True}
    assert len({case.dtype_name for case in cases}) == len({case.group for case in cases})


def test_quick_cases_of_lengths_that_are_given() -> None:
    definition = definition_of(bundled_source("rmsnorm"))
    assert {case.extents["D"] for case in quick(definition, {"D": 4096})} == {4096}
    assert quick(definition, {"D": 300_000}) == []


class Counting(HostExecutor):
    """A host that counts the texts that it compiles."""

    def __init__(self) -> None:
        super().__init__(checked=True)
        self.texts: set[tuple[str, str]] = set()

    def function(self, source: str, entry: str, shared: int) -> Any:
        self.texts.add((source, entry))
        return super().function(source, entry, shared)


@pytest.mark.parametrize("name", sampled(["add_rmsnorm", "softmax"], 1))
def test_a_quick_check_of_rows_compiles_few_kernels(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compilation is nearly all of its time: a kernel takes some tenths of a second."""
    from normgen.verify import run as checks
    from normgen.verify.memory import HOST

    counting = Counting()
    place = Place("host, checked", counting, HOST, limit=CHECKED_ELEMENTS, threads=True)
    monkeypatch.setattr(checks, "find_places", lambda wanted: ([place], []))
    rows = rows_of(bundled_source(name), quick=True, threads=2)
    kernels = [row for row in rows if row.stage == "kernels"]
    assert all(row.ok for row in rows) and {row.direction for row in kernels} == {"forward", "backward"}
    assert len(counting.texts) <= 20


def test_every_attr_value_has_its_quick_case() -> None:
    text = (
        "norm n\nattr k: int\nattr on: bool = true\ninput x[..., D]\noutput y[..., D] = x * k if on else x\n"
    )
    rows = rows_of(Source("n.norm", text), quick=True, dtype="f32", threads=2)
    assert {row.attrs for row in rows if row.stage == "kernels"} == {
        f"k={k} on={on}" for k in (1, 2, 4) for on in ("true", "false")
    }


@pytest.mark.parametrize("name", sampled(WRITTEN, 1))
def test_written_norms_pass_quickly(name: str) -> None:
    rows = rows_of(written(name), quick=True, threads=2)
    assert not [row for row in rows if row.status == FAILED]
    assert {row.direction for row in rows if row.stage == "kernels" and row.ok} == {"forward", "backward"}


# --------------------------------------------------------------------------- several at a time


@pytest.mark.parametrize("threads", [1, 3])
def test_results_come_in_order(threads: int) -> None:
    def made(item: int) -> int:
        time.sleep(0.01 if item % 3 == 0 else 0)
        return item * item

    assert list(in_order(made, range(20), threads)) == [item * item for item in range(20)]


def test_threads_work_at_once_and_not_far_ahead() -> None:
    together = threading.Barrier(3, timeout=60)
    started: list[int] = []

    def made(item: int) -> int:
        started.append(item)
        if item < 3:
            together.wait()
        return item

    results = in_order(made, range(1000), 3)
    assert next(results) == 0
    time.sleep(0.05)
    assert len(started) <= 1 + 2 * 3
    results.close()  # type: ignore[attr-defined]
    assert len(started) <= 1 + 3 * 3


@pytest.mark.parametrize("threads", [1, 2])
def test_what_is_raised_is_raised_in_its_turn(threads: int) -> None:
    def made(item: int) -> int:
        if item == 3:
            raise ValueError("three")
        return item

    results: Iterator[int] = in_order(made, range(10), threads)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="three"):
        next(results)


def test_threads_change_no_row() -> None:
    rows = [rows_of(bundled_source("l2norm"), quick=True, threads=threads) for threads in (1, 3)]
    assert rows[0] == rows[1]
