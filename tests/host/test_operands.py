"""Each operand of `&&` in the checker is needed: else a fault goes unseen, or what is sound is blamed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.host.operands import every_operand, operands

# What nothing here tells from its absence, and why.
SPARED = {
    "fresh": "fibers that are prepared again",
    "kind == SIMT_BALLOT": "a ballot that nobody asked for",
    "report_count() == 0": "what is told beside a fault",
    "state.block_count > 1": "a search that finds nothing",
    "lane < warp_lanes": "lanes of the block that comes next, which is not there",
    "source < LANES": "an index in its range",
    "which < block.arrivals.size()": "an index in its range",
    "last < state.array_at.size()": "an index in its range",
    "slot < state.block_count": "an index in its range",
    "t.landed": "an index in its range",
    "from.sends": "an index in its range",
    "t.status == AT_SENT": "what a thread that awaits nothing has awaited",
    "t.status == AT_BULK_COPY": "what a thread that awaits nothing has awaited",
    "t.landed < landings": "a copy that its waiting thread finds landed",
    "each.arrival == arrival": "as many phases of another mbarrier",
    "peer.status == AT_NAMED_BARRIER": "what other threads have seen by atomics",
    "peer.named_barrier == barrier": "what other threads have seen by atomics",
    "find_buffer(event.address)": "a load of constant memory",
    "event.bytes <= 16": "whole structures, which the compiler cuts up",
    "!(event.bytes & (event.bytes - 1))": "whole structures, which the compiler cuts up",
    "event.atomic()": "what is no atomic, and meets one on an address: a race already",
    "!place.shared": "an atomic on shared memory, which other blocks have none of",
    "mine < one": "which of several readers is remembered",
    "mine < other": "which of several readers is remembered",
    "!first": "which of several readers is remembered",
    "!replaces(s.other_reader, s.other_read_time)": "which of several readers is remembered",
}
TEXT = "simt_report.cpp"  # says what is found
EIGHTH = 8


def test_operands_of_a_condition() -> None:
    text = 'if (a && !(b[i && j] == c && d)) // x && y\n  e = f && g + 1, h("p && q");\nreturn k > 0 &&\n  l;'
    found = [text[begin:end].strip() for begin, end in operands(text)]
    assert sorted(found) == sorted(
        ["a", "!(b[i && j] == c && d)", "i", "j", "b[i && j] == c", "d", "f", "g + 1", "k > 0", "l"]
    )
    assert SPARED.keys() <= {operand for _, operand in every_operand()}


@pytest.mark.kernels
@pytest.mark.parametrize(
    "part", [pytest.param(p, marks=pytest.mark.thorough if p else ()) for p in range(EIGHTH)]
)
def test_each_operand_is_needed(part: int) -> None:
    command = [sys.executable, "-m", "tests.host.operands", str(part), str(EIGHTH)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    missed = [operand for file, operand in json.loads(done.stdout) if file != TEXT]
    spared = Counter({operand: 2 if operand.startswith("report") else 1 for operand in SPARED})
    assert not Counter(missed) - spared, missed
