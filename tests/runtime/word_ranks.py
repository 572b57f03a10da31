"""Ranks that exchange by words, each a process with the kernels of the host: their buffers are files that all
have in their memory.

python -m tests.runtime.word_ranks RANK RANKS FOLDER does all tasks, each in a folder of its name. At the
first fault it ends with code 1 and says what is wrong.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from normgen.api import read_definition
from normgen.codegen.ranks import told_record
from normgen.devices.host.executor import HostExecutor
from normgen.dtypes import DTYPES
from normgen.runtime.norm import Norm
from normgen.runtime.ranks.peer_memory import (
    ADDED,
    CHUNK,
    COUNTERS,
    MOST_BLOCKS,
    RECORD_WORDS,
    Channel,
    PeerLate,
    channel_words,
    gather_launch,
    sum_launch,
)

ROOT = Path(__file__).parents[2]
LONGEST = 600  # seconds
ONCE = 60  # seconds that one wait takes at most, however slow the machine is: one for each value takes more
CAPACITY = (MOST_BLOCKS + 2) * CHUNK  # more chunks than blocks
LATE = 3  # of the calls of the last rank


@dataclass
class Rank:
    """One of the ranks."""

    rank: int
    ranks: int
    folder: Path
    seconds: float = 200.0

    def __post_init__(self):
        self.buffers = [self._buffer(k) for k in range(self.ranks)]
        self.record, self.fault = np.zeros(RECORD_WORDS, np.uint64), np.zeros(1, np.uint64)
        self.counters = self.record[: COUNTERS // 2].view(np.uint32)
        slots = tuple(each.ctypes.data for each in self.buffers)
        self.channel = Channel(slots, self.counters.ctypes.data, self.fault.ctypes.data, CAPACITY, self.rank)
        self.executor = HostExecutor(order=self.rank % 3, seed=self.rank)  # blocks in another order on each
        self.device = self.executor.device

    def _buffer(self, k):
        return np.memmap(
            self.folder / f"buffer.{k}", np.uint64, "r+", shape=channel_words(self.ranks, CAPACITY)
        )

    def gather(self, told):
        made = np.zeros((self.ranks, len(told)), np.float32)
        self._run(gather_launch(self.ranks, len(told), self.device), told, made, len(told))
        return made

    def sum(self, part, dtype):
        made = np.zeros_like(part)
        self._run(sum_launch(self.ranks, len(part), dtype, self.device), part, made, len(part))
        return made

    def told(self, norm, x, w, length):
        """A call of a kernel that exchanges itself, for rows of so many elements on all ranks."""
        self.record[COUNTERS // 2 :] = self.channel.record(self.seconds)
        peers = self.record[:1].view(np.float32)[:1].reshape(())
        numbers = {each.name: float(length) for each in norm.package.attrs if each.name.startswith("size")}
        return norm.forward(x, w, peers, **numbers)

    def _run(self, launch, given, made, count):
        function = self.executor.function(launch.source, launch.entry, 0)
        packed = self.channel.packed(given.ctypes.data, made.ctypes.data, count, self.seconds)
        self.executor.prepare(function, launch)(packed, (), 0)

    @property
    def late(self):
        return PeerLate.of(int(self.fault[0]))


def told_by(rank, call, count):
    return np.random.default_rng((rank, call)).standard_normal(count).astype(np.float32)


def counts(number):
    """Of values in calls: few, as many as fill chunks, and all that there is room for."""
    drawn = np.random.default_rng(number).integers(1, 3 * CHUNK, number).tolist()
    return [1, CHUNK, CHUNK + 1, CAPACITY, *drawn]


def gathers(mine):
    """Many calls, of ranks that come late by chance."""
    chance = np.random.default_rng(mine.rank)
    for call, count in enumerate(counts(24)):
        time.sleep(chance.choice([0, 0, 0, 0.003]))
        got = mine.gather(told_by(mine.rank, call, count))
        want = np.stack([told_by(rank, call, count) for rank in range(mine.ranks)])
        assert np.array_equal(got, want), f"call {call} of {count}"
    assert mine.counters.tolist() == [call + 1, 0, 0, 0] and mine.late is None


def epochs_begin_anew(mine):
    """After as many calls as a number of 32 bits can count: none is 0, and the halves take turns."""
    mine.counters[0] = 2**32 - 3
    for call in range(5):
        got = mine.gather(told_by(mine.rank, call, 7))
        assert np.array_equal(got, np.stack([told_by(rank, call, 7) for rank in range(mine.ranks)]))
    assert mine.counters[0] == 4


def _added(parts):
    """In float32, in the order of ranks, rounded once."""
    want = parts[0].astype(np.float32)
    for each in parts[1:]:
        want = want + each.astype(np.float32)
    return want.astype(parts[0].dtype)


def _sum_call(mine, call, dtype, count):
    parts = [told_by(rank, call, count).astype(DTYPES[dtype].numpy) for rank in range(mine.ranks)]
    got = mine.sum(parts[mine.rank], dtype)
    assert got.tobytes() == _added(parts).tobytes(), f"call {call}: {dtype} of {count}"


def sums(mine):
    """Of even and odd numbers of elements, in turns with other exchanges, of ranks that come late."""
    chance = np.random.default_rng(mine.rank)
    drawn = np.random.default_rng(0).integers(1, 3 * CHUNK, 24).tolist()
    sizes = [2000, 4097, 1, 2048, 2, 3, *drawn]
    for call, count in enumerate(sizes):
        time.sleep(chance.choice([0, 0, 0.003]))
        _sum_call(mine, call, ADDED[call % len(ADDED)], count)
        if call % 4 == 3:
            got = mine.gather(told_by(mine.rank, call, count))
            assert np.array_equal(got, np.stack([told_by(rank, call, count) for rank in range(mine.ranks)]))
    others = len(range(3, len(sizes), 4))
    assert mine.counters.tolist() == [len(sizes) + others, 0, 0, 0] and mine.late is None


def blocks_take_chunks_as_they_are_numbered(mine):
    """Where a device has room for all blocks at the same time. (Those of the host run one after the other,
    here in the same order on all ranks.)"""
    mine.device = replace(mine.device, multiprocessors=2 * MOST_BLOCKS)
    mine.executor = HostExecutor()
    for call, count in enumerate([1, CHUNK, 3 * CHUNK + 1, CAPACITY, 5]):
        got = mine.gather(told_by(mine.rank, call, count))
        assert np.array_equal(got, np.stack([told_by(rank, call, count) for rank in range(mine.ranks)]))
        _sum_call(mine, call, ADDED[call % len(ADDED)], count)
    assert mine.counters.tolist() == [2 * (call + 1), 0, 0, 0] and mine.late is None


def one_adds_nothing(mine):
    """Who waits for its part gives up, and has NaN in all sums that lack it."""
    count = CHUNK + 5
    _sum_call(mine, 0, "bf16", count)
    if mine.rank:
        return
    mine.seconds = 1.0
    begin = time.monotonic()
    for call in (1, 2):
        made = mine.sum(told_by(0, call, count).astype(DTYPES["bf16"].numpy), "bf16")
        assert np.isnan(made.astype(np.float32)).all()
    assert time.monotonic() - begin < ONCE
    assert mine.late.epoch == 2 and 0 < mine.late.rank < mine.ranks and mine.late.place <= count // 2


def one_stops(mine):
    """Who waits for it gives up after a while, once, and has NaN in the place of what did not come."""
    last, count = mine.ranks - 1, CHUNK + 5
    for call in range(LATE):
        got = mine.gather(told_by(mine.rank, call, count))
        assert np.array_equal(got, np.stack([told_by(rank, call, count) for rank in range(mine.ranks)]))
    if mine.rank:
        return
    mine.seconds = 1.0
    begin = time.monotonic()
    for call in (LATE, LATE + 1):
        got = mine.gather(told_by(0, call, count))
        assert np.array_equal(got[0], told_by(0, call, count)) and np.isnan(got[last]).all()
    assert time.monotonic() - begin < ONCE and mine.late is not None
    assert mine.late.epoch == LATE + 1 and 0 < mine.late.rank <= last and mine.late.place < count


def told_norm(mine):
    """rmsnorm, rows of which so many ranks share."""
    definition = read_definition("rmsnorm", {})
    record = told_record(definition, definition.program, ("D",), (), mine.ranks)
    return Norm(record.package, executors=lambda _: mine.executor)


def rows_tell_of_themselves(mine):
    """Kernels of other schedules on each rank, and on some a kernel that exchanges alone. All come to the
    same bits."""
    norm, chance = told_norm(mine), np.random.default_rng(mine.rank)
    for call, (rows, run) in enumerate([(1, 8), (5, 3), (64, 40), (7, 1000), (300, 16), (3, 5)] * 3):
        runs = [run * (1 + rank % 2) for rank in range(mine.ranks)]
        every = [told_by(rank, call, rows * n).reshape(rows, n) for rank, n in enumerate(runs)]
        x, length = every[mine.rank], sum(runs)
        time.sleep(chance.choice([0, 0, 0.003]))
        if (call + mine.rank) % 4 == 3:
            squares = mine.gather((x.astype(np.float64) ** 2).sum(1).astype(np.float32))
            rstd = 1 / np.sqrt(squares.sum(0) / np.float32(length) + 1e-6)
        else:
            w = told_by(mine.rank, call, x.shape[1])
            y, rstd = mine.told(norm, x, w, length)
            assert np.allclose(y, x * rstd[:, None] * w, rtol=1e-5, atol=1e-6)
        mean = sum((each.astype(np.float64) ** 2).sum(1) for each in every) / length
        assert np.allclose(rstd, 1 / np.sqrt(mean + 1e-6), rtol=1e-5), f"call {call}"
        found = mine.gather(rstd.astype(np.float32))
        within = [rank for rank in range(mine.ranks) if (call + rank) % 4 != 3]
        assert all(np.array_equal(found[rank], found[within[0]]) for rank in within)
    assert mine.counters[1:].tolist() == [0, 0, 0] and mine.late is None


def one_tells_no_row(mine):
    """Who waits within a kernel gives up after a while, once, and has NaN in all rows that need it."""
    last, norm = mine.ranks - 1, told_norm(mine)
    x, w = np.ones((200, 12), np.float32), np.ones(12, np.float32)
    assert np.allclose(mine.told(norm, x, w, 12 * mine.ranks).y, 1)
    if mine.rank:
        return
    mine.seconds = 1.0
    begin = time.monotonic()
    for _ in range(2):
        assert np.isnan(mine.told(norm, x, w, 12 * mine.ranks).y).all()
    assert time.monotonic() - begin < ONCE
    assert mine.late.epoch == 2 and 1 <= mine.late.rank <= last and mine.late.place < len(x)


TASKS = (
    gathers,
    epochs_begin_anew,
    sums,
    blocks_take_chunks_as_they_are_numbered,
    one_stops,
    one_adds_nothing,
    rows_tell_of_themselves,
    one_tells_no_row,
)


def main(rank, ranks, folder):
    for task in TASKS:
        try:
            task(Rank(int(rank), int(ranks), Path(folder, task.__name__)))
        except Exception as fault:
            sys.exit(f"{task.__name__}, rank {rank}: {type(fault).__name__} {fault}")


def faults(ranks, folder):
    """What is wrong where so many ranks do the tasks: the first fault ends all of them."""
    for task in TASKS:
        (folder / task.__name__).mkdir()
        for k in range(ranks):
            with open(folder / task.__name__ / f"buffer.{k}", "wb") as file:
                file.truncate(8 * channel_words(ranks, CAPACITY))
    command, end = [sys.executable, "-m", "tests.runtime.word_ranks"], time.monotonic() + LONGEST
    with open(folder / "said", "w+") as said:
        running = [
            subprocess.Popen([*command, str(k), str(ranks), str(folder)], cwd=ROOT, stderr=said)
            for k in range(ranks)
        ]
        try:
            while (codes := [process.poll() for process in running]) != [0] * ranks:
                assert time.monotonic() < end, "ranks take too long"
                if any(codes):
                    said.seek(0)
                    return f"codes {codes}: {said.read()}"
                time.sleep(0.05)
            return ""
        finally:
            for process in running:
                process.kill()
                process.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
