"""Peer memory: what ranks exchange, however late they are; waits end where one is missing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from normgen.devices.cuda import nvrtc
from normgen.devices.host.executor import HostFault
from normgen.dtypes import DTYPES
from normgen.launching.launch import Buffer
from normgen.launching.machine import HOST_MACHINE, USUAL_MACHINE, architecture
from normgen.package.device_functions import inlined
from normgen.runtime.ranks.peer_memory import (
    ADDED,
    CHUNK,
    COUNTERS,
    MOST_BLOCKS,
    WORD,
    Channel,
    PeerLate,
    channel_words,
    gather_launch,
    sum_launch,
)
from tests.host.mutation import Altered, barrier_lines
from tests.runtime import word_ranks
from tests.verify.subjects import CHECKED


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_ranks_exchange_words(ranks, tmp_path):
    assert word_ranks.faults(ranks, tmp_path) == ""


def words_in(array):
    """Its bytes as words tell them."""
    return np.frombuffer(array.tobytes() + bytes(-array.nbytes % WORD), np.uint32)


class Second:
    """Rank 1 of 2 in its first exchange. The other rank has told all that it
    tells before: what this one has, the last first. `told`: how many words of that have come, or all; `room`:
    for how many words more than there are in buffers the kernel takes them."""

    def __init__(self, launch, given, made, room=0, told=None):
        self.launch, self.given, self.made, self.theirs = launch, given, made, given[::-1]
        words = self.words = len(words_in(given))
        self.buffers = [np.zeros(channel_words(2, words), np.uint64) for _ in range(2)]
        come = words_in(self.theirs)[:told]
        self._told_by(0, self.buffers[1])[: len(come)] = come + (np.uint64(1) << np.uint64(32))
        self.counters, self.fault = np.zeros(COUNTERS, np.uint32), np.zeros(1, np.uint64)
        slots = tuple(each.ctypes.data for each in self.buffers)
        channel = Channel(slots, self.counters.ctypes.data, self.fault.ctypes.data, words + room, 1)
        self.packed = channel.packed(given.ctypes.data, made.ctypes.data, len(given), 0.1)

    def _told_by(self, rank, buffer):
        return buffer[(2 + rank) * self.words :][: self.words]  # in the second half

    def run(self, executor=CHECKED):
        """What is made, and what is recorded of who is late."""
        launch = self.launch
        touched = [
            Buffer(self.given.ctypes.data, self.given.nbytes, self.given.itemsize, "read"),
            Buffer(self.made.ctypes.data, self.made.nbytes, self.made.itemsize, "write"),
            *[Buffer(each.ctypes.data, each.nbytes, 8, "update") for each in (*self.buffers, self.fault)],
            Buffer(self.counters.ctypes.data, self.counters.nbytes, 4, "update"),
        ]
        function = executor.function(launch.source, launch.entry, 0)
        executor.prepare(function, launch)(self.packed, tuple(touched), 0)
        assert np.array_equal(self._told_by(1, self.buffers[0]) & 0xFFFFFFFF, words_in(self.given))
        return self.made.astype(np.float32), PeerLate.of(int(self.fault[0]))


def gathering(**options):
    given = np.arange(CHUNK + 3, dtype=np.float32)
    launch = gather_launch(2, len(given), HOST_MACHINE)
    return Second(launch, given, np.empty((2, len(given)), np.float32), **options)


def adding(dtype="bf16", count=2 * CHUNK + 6, lacks="", **options):
    """`lacks`: what the kernel's text does without."""
    given = (np.arange(count) % 97).astype(DTYPES[dtype].numpy)
    launch = sum_launch(2, count, dtype, HOST_MACHINE)
    assert not lacks or launch.source.count(lacks) == 1, lacks
    launch = replace(launch, text=launch.source.replace(lacks, "")) if lacks else launch
    return Second(launch, given, np.empty_like(given), **options)


