"""`normgen tune --export`: what it adds to a table of measured choices, and what it makes of files that are
none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import normgen
from normgen.cli import exits
from normgen.families.rows.launch.schedule import RowSchedule
from normgen.families.windows.launch.family import Windows
from normgen.launching import table
from normgen.launching.knobs import full, schedule_of
from normgen.launching.support import Support
from normgen.launching.table import Line, parsed, read, written
from normgen.measure.lines import with_line
from normgen.package.kernels import Kernel
from tests.cli.commands import run
from tests.cli.test_tune import SIZES, SMALL, faster, plan_of
from tests.fakes.driver import FakeDriver
from tests.runtime.conftest import driver

__all__ = ["driver"]

FORWARD = ("--direction", "forward")
OTHER = Line("0123456789abcdef", "another kernel", ((4, {"form": "registers", "vector": 4}),))


def kernel() -> Kernel:
    return normgen.load("rmsnorm").package.forward.strategies[0].kernels[0]


def tuned(file: Path, *more: str) -> str:
    done = run("tune", "rmsnorm", *SMALL, "--export", str(file), *more)
    assert done.exit_code == 0, done.output
    return done.stderr


def test_what_is_found_is_a_line_of_a_table(
    driver: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as normgen comes with: where it does, it is taken without being tuned."""
    monkeypatch.setenv("NORMGEN_TUNED", "0")
    usual = plan_of("forward").launches[0].block[0]
    driver.launch_us = faster(lambda launched: launched.block[0] == 256)
    file = tmp_path / f"{driver.device.arch}.jsonl"
    assert f"wrote {file}" in tuned(file, *FORWARD)
    (((count, knobs),),) = read(file).values()
    assert count == 64 and not isinstance(schedule_of(RowSchedule, full(RowSchedule, knobs)), Support)
    assert json.loads(file.read_text())["about"] == (
        "rmsnorm_forward of rmsnorm: ... = 64, D = 1024 in bf16 on Imaginary"
    )
    assert plan_of("forward").launches[0].block[0] == usual != 256
    monkeypatch.setattr(table, "SHIPPED", tmp_path)
    assert plan_of("forward").launches[0].block[0] == 256
    assert plan_of("forward", SIZES | {"...": 65}).launches[0].block[0] == 256, "with nearly as many rows"


def test_a_default_that_is_as_good_has_lines_too_and_nothing_changes_the_second_time(
    driver: FakeDriver, tmp_path: Path
) -> None:
    driver.launch_us = lambda launched: 2.0
    (file := tmp_path / "found.jsonl").write_text(written([OTHER]))
    assert tuned(file).count("the default is as good as any") == 2
    first, *lines = parsed(file.read_text())
    assert first == OTHER and [line.about.split()[0] for line in lines] == [
        "rmsnorm_forward",
        "rmsnorm_backward",
    ]
    taken = dict(full(RowSchedule, lines[0].measured[0][1]))
    assert f"{taken['team']} threads per row" in " ".join(plan_of("forward").notes)
    before = file.read_bytes()
    assert f"{file} is up to date" in tuned(file)
    assert file.read_bytes() == before


def test_nothing_is_written_of_kernels_without_tables(
    driver: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as those of a new family."""
    monkeypatch.setattr(Windows, "measured_as", lambda self, kernel, call: None)
    driver.launch_us = lambda launched: 2.0
    sizes = ("--size", "B=2", "--size", "C=8", "--size", "...=64")
    done = run("tune", "local_response_norm", *sizes, *FORWARD, "--export", str(tmp_path / "found.jsonl"))
    assert done.exit_code == 0, done.output
    assert "tables have no lines for the kernels of this norm" in done.stderr and not list(
        tmp_path.glob("*.jsonl")
    )


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (".", None, "is a directory: name a file in it"),
        ("missing/found.jsonl", None, "there is no directory missing: create it first"),
        ("found.jsonl", b"{}", "found.jsonl is not a table of schedules (line 1 is not a line of a table)"),
        ("found.jsonl", b"\xff", "found.jsonl is not a table of schedules (it is not text)"),
        ("sm_75.jsonl", b"", "for this GPU, name it sm_90.jsonl"),
    ],
)
def test_what_is_no_table_is_refused_before_anything_is_measured(
    name: str, content: bytes | None, said: str, driver: FakeDriver
) -> None:
    if content is not None:
        Path(name).write_bytes(content)
    done = run("tune", "rmsnorm", *SMALL, "--export", name)
    assert (done.exit_code, done.stdout) == (exits.USAGE, "")
    assert said in " ".join(done.stderr.split()) and not driver.launches
    assert content is None or Path(name).read_bytes() == content


# ------------------------------------------------------------------------------------------------ lines

ONE = {"form": "registers", "vector": 8, "team": 128, "teams": 1, "items": 1}


def line(count: int, **knobs: object) -> Line:
    return Line("abc", f"of {count}", ((count, ONE | knobs),))


def test_a_count_has_the_schedule_that_was_measured_last() -> None:
    known = with_line([OTHER, line(64, blocks=2)], kernel(), line(64, blocks=4))
    assert known == [OTHER, line(64, blocks=4)._replace(about="of 64")]
    more = with_line(known, kernel(), line(16, blocks=3))
    assert more[1].measured == (*line(16, blocks=3).measured, *line(64, blocks=4).measured)
    assert with_line(more, kernel(), line(16, blocks=3)) == more


def test_counts_have_schedules_of_their_own_whatever_bits_they_give() -> None:
    more = with_line([line(64)], kernel(), line(16, team=64, items=2))
    assert more[0].measured == (*line(16, team=64, items=2).measured, *line(64).measured)


def test_a_schedule_that_is_none_any_more_makes_way() -> None:
    assert with_line([line(64, colour=1)], kernel(), line(16))[0].measured == line(16).measured


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "[]",
        "null",
        '{"key": "a", "about": "b"}',
        '{"key": "a", "about": "b", "measured": []}',
        '{"key": 1, "about": "b", "measured": [[1, {}]]}',
        '{"key": "a", "about": "b", "measured": [[0, {}]]}',
        '{"key": "a", "about": "b", "measured": [[true, {}]]}',
        '{"key": "a", "about": "b", "measured": [[1, []]]}',
        '{"key": "a", "about": "b", "measured": [[1, {}, 2]]}',
    ],
)
def test_a_line_that_is_wrong_is_told_by_its_number(text: str) -> None:
    with pytest.raises(ValueError, match=r"^line 2 is not a line of a table$"):
        parsed(f"{written([OTHER])}{text}\n")
    assert parsed(written([OTHER, line(4)])) == [OTHER, line(4)]
