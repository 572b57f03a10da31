"""What ranks exchange by: words in peers' memory only where all have what that takes."""

from __future__ import annotations

import gc
import random
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from types import SimpleNamespace
from weakref import WeakSet

import pytest

pytest.importorskip("torch")

import torch

from normgen.runtime.ranks.group import PeerFault
from normgen.runtime.ranks.node import node_name
from normgen.runtime.ranks.peer_memory import Channel, channel_words
from normgen.torch import private
from normgen.torch.ranks import backend
from normgen.torch.ranks import peer_memory as words_module
from normgen.torch.ranks.backend import Facts, unfit
from normgen.torch.ranks.group import ProcessRanks
from normgen.torch.ranks.peer_memory import MOST_WORDS, PeerMemory, Unfit
from normgen.torch.ranks.store import timeout
from normgen.torch.ranks.transport import CudaTransport

ONE = Facts("auto", "a node", "", "gpu 0")


def ranks_with(**changed):
    """Three ranks, the last of which differs."""
    every = [replace(ONE, device=f"gpu {rank}") for rank in range(3)]
    return [*every[:2], replace(every[2], **changed)]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({}, ""),
        ({"wish": "words"}, ""),
        ({"wish": "collective"}, "rank 2 sets NORMGEN_RANKS_BACKEND=collective"),
        ({"lacks": "its PyTorch has no symmetric memory"}, "rank 2: its PyTorch has no symmetric memory"),
        ({"node": "another"}, "rank 2 is on a different node than rank 0"),
        ({"device": "gpu 1"}, "ranks 1 and 2 share a device"),
    ],
)
def test_one_rank_decides_for_all(changed, why):
    assert unfit(ranks_with(**changed)) == why


def test_words_go_between_few():
    every = [replace(ONE, device=f"gpu {rank}") for rank in range(9)]
    assert (
        unfit(every[:8]) == "" and unfit(every) == "there are 9 ranks, and peer memory is used by at most 8"
    )


class RankStore:
    """Of two ranks, of which the other tells what is given."""

    def __init__(self, *others):
        self.others, self.mine = list(others), []

    def told(self, text, what):
        self.mine.append(text)
        return [text, self.others.pop(0)]


MARK = 1234  # of the memory of the other rank
MADE = (f'["", "{MARK}"]', '["", ""]')  # which has made a buffer, and sees that of the first
FACTS = '{"wish": "auto", "node": "%s", "lacks": "", "device": "gpu 1"}'


class Transport:
    """A device, and the first rank that it does not reach."""

    key, device = ("host", 0), torch.device("cpu")

    def __init__(self, unreachable=None, fault=None):
        self._unreachable, self._fault, self.followed = unreachable, fault, []

    def lacks(self):
        return ""

    def name(self):
        return "gpu 0"

    def unreachable(self, names):
        assert list(names) == ["gpu 0", "gpu 1"]
        return self._unreachable

    def memory(self, words, mark):
        if self._fault:
            raise self._fault
        made = torch.zeros(words + 1, dtype=torch.int64)
        made[-1] = mark
        return made

    def peers(self, own, group):
        theirs = torch.zeros_like(own)
        theirs[-1] = MARK
        return [own, theirs], None

    def record(self):
        return torch.zeros(1, dtype=torch.int64)

    now, captured = 7, 0  # the current stream, and what it captures

    def stream(self):
        return self.now

    def capture(self, stream):
        return self.captured

    def follower(self):
        return lambda before=self.now: self.followed.append((before, self.now))


@pytest.mark.parametrize(
    ("mine", "theirs", "why"),
    [
        (None, "", ""),
        (1, "", "rank 0 cannot access the memory of rank 1"),
        (None, "0", "rank 1 cannot access the memory of rank 0"),
    ],
)
def test_all_reach_the_memory_of_all(monkeypatch, mine, theirs, why):
    monkeypatch.setenv(backend.VARIABLE, "auto")
    assert backend.refusal(Transport(mine), RankStore(FACTS % node_name(), theirs), 2) == why
    assert backend.refusal(Transport(), RankStore(), 1) == "there is one rank"


