"""`normgen tune`: what it finds and keeps, on the imaginary driver whose clock the test sets."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import normgen
from normgen.arrays.device_array import DeviceArray
from normgen.cli import exits
from normgen.devices.cuda import executor as cuda
from normgen.launching.launch import LaunchPlan
from normgen.measure.norms import Bench, Case, contiguous_binding
from normgen.measure.tuning import tune
from normgen.package.direction import directions
from normgen.runtime.planning.tuned import plan_tuned
from tests.cli.commands import UNMEASURED, arguments_text, check_refusal, run
from tests.fakes.driver import FakeDriver, Launched
from tests.runtime.conftest import driver

__all__ = ["driver"]

SMALL = ("--size", "D=1024", "--size", "...=64")
SIZES = {"D": 1024, "...": 64}


def faster(blocks: Callable[[Launched], bool]) -> Callable[[Launched], float]:
    """A clock on which some launches take 1 us and the others 4; copies take half."""

    def took(launched: Launched) -> float:
        if launched.entry[:4] in ("copy", "tria"):
            return 0.5
        return 1.0 if blocks(launched) else 4.0

    return took


def plan_of(direction: str, sizes: dict[str, int] = SIZES) -> LaunchPlan:
    """What a call of a norm that is loaded now would run."""
    package = normgen.load("rmsnorm").package
    found = {each.name: each for each in directions(package) if each is not None}[direction]
    device = cuda.executor_of(("cuda", 0)).device
    return plan_tuned(found.record, contiguous_binding(found, sizes, "bf16"), device)


def test_the_fastest_schedule_is_kept_and_used(driver: FakeDriver) -> None:
    before = plan_of("forward").launches[0]
    assert before.block[0] != 64
    driver.launch_us = faster(lambda launched: launched.block[0] == 256)
    done = run("tune", "rmsnorm", *SMALL, "--direction", "forward", "--json")
    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.stdout)["rows"]
    assert (row["default_us"], row["us"], row["rho"]) == (4.0, 1.0, 0.5)
    assert row["chosen"]["strategy"] == "fused" and row["left_out"] == 0
    assert Path(row["path"]).exists() and f"kept in {row['path']}" in done.stderr
    after = plan_of("forward")
    assert after.launches[0].block[0] == 256
    assert "tuned: 1.00 us measured, 4.00 without" in after.notes
    assert plan_of("forward", SIZES | {"...": 65}).launches[0].block == before.block, "other lengths"


def test_what_was_kept_is_shown_and_forgotten_when_the_default_is_as_good(driver: FakeDriver) -> None:
    driver.launch_us = faster(lambda launched: launched.block[0] == 256)
    done = run("tune", "rmsnorm", *SMALL, "--direction", "forward")
    head, _, direction, _, headings, *rows = done.stdout.splitlines()
    assert head == "... = 64, D = 1024 in bf16, on Imaginary" and direction == "forward"
    assert headings.split() == [
        "PREDICTED", "US", "RHO", "REGISTERS", "SPILLS", "VERDICT", "SCHEDULE"
    ]  # fmt: skip
    assert ": default" in rows[0] and " default " in rows[0]
    assert sum(" chosen " in row for row in rows) == 1 and "--verbose shows them" in rows[-1]
    assert plan_of("forward").launches[0].block[0] == 256
    driver.launch_us = lambda launched: 2.0
    done = run("tune", "rmsnorm", *SMALL, "--json")
    assert done.exit_code == 0, done.output
    for row in json.loads(done.stdout)["rows"]:
        assert row["chosen"] is None and row["path"] is None and row["us"] == row["default_us"]
    assert done.stderr.count("the default is as good as any") == 2
    plan = plan_of("forward")
    assert plan.launches[0].block[0] != 256 and not any("tuned" in note for note in plan.notes)


@pytest.mark.parametrize(("us", "kept"), [(3.96, False), (3.8, True)])
def test_a_gain_within_what_runs_differ_by_is_none(driver: FakeDriver, us: float, kept: bool) -> None:
    driver.launch_us = lambda launched: us if launched.block[0] == 256 else 4.0
    done = run("tune", "rmsnorm", *SMALL, "--direction", "forward", "--json")
    assert done.exit_code == 0, done.output
    assert (json.loads(done.stdout)["rows"][0]["chosen"] is not None) is kept


def test_results_that_differ_never_win(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fast schedule that writes something else is told by its results, and the next best wins."""
    driver.launch_us = lambda launched: {256: 1.0, 64: 2.0}.get(launched.block[0], 4.0)
    spoiled = []

    def get(array: object) -> object:
        content = original(array)
        if any(x.block[0] == 256 and x.entry.startswith("rmsnorm") for x in driver.launches[-1:]):
            spoiled.append(1)
            content.reshape(-1)[3] = 7.0
        return content

    original = DeviceArray.get
    monkeypatch.setattr(DeviceArray, "get", get)
    done = run("tune", "rmsnorm", *SMALL, "--direction", "forward", "--json")
    assert done.exit_code == 0 and spoiled, done.output
    (row,) = json.loads(done.stdout)["rows"]
    wrong = [trial for trial in row["trials"] if trial["verdict"] == "wrong"]
    assert wrong and all("7, not nan" in trial["why"] for trial in wrong), wrong
    assert row["us"] == 2.0
    assert plan_of("forward").launches[0].block[0] == 64


