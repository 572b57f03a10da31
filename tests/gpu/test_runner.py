"""`make test-gpu` itself, without a GPU: what it says of tests that pass, fail, are left out or end it."""

from __future__ import annotations

import pytest

from tests.gpu import jobs, run
from tests.gpu.groups import GROUPS, Group
from tests.gpu.reporting import NO_TIME

TESTS = """
import os, time
import pytest

pytestmark = pytest.mark.gpu

def test_that_passes(record_property):
    record_property("note", "a number: 7")

def test_that_fails():
    assert 1 == 2, "one is not two"

@pytest.mark.skip(reason="no such card")
def test_that_is_left_out():
    pass

@pytest.mark.thorough
def test_that_is_thorough():
    pass
"""
CORES, MINUTES = 16, 9.5  # of the machine that it is laid out for, by one launcher


@pytest.fixture
def told(tmp_path, monkeypatch, capsys):
    """What it prints and returns for a group of tests with this text."""

    def tell(text, seconds=30, launcher="cuda-bindings", timeout=20, processes=1):
        path = tmp_path / "test_some.py"
        path.write_text(text)
        monkeypatch.setattr(run, "_card", lambda: "a card")
        monkeypatch.setattr(run, "_build", lambda: None)
        monkeypatch.setattr(jobs, "PATIENCE", timeout)
        monkeypatch.setattr(jobs, "LEAST", -10)
        monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # which take seconds to begin
        monkeypatch.setattr(run, "GROUPS", (Group("some", (str(path),), processes, seconds),))
        minutes = str(seconds / 60)
        status = run.main(["--launchers", launcher, "--logs", str(tmp_path / "logs"), "--minutes", minutes])
        return status, capsys.readouterr().out

    return tell


def test_the_summary_names_all_that_did_not_pass(told):
    status, said = told(TESTS)
    assert status == 1
    assert "test_that_fails\n      AssertionError: one is not two" in said
    assert "test_some.py: no such card: test_that_is_left_out" in said
    assert "cuda-bindings: a number: 7" in said
    assert "test_some.py: 1 thorough cases, which GPU_ARGS=--thorough adds" in said
    *_, head, line, last = said.splitlines()
    assert head.split() == ["launcher", "group", "cases", "failed", "not", "run", "seconds"]
    assert line.split()[:5] == ["cuda-bindings", "some", "2", "1", "1"]
    assert last == "FAILED: 1 cases passed, 1 failed"


def test_a_process_that_ends_early_is_a_failure_of_the_test_that_it_was_in(told):
    status, said = told(TESTS.replace("assert 1 == 2", "os._exit(7)\n    assert 1 == 2"))
    assert status == 1
    assert "ended with status 7 in" in said and "test_that_fails" in said


def test_a_process_that_hangs_is_ended_and_told(told):
    status, said = told(
        TESTS.replace("assert 1 == 2", "time.sleep(60)\n    assert 1 == 2"), seconds=2, timeout=4
    )
    assert status == 1
    assert "did not end in" in said


def test_a_test_that_has_begun_in_time_may_end(told):
    """No other begins after it."""
    text = "def test_of_many():\n    time.sleep(2.5)"
    every = [text.replace("many", str(place)) for place in range(3)]
    status, said = told("\n".join((TESTS.split("def")[0], *every)), seconds=2)
    assert status == 0 and "1 passed, 2 skipped" in said
    assert said.split("Not run")[1].count("test_of_") == 2


def test_what_time_cuts_off_runs_in_what_others_leave(told, tmp_path, monkeypatch):
    """Each test once, though one process had no time for its own."""
    share = run._share
    late = lambda job, *about: share(job, *about) if job.part or job.again else 0  # noqa: E731
    monkeypatch.setattr(run, "_share", late)
    ran = tmp_path / "ran"
    tests = [f"def test_of_{n}():\n    open({str(ran)!r}, 'a').write('{n}')" for n in range(6)]
    status, said = told("\n".join((TESTS.split("def")[0], *tests)), processes=2)
    assert status == 0 and sorted(ran.read_text()) == list("012345")
    assert "3 skipped" in said and "passed: 6 cases passed" in said and "Not run" not in said
    *_, line, _ = said.splitlines()
    assert line.split()[:5] == ["cuda-bindings", "some", "6", "0", "0"]


def test_a_known_fault_is_told_and_fails_nothing(told):
    text = TESTS.replace("assert 1 == 2", "pytest.xfail('nobody can add so much up')\n    assert 1 == 2")
    status, said = told(text)
    assert status == 0
    assert "Known faults, which are expected" in said and "test_that_fails: nobody can add so much up" in said
    *_, line, last = said.splitlines()
    assert line.split()[:5] == ["cuda-bindings", "some", "2", "0", "1"]
    assert last == "passed: 1 cases passed, 0 failed, 1 as expected"


def test_what_time_does_not_allow_is_named(told):
    status, said = told(TESTS, seconds=0)
    assert status == 1, "nothing was run"
    assert f"{NO_TIME}: test_that_fails, test_that_is_left_out, test_that_passes" in said.split("Not run")[1]


def test_a_launcher_that_is_not_there_is_a_failure(told, monkeypatch):
    monkeypatch.setattr(run.metadata, "distributions", lambda name: [])
    status, said = told(TESTS)
    assert status == 1 and "cuda-bindings: it is not installed" in said


def test_all_groups_fit_into_ten_minutes():
    shared = sum(group.processes * group.seconds for group in GROUPS if not group.alone)
    alone = sum(group.seconds for group in GROUPS if group.alone)
    assert shared / CORES + alone <= 60 * MINUTES


def test_time_that_is_left_goes_to_those_that_have_not_ended():
    one, other = (jobs.Job("pycuda", group, 0) for group in GROUPS[:2])
    of_one, of_both = (run._share(one, left, 60, 1) for left in ([one], [one, other]))
    assert of_one == 60 and 0 < of_both < 60
    assert of_both + run._share(other, [one, other], 60, 1) == pytest.approx(60)
    assert run._share(one, [one, other], 60, 16) == 60, "nobody takes longer than there is time"


def test_every_file_of_tests_for_a_gpu_is_in_a_group():
    root = run.ROOT
    marked = [
        path.relative_to(root).as_posix()
        for path in (root / "tests").rglob("test_*.py")
        if path.name != "test_runner.py" and "mark.gpu" in path.read_text(encoding="utf-8")
    ]
    assert sorted(marked) == sorted(file for group in GROUPS for file in group.files)
