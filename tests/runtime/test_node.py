"""What processes of one node tell each other on the host, however late they are, and where one is missing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from normgen.runtime.ranks import node
from normgen.runtime.ranks.group import PeerFault
from normgen.runtime.ranks.node import NodeRanks, new_file

ROOT = Path(__file__).parents[2]
LONGEST = 120  # seconds
CALLS = 3000
# A rank that tells many things, or stops after a few and then stays or ends.
RANK = """
import os, sys, time
import numpy as np
from normgen.runtime.ranks.group import PeerFault
from normgen.runtime.ranks.node import NodeRanks
path, mark, rank, size, seconds, calls, then = sys.argv[1:]
rank, size = int(rank), int(size)
def told_by(rank, call):
    chance = np.random.default_rng((7, call))
    return chance.integers(0, 99, chance.integers(1, 500)) * (rank + 1)
def compare(call):
    found = ranks.gather(told_by(rank, call), "group g")
    assert np.array_equal(found, [told_by(each, call) for each in range(size)]), call
ranks, late = NodeRanks(path, mark, rank, size, 100.0), np.random.default_rng(rank)
while any(ranks._has_ended(each) for each in range(size)):
    time.sleep(0.01)  # until all have begun, as they do in groups before they tell each other anything
for call in range(int(calls)):
    if late.random() < 0.01:
        time.sleep(late.random() / 100)
    compare(call)
print("done", flush=True)
if then == "stays":
    time.sleep(600)
if then == "is awaited":
    ranks._seconds = float(seconds)  # (until here ranks may start late)
    for _ in range(2):
        try:
            compare(int(calls))
        except PeerFault as fault:
            print(fault, flush=True)
"""


def started(calls, then, seconds="100"):
    """Processes of ranks that make so many calls, and what they do then."""
    path, mark = new_file(len(then))
    assert path
    try:
        return [
            subprocess.Popen(
                [sys.executable, "-c", RANK, path, mark, *map(str, (rank, len(then), seconds, calls)), each],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank, each in enumerate(then)
        ], path
    except BaseException:
        os.unlink(path)
        raise


@pytest.fixture
def run():
    running, paths = [], []

    def begin(*arguments, **named):
        found, path = started(*arguments, **named)
        running.extend(found)
        paths.append(path)
        return found

    yield begin
    for each in running:
        each.kill()
        each.wait()
        each.stdout.close()
    for path in paths:
        os.unlink(path)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_all_have_what_each_tells(size, run):
    for each in run(CALLS, ["ends"] * size):
        told, _ = each.communicate(timeout=LONGEST)
        assert told == "done\n"


def test_a_rank_that_has_ended_is_named_at_once(run):
    first, _, _ = run(5, ["is awaited", "stays", "ends"])
    told, _ = first.communicate(timeout=LONGEST)
    assert told == "done\n" + "group g: the process of rank 2 has ended\n" * 2


def test_a_rank_that_is_killed_has_ended(run):
    first, second = run(5, ["is awaited", "stays"])
    assert second.stdout.readline() == "done\n"
    second.send_signal(signal.SIGKILL)  # and nobody waits for it
    told, _ = first.communicate(timeout=LONGEST)
    assert "rank 1 has ended" in told


def test_a_rank_that_does_not_call_is_named_after_a_while(run):
    first, _ = run(5, ["is awaited", "stays"], seconds="1.5")
    told, _ = first.communicate(timeout=LONGEST)
    late = "group g: timed out: rank 1 made no call within 1.5 s. If it only needs more time, raise"
    assert told.startswith(f"done\n{late} NORMGEN_RANKS_TIMEOUT\n{late}")


def test_much_is_left_to_others(tmp_path):
    path, mark = new_file(1)
    ranks = NodeRanks(path, mark, 0, 1, 1.0)
    os.unlink(path)
    assert ranks.gather(np.zeros(5000, np.uint8), "a group") is None
    assert np.array_equal(ranks.gather(np.arange(500), "a group"), [np.arange(500)])


def test_what_came_before_its_tag_is_awaited():
    """A processor may show the tag of another one sooner than what that one stored before."""
    path, mark = new_file(2)
    first, peer = (NodeRanks(path, mark, rank, 2, 1.0) for rank in (0, 1))
    os.unlink(path)
    peer._epoch = 1
    place, told = peer._place(1), np.arange(3).tobytes()
    peer._tags[place // 8] = peer._tag(told)
    with pytest.raises(PeerFault):
        first.gather(np.arange(3), "a group")
    peer._memory[place + 8 : place + 8 + len(told)] = told
    assert first._told(1, len(told)) == told


def test_another_file_is_refused(tmp_path, monkeypatch):
    path, mark = new_file(2)
    for wrong in ((path, "00" * 16), (str(tmp_path / "none"), mark)):
        with pytest.raises(OSError, match=r"a different file|No such file"):
            NodeRanks(*wrong, 0, 2, 1.0)
    with pytest.raises(OSError, match="length"):
        NodeRanks(path, mark, 0, 3, 1.0)
    os.unlink(path)
    monkeypatch.setattr(node, "fcntl", None)
    assert new_file(2) == ("", "")
