"""Words in peers' memory: what ranks exchange, however late they are; waits end where one is missing."""

from __future__ import annotations

import numpy as np
import pytest

from normgen.devices.cuda import nvrtc
from normgen.devices.host.executor import HostExecutor, HostFault
from normgen.launching.launch import Buffer
from normgen.package.device_functions import inlined
from normgen.runtime.ranks.words import (
    ADDED,
    CHUNK,
    COUNTERS,
    Channel,
    PeerLate,
    channel_words,
    gather_launch,
    sum_launch,
)
from tests.fakes.machine import need_nvrtc
from tests.runtime import word_ranks


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("task", word_ranks.TASKS)
def test_ranks_exchange_words(task, ranks, tmp_path):
    assert word_ranks.faults(task, ranks, tmp_path) == [""] * ranks


@pytest.mark.parametrize("room", [0, 1], ids=["enough", "too little"])
def test_every_access_of_an_exchange_is_in_its_memory(room):
    """Of rank 1 of 2, to whom the other has told everything before."""
    count, capacity, epoch = CHUNK + 3, CHUNK + 3, 1
    theirs, mine = (np.arange(k, count + k, dtype=np.float32) for k in (0, 1))
    buffers = [np.zeros(channel_words(2, capacity), np.uint64) for _ in range(2)]
    place = (epoch * 2 + 0) * capacity
    buffers[1][place : place + count] = theirs.view(np.uint32) + (np.uint64(epoch) << np.uint64(32))
    counters, fault, made = np.zeros(COUNTERS, np.uint32), np.zeros(1, np.uint64), np.empty((2, count), "f4")
    slots = tuple(each.ctypes.data for each in buffers)
    channel = Channel(slots, counters.ctypes.data, fault.ctypes.data, capacity + room, 1)
    launch, executor = gather_launch(2, count), HostExecutor(checked=True)
    touched = [
        Buffer(mine.ctypes.data, mine.nbytes, 4, "read"),
        Buffer(made.ctypes.data, made.nbytes, 4, "write"),
        *[Buffer(each.ctypes.data, each.nbytes, 8, "update") for each in (*buffers, fault)],
        Buffer(counters.ctypes.data, counters.nbytes, 4, "update"),
    ]
    packed = channel.packed(mine.ctypes.data, made.ctypes.data, count, 0.1)
    fire = executor.prepare(executor.function(launch.source, launch.entry, 0), launch)
    if room:
        with pytest.raises(HostFault, match="illegal address"):
            fire(packed, tuple(touched), 0)
        return
    fire(packed, tuple(touched), 0)
    assert np.array_equal(made, [theirs, mine]) and not fault
    place = (epoch * 2 + 1) * capacity
    assert np.array_equal(buffers[0][place : place + count] & 0xFFFFFFFF, mine.view(np.uint32))


def test_a_record_tells_who_is_late():
    assert PeerLate.of(0) is None
    assert PeerLate.of(17 << 40 | 4 << 32 | 812) == PeerLate(rank=3, place=17, epoch=812)
    assert PeerLate.of(-1 << 40 | 8 << 32) == PeerLate(rank=7, place=2**24 - 1, epoch=0)  # of signed numbers


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("dtype", ADDED)
def test_kernels_compile_without_a_warning(dtype, arch):
    need_nvrtc()
    for ranks in (2, 8):
        with nvrtc._compiled(inlined(sum_launch(ranks, 1, dtype).source), arch, nvrtc.OPTIONS) as program:
            said = nvrtc._read(nvrtc.find_nvrtc().api, program, "ProgramLog")
        assert not said.rstrip(b"\0"), said.decode()
