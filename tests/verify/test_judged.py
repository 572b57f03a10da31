"""The check with kernels that are wrong: each kind of fault is found, whatever strategy has it."""

from __future__ import annotations

from typing import Any

import pytest

import normgen
from normgen.devices.host.executor import HostExecutor
from normgen.verify import run as checks
from normgen.verify.cases import Case
from normgen.verify.coverage import covering
from normgen.verify.events import FAILED, Row
from normgen.verify.memory import HOST
from normgen.verify.places import Place
from normgen.verify.run import Options, run
from tests.verify.subjects import bundled_source

pytestmark = pytest.mark.kernels


class Rewritten(HostExecutor):
    """A host that compiles other texts than it is given."""

    def __init__(self, *pairs: tuple[str, str]) -> None:
        super().__init__()
        self.pairs = pairs

    def function(self, source: str, entry: str, shared: int) -> Any:
        for what, instead in self.pairs:
            source = source.replace(what, instead)
        return super().function(source, entry, shared)


class Idle(HostExecutor):
    """A host that runs no kernel whose name has some word."""

    def __init__(self, word: str) -> None:
        super().__init__()
        self.word = word

    def launch(self, function: Any, launch: Any, packed: bytes, buffers: Any, stream: int) -> None:
        if self.word not in launch.entry:
            super().launch(function, launch, packed, buffers, stream)


def rows_of(
    name: str,
    executor: HostExecutor,
    monkeypatch: pytest.MonkeyPatch,
    attrs: dict[str, object],
    accumulate: bool = False,
) -> list[Row]:
    """The rows of the smallest case of every group; `accumulate`: of those that add to gradients."""

    def smallest(*about: Any) -> list[Case]:
        groups: dict[int, Case] = {}
        for case in covering(*about):
            if all(case.extents.values()):
                groups.setdefault(case.group, case)
        found = [case for case in groups.values() if case.elements(about[0]) < 10_000]
        return [case for case in found if case.accumulate] if accumulate else found[:6]

    monkeypatch.setattr(checks, "find_places", lambda wanted: ([Place("wrong", executor, HOST)], []))
    monkeypatch.setattr(checks.case_lists, "covering", smallest)
    options = Options(dtype="f32", attrs=attrs)
    return [event for event in run(bundled_source(name), options) if isinstance(event, Row)]


def failed(rows: list[Row], direction: str) -> set[str]:
    """The strategies of those that failed."""
    return {
        row.shape.partition("strategy ")[2]
        for row in rows
        if row.status == FAILED and row.direction == direction and not row.internal
    }


@pytest.mark.parametrize("name", ["rmsnorm", "groupnorm"])
def test_gradients_that_are_overwritten_and_not_added_to(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    attrs: dict[str, object] = {"groups": 2} if name == "groupnorm" else {}
    backward = normgen.load(name, **attrs).package.backward
    assert backward is not None
    names = {each.name for each in backward.strategies} if len(backward.strategies) > 1 else {""}
    adding = (" add_stored", " WordAligned::add_stored", " add_some_columns")
    overwriting = Rewritten(
        ("store_scalar<true>", "store_scalar<false>"),
        ("store_sums<true", "store_sums<false"),
        *((call, f" if (false){call}") for call in adding),
    )
    assert failed(rows_of(name, overwriting, monkeypatch, attrs, True), "backward") >= names


def test_kernels_that_write_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The results of which no other kernel writes."""
    for direction in ("forward", "backward"):
        with monkeypatch.context() as patch:
            rows = rows_of("rmsnorm", Idle(direction), patch, {})
            made = [row for row in rows if row.stage == "kernels" and row.direction == direction]
            assert made and {row.status for row in made} == {FAILED}


def test_states_that_are_not_updated(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of("batchnorm", Idle("second_stage"), monkeypatch, {"training": True})
    assert failed(rows, "forward")
