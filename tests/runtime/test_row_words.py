"""Words of rows in a kernel of its own, checked: barriers of `row_words.cuh` are taken out one by one."""

from __future__ import annotations

import numpy as np

from normgen.devices.host.executor import HostExecutor, HostFault
from normgen.package.device_functions import file_text, inlined
from tests.host.harness import read, run, update, write
from tests.host.mutation import Altered, barrier_lines

ROWS, CAPACITY, THREADS = 8, 16, 64
PADDED = -(-ROWS // 4) * 4  # places of a value
KERNEL = """extern "C" __global__ void row_words(
  const float* x, float* y, ChannelRecord* record, tagged_t* own, tagged_t* theirs, tagged_t* fault,
  int rows) {
  constexpr int TEAM = @TEAM@, THREADS = 64;
  __shared__ RowWordsScratch<2, 2, TEAM, THREADS> scratch;
  RowWords<2, 2, TEAM, THREADS> peers(scratch, record);
  const int row = peers.team<int>();
  peers.open();
  const auto told = peers.exchange(row, rows, row < rows, x[row], 2 * x[row]);
  if (threadIdx.x % TEAM == 0) y[row] = told.value[0][0] + told.value[1][1];
  peers.end();
}
"""


def exchange(executor: HostExecutor, text: str, team: int) -> None:
    """As rank 1 of 2, whose peer has told all of its rows already."""
    own, theirs = (np.zeros(2 * 2 * CAPACITY, np.uint64) for _ in range(2))
    told = np.arange(ROWS, dtype=np.float32)
    for which in range(2):
        own[2 * CAPACITY + which * PADDED :][:ROWS] = told.view(np.uint32) + (np.uint64(1) << np.uint64(32))
    record, fault = np.zeros(14, np.uint64), np.zeros(1, np.uint64)
    record[2:4], record[10] = (theirs.ctypes.data, own.ctypes.data), fault.ctypes.data
    record[11:] = CAPACITY, 10**9, 1
    y = np.empty(ROWS, np.float32)
    memory = map(update, (record, own, theirs, fault))
    run(executor, text, "row_words", ROWS * team // THREADS, THREADS, read(told + 1), write(y), *memory, ROWS)
    assert np.array_equal(y, told + 2 * (told + 1))
    assert record[:2].view(np.uint32).tolist() == [1, 0, 0, 0]


def test_a_missing_barrier_is_reported() -> None:
    reported: set[int] = set()
    for team in (32, THREADS):
        text = inlined(KERNEL.replace("@TEAM@", str(team)))
        for order in range(3):
            exchange(HostExecutor(True, order), text, team)
        before = text[: text.index(file_text("row_words.cuh").split("\n\n")[1])].count("\n")
        lines = {number: line - before for number, line in enumerate(barrier_lines(text), 1) if line > before}
        for number, line in lines.items():
            try:
                exchange(Altered(text=text, without=number), text, team)
            except HostFault:
                reported.add(line)
    # (the last is for peers, who may store to the slots in the next exchange but one: no launch shows that)
    assert len(lines) == 5 and set(lines.values()) - reported == {max(lines.values())}
