"""The programs of `bench/` without a GPU: sizes of the proof, the merged page, processes that die."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from normgen import bundled

BENCH = Path(__file__).parents[2] / "bench"

SERVER = """
import os, sys
for line in sys.stdin:
    if "die" in line:
        os._exit(7)
    print("talk")
    last = ', "last": true' if "end" in line else ""
    print('verdict {"process": %d, "task": "%s"%s}' % (os.getpid(), line.strip(), last), flush=True)
"""


def program(name: str) -> Any:
    """A file of `bench/` as a module."""
    spec = importlib.util.spec_from_file_location(f"bench_{name}", BENCH / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def row(provider: str, us: float | None = None, **more: Any) -> dict[str, Any]:
    about = {"op": "group_norm", "direction": "forward", "shape": [8, 320], "dtype": "bf16", "layout": "nchw"}
    measured = {} if us is None else {"us": us, "copy_us": 10.0, "rho": 10.0 / us, "host_us": 5.0}
    return about | {"provider": provider, "bytes": 1_000_000} | measured | more


@pytest.mark.parametrize("spec", bundled.names())
def test_the_proof_knows_the_sizes_of_every_spec(spec: str) -> None:
    prove = program("prove")
    sizes = prove.sizes_of(spec)
    assert sizes[0] == prove.OWN
    assert len(sizes) > 8, "bench/prove.py: FORMS lacks the form of the first input"
    assert len(set(sizes)) == len(sizes)


def test_sizes_and_attrs_become_options() -> None:
    assert program("prove").arguments("groups=8 B=2 ...=9") == [
        "--attr", "groups=8", "--size", "B=2", "--size", "...=9",
    ]  # fmt: skip


def test_what_was_skipped_has_not_passed() -> None:
    prove = program("prove")
    assert prove.passed({"exit": 0})
    assert not any(
        prove.passed(r) for r in ({"exit": 1}, {"exit": 0, "skipped": ""}, {"exit": None, "error": ""})
    )


def test_a_process_that_dies_costs_its_own_task_only(tmp_path: Path) -> None:
    checking = program("checking")
    tasks = ["a", "b", "die 1", "c", "end 1", "d"]
    found = checking.check_all(tasks, [sys.executable, "-c", SERVER], 1, tmp_path / "log")
    assert found.keys() == set(tasks)
    assert "7" in found["die 1"].pop("fault") and not found["die 1"]
    assert all(found[t]["task"] == t for t in tasks if t != "die 1")
    first, second, third = (found[t]["process"] for t in ("a", "c", "d"))
    assert first == found["b"]["process"] and second == found["end 1"]["process"]
    assert len({first, second, third}) == 3


def test_no_task_is_begun_too_late(tmp_path: Path) -> None:
    found = program("checking").check_all(["a"], [sys.executable, "-c", SERVER], 1, tmp_path / "log", -1)
    assert found == {"a": {"fault": "not checked: the time that was given is over"}}


def test_a_section_is_replaced_and_the_rest_stays() -> None:
    report = program("report")
    page = "# Title\n\ntext\n"
    once = report.merge_section(page, "proof", "one\n")
    assert once.startswith(page) and "one" in once
    both = report.merge_section(once, "channel norms", "other") + "\nby hand\n"
    again = report.merge_section(both, "proof", "two")
    assert again == both.replace("one", "two")
    with pytest.raises(ValueError, match="not closed"):
        report.merge_section(once.replace("<!-- end", "<!-- fin"), "proof", "two")


def test_later_files_win_line_by_line(tmp_path: Path) -> None:
    report = program("report")
    files = []
    for name, rows in (
        ("first", [row("normgen", 20.0), row("torch", 40.0)]),
        ("second", [row("normgen", 12.5), row("torch", fault="no time"), row("compile", 25.0)]),
    ):
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(json.dumps({"device": {"name": name}, "rows": rows}))
    device, rows = report.merge_rows(files)
    assert device == {"name": "second"}
    assert {r["provider"]: r["us"] for r in rows} == {"normgen": 12.5, "torch": 40.0, "compile": 25.0}
    line = report.channels_table(rows).splitlines()[2]
    assert "12.5 (0.800) | 40.0 (0.250) | 25.0 (0.400) | 5.0 | 2.00x |" in line


def test_faults_are_told_once() -> None:
    report = program("report")
    rows = [
        row("normgen", fault="no kernel yet"),
        row("normgen", fault="no kernel yet", direction="backward"),
    ]
    text = report.channels_table(rows)
    assert text.count("no kernel yet") == 1 and "(2: group_norm forward" in text