def test_an_unknown_engine_is_refused(monkeypatch):
    monkeypatch.setenv(backend.VARIABLE, "nccl")
    with pytest.raises(
        ValueError,
        match="RANKS_BACKEND must be auto, peer-memory, in-kernel or collective but is nccl",
    ):
        backend.wish()


@pytest.mark.parametrize("given", ["inf", "-inf", "nan", "abc", "0", "-3", "1e300", " ", "1,5"])
def test_a_time_that_is_none_is_refused_when_a_norm_is_loaded(given, monkeypatch):
    monkeypatch.setenv("NORMGEN_RANKS_TIMEOUT", given)
    for refuse in (lambda: timeout(30), lambda: ProcessRanks("g", None, 1)):
        with pytest.raises(
            ValueError, match=f"NORMGEN_RANKS_TIMEOUT must be seconds, more than 0 .* but is {given}"
        ):
            refuse()


@pytest.mark.parametrize(("given", "seconds"), [(None, 30), ("", 30), ("7.5", 7.5), ("1e9", 1e9)])
def test_times_that_kernels_and_stores_can_count(given, seconds, monkeypatch):
    monkeypatch.delenv("NORMGEN_RANKS_TIMEOUT", raising=False)
    if given is not None:
        monkeypatch.setenv("NORMGEN_RANKS_TIMEOUT", given)
    assert timeout(30) == seconds
    Channel((1, 2), 3, 4, 5, 0).packed(0, 0, 1, seconds)
    assert timedelta(seconds=seconds)


def test_memory_that_one_rank_lacks_is_of_no_use_to_the_others():
    for transport, store in (
        (Transport(fault=RuntimeError("out of memory\nat some place")), RankStore(MADE[0])),
        (Transport(), RankStore('["RuntimeError: out of memory", ""]')),
        (Transport(), RankStore(MADE[0], '["RuntimeError: out of memory", ""]')),
    ):
        with pytest.raises(Unfit, match=r"rank [01] cannot share memory with the others: .*out of memory$"):
            PeerMemory(transport, 0, 2, lambda: None, store)


def test_memory_of_others_than_peers_is_noticed():
    with pytest.raises(
        Unfit, match=r"rank 0 cannot share memory .* maps other memory than that of its peers"
    ):
        PeerMemory(Transport(), 0, 2, lambda: None, RankStore('["", "4321"]', MADE[1]))


def test_who_does_not_deliver_is_named_in_the_next_call():
    words = PeerMemory(Transport(), 0, 2, lambda: None, RankStore(*MADE))
    words.check("rmsnorm over D")
    words._record[0] = 17 << 40 | 2 << 32 | 812
    with pytest.raises(PeerFault, match="rmsnorm over D: rank 1 did not deliver value 17 of exchange 812"):
        words.check("rmsnorm over D")


def test_exchanges_outside_graphs_go_one_after_the_other():
    """By one channel, whatever streams they are on: a larger one from where there is need of it."""
    transport = Transport()
    words = PeerMemory(transport, 0, 2, lambda: None, RankStore(*MADE, *MADE))
    first = words._channel(10)
    transport.now = 8
    assert words._channel(10) is first and words._channel(11) is first
    assert transport.followed == [(7, 8)]
    transport.now = 7
    larger = words._channel(first.capacity + 1)
    assert larger.capacity == 2 * first.capacity and larger.slots[0] != first.slots[0]
    assert transport.followed == [(7, 8), (8, 7)] and words._channel(10) is larger
    assert words._channel(0) is None and words._channel(MOST_WORDS + 1) is None