def test_top_and_budget_bound_what_is_tried(driver: FakeDriver) -> None:
    def trials(*more: str) -> tuple[int, int]:
        done = run("tune", "rmsnorm", *SMALL, "--direction", "backward", "--json", *more)
        (row,) = json.loads(done.stdout)["rows"]
        return sum(bool(t["schedule"]) for t in row["trials"]), row["left_out"]

    many, few = trials("--top", "4")[0], trials("--top", "1")[0]
    assert 0 < few <= 2 < many
    none, left = trials("--budget", "0")
    assert none == 0 and left > 0


def test_a_schedule_that_does_not_compile_is_passed_over(driver: FakeDriver) -> None:
    driver.faults = {"THREADS = 256;": "ptxas error"}
    driver.launch_us = faster(lambda launched: launched.block[0] == 64)
    done = run("tune", "rmsnorm", *SMALL, "--direction", "forward", "--json")
    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.stdout)["rows"]
    failed = [trial for trial in row["trials"] if trial["verdict"] == "failed"]
    assert failed and all("does not compile" in trial["why"] and trial["us"] is None for trial in failed)
    assert row["us"] == 1.0


def test_another_device_or_none(driver: FakeDriver) -> None:
    assert run("tune", "rmsnorm", *SMALL, "--device", "1", "--direction", "forward").exit_code == 0
    assert {launched.context.index for launched in driver.launches} == {1}
    done = run("tune", "rmsnorm", *SMALL, "--device", "2")
    assert (done.exit_code, done.stderr) == (exits.GPU, "no CUDA device 2: there are 2\n")
    cuda.use_driver(FakeDriver(devices=0))
    done = run("tune", "rmsnorm", *SMALL)
    assert (done.exit_code, done.stdout, done.stderr) == (exits.GPU, "", "no CUDA device 0: there are 0\n")


def test_progress_is_shown_on_a_terminal(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[tuple[int, int, str]] = []
    package = normgen.load("rmsnorm").package
    tune(Bench(), package, Case("forward", SIZES, "bf16"), advance=lambda *step: steps.append(step))
    done, totals = [step[0] for step in steps], [step[1] for step in steps]
    assert done == list(range(1, len(steps) + 1)), "one after another"
    assert totals == sorted(totals) and done[-1] == totals[-1], "and all of them"
    assert any("threads per row" in text for _, _, text in steps)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        *UNMEASURED,
        (["rmsnorm", "--size", "D"], exits.USAGE, "D=4096"),
        (["rmsnorm", "--top", "0"], exits.USAGE, "--top"),
        (["rmsnorm", "--budget", "-1"], exits.USAGE, "--budget"),
    ],
    ids=arguments_text,
)
def test_what_is_refused(arguments: list[str], code: int, said: str, driver: FakeDriver) -> None:
    check_refusal("tune", arguments, code, said)
    assert not driver.launches