@pytest.mark.parametrize("exchange", [gathering, adding])
def test_every_access_of_an_exchange_is_in_its_memory(exchange):
    """And none comes before the kernels ahead have ended."""
    second = exchange()
    made, late = second.run()
    mine, theirs = second.given, second.theirs
    assert np.array_equal(made, [theirs, mine] if exchange is gathering else theirs + mine) and late is None
    with pytest.raises(HostFault, match="illegal address"):
        exchange(room=1).run()


@pytest.mark.parametrize("dtype", ADDED)
def test_nothing_beyond_the_last_element_is_read_or_written(dtype):
    """Where it has a word of its own, or half of one."""
    for count in (1, 7, CHUNK):
        second = adding(dtype, count)
        made, late = second.run()
        assert np.array_equal(made, second.given + second.theirs) and late is None


def test_a_sum_lacks_what_has_not_come():
    come = CHUNK // 2  # words of two elements
    made, late = adding(told=come).run()
    assert np.isnan(made).tolist() == [place >= 2 * come for place in range(len(made))]
    assert (late.rank, late.epoch) == (0, 1) and late.place >= come


def test_a_sum_that_does_not_wait_is_found():
    """For the kernels ahead, by the checker; for what peers tell, by what it makes."""
    with pytest.raises(HostFault, match="before the thread has waited for the kernels before"):
        adding(lacks="if constexpr (PROGRAMMATIC) programmatic_wait();").run()
    made, _ = adding(lacks="channel.await(words, first, THREADS);").run()
    assert np.isnan(made).all()


@pytest.mark.parametrize("exchange", [gathering, adding])
def test_a_missing_barrier_or_fence_is_reported(exchange):
    """Each is needed with tickets or without them."""
    reported, tickets = set(), "constexpr bool TICKETS = true;"
    for taken in (tickets, tickets.replace("true", "false")):

        def second(taken=taken):
            made = exchange()
            assert made.launch.source.count(tickets) == 1
            made.launch = replace(made.launch, text=made.launch.source.replace(tickets, taken))
            return made

        text = inlined(second().launch.source)
        lines = [text.splitlines()[line - 1].strip() for line in barrier_lines(text)]
        assert lines == ["__syncthreads();"] * 3 + ["__threadfence();"]
        second().run()
        for number in range(1, len(lines) + 1):
            try:
                second().run(Altered(text=text, without=number))
            except HostFault:
                reported.add(number)
    assert len(reported) == len(lines)


def test_a_record_tells_who_is_late():
    assert PeerLate.of(0) is None
    assert PeerLate.of(17 << 40 | 4 << 32 | 812) == PeerLate(rank=3, place=17, epoch=812)
    assert PeerLate.of(-1 << 40 | 8 << 32) == PeerLate(rank=7, place=2**24 - 1, epoch=0)  # of signed numbers


@pytest.mark.nvrtc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("dtype", ADDED)
def test_kernels_compile_without_a_warning(dtype, arch):
    programmatic = architecture(arch).programmatic
    large = replace(USUAL_MACHINE, arch=arch, programmatic=programmatic)
    small = replace(large, multiprocessors=16)
    for ranks, count, device in (
        (2, 1, large),
        (8, CHUNK * MOST_BLOCKS, large),
        (8, CHUNK * MOST_BLOCKS, small),
    ):
        launch = sum_launch(ranks, count, dtype, device)
        assert launch.programmatic == programmatic
        assert f"bool TICKETS = {str(device is small).lower()};" in launch.source
        with nvrtc._compiled(inlined(launch.source), arch, nvrtc.OPTIONS) as program:
            said = nvrtc._read(nvrtc.find_nvrtc().api, program, "ProgramLog")
        assert not said.rstrip(b"\0"), said.decode()


def test_blocks_take_tickets_where_not_all_run_at_the_same_time():
    small = replace(USUAL_MACHINE, multiprocessors=16)
    for count, device, tickets in (
        (CHUNK * MOST_BLOCKS, USUAL_MACHINE, "false"),
        (CHUNK * MOST_BLOCKS, small, "true"),
        (CHUNK * 8, small, "false"),
        (2 * CHUNK, HOST_MACHINE, "true"),
    ):
        assert f"constexpr bool TICKETS = {tickets};" in sum_launch(2, count, "f32", device).source