def test_a_graph_has_a_channel_of_its_own():
    """For as long as there are spare ones, of which calls outside graphs make more."""
    transport = Transport()
    words = PeerMemory(transport, 0, 2, lambda: None, RankStore(*MADE, *MADE))
    eager, found = words._channel(10), []
    transport.captured = 1
    with pytest.raises(RuntimeError, match="no memory is left for the exchanges of this CUDA graph: make"):
        words._channel(eager.capacity + 1)  # there can be no buffer now
    with pytest.raises(
        RuntimeError, match="outside graphs before you capture it, and again after every few graphs"
    ):
        while channel := words._channel(10):
            assert words._channel(10) is channel
            found.append(channel)
            transport.captured += 1
    assert words._channel(MOST_WORDS + 1) is None  # which no call has by words
    every = [eager, *found]
    assert len(found) > 2 and len({(each.slots, each.counters) for each in every}) == len(every)
    size = channel_words(2, eager.capacity) * 8
    starts = sorted(each.slots[0] for each in every)
    assert all(after - before == size for before, after in pairwise(starts))
    assert min(each.counters for each in every) == starts[-1] + size
    transport.captured = 0
    words._channel(10)
    transport.captured = 1000
    assert words._channel(10) is not None


@pytest.mark.parametrize("seed", range(20))
def test_kernels_that_wait_leave_room_for_those_of_all_groups(seed, monkeypatch):
    """However many groups there are, and streams on which two of each wait: nothing that may wait is kept
    from a place by others that wait. Groups that are no more hold none."""
    monkeypatch.setattr(words_module, "_PEER_MEMORIES", WeakSet())
    chance, may = random.Random(seed), {}
    count = chance.randint(1, 5)
    groups = [PeerMemory(Transport(), 0, 2, lambda: None, RankStore(*MADE)) for _ in range(count)]
    for _ in range(40):
        group, share = chance.randrange(len(groups)), chance.choice([0.01, 0.1, 0.3, 0.5, 0.6, 2.0])
        if groups[group].leaves_room(share):
            may[group] = max(may.get(group, 0), share)
        assert all(groups[each].leaves_room(most) for each, most in may.items())
        assert 2 * sum(may.values()) <= 1
    groups.clear()
    gc.collect()
    assert PeerMemory(Transport(), 0, 2, lambda: None, RankStore(*MADE)).leaves_room(0.5)


def test_buffers_are_found_where_tensors_begin(monkeypatch):
    """In what was allocated, of which several may be parts."""
    allocated = {rank: torch.arange(100) + 1000 * rank for rank in range(2)}
    own = allocated[1][40:50]

    def get_buffer(rank, sizes, dtype, storage_offset=0):
        return allocated[rank][storage_offset : storage_offset + sizes[0]]

    def rendezvous(tensor, group):
        assert group == "a group"
        return SimpleNamespace(get_buffer=get_buffer)

    monkeypatch.setattr(private, "_find", lambda home, *names: [rendezvous])
    group = SimpleNamespace(group_name="a group", rank=lambda: 1, size=lambda: 2)
    every, _ = private.symmetric_peers(own, group)
    assert [each[0] for each in every] == [40, 1040] and every[1].data_ptr() == own.data_ptr()


def test_gpus_are_known_by_names_of_their_own(monkeypatch):
    """Each process may number them in another way, and see others."""
    cuda = SimpleNamespace(
        get_device_properties=lambda device: SimpleNamespace(uuid=f"gpu {getattr(device, 'index', device)}"),
        device_count=lambda: 3,
        can_device_access_peer=lambda one, other: other != 2,
    )
    monkeypatch.setattr(torch, "cuda", cuda)
    transport = CudaTransport(torch.device("cuda", 1))
    assert transport.name() == "gpu 1" and transport.lacks() == ""
    assert transport.unreachable(["gpu 1", "gpu 0"]) is None
    assert transport.unreachable(["gpu 0", "gpu 1", "gpu 2"]) == 2
    assert transport.unreachable(["gpu 1", "of another process"]) == 1
    monkeypatch.setattr(private, "_SYMMETRIC", "torch.nowhere")
    assert transport.lacks() == "its PyTorch has no symmetric memory"
