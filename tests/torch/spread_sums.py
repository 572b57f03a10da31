"""What processes check together of operands whose parts are added up over ranks."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import torch
import torch.distributed as dist

import normgen.torch as nt
from normgen.devices.executors import executor_of
from normgen.torch.ranks.backend import COLLECTIVE, VARIABLE
from normgen.torch.ranks.peer_memory import MOST_WORDS, PeerMemory
from tests.torch.spreading import CALLS_BEFORE, replay_late

REPLAYS = 1000
TYPES = (torch.float32, torch.bfloat16, torch.float16)


@contextmanager
def _by_words(counts):
    """Counts the sums that went by words, and those that were left to collectives."""
    add = PeerMemory.sum

    def counted(words, part):
        found = add(words, part)
        counts[found is not None] += 1
        return found

    with mock.patch.object(PeerMemory, "sum", counted):
        yield


@contextmanager
def _backend(name):
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = name
    yield
    del os.environ[VARIABLE]
    if before is not None:
        os.environ[VARIABLE] = before


def _parts(*shape, dtype=torch.float32):
    """Those of all ranks, the same on each of them."""
    return torch.randn(dist.get_world_size(), *shape).to(dtype)


def _added(parts):
    """In float32, in the order of ranks, rounded once."""
    total = parts[0].float()
    for each in parts[1:]:
        total = total + each.float()
    return total.to(parts.dtype)


def sums_have_the_bits_of_collectives():
    """Of all types and sizes, one after the other and in turns with other exchanges; and of parts that do not
    begin where a word of memory does."""
    rank, group, other = dist.get_rank(), dist.new_group(), dist.new_group()
    norm, spread = nt.load("rmsnorm", partial={"x": group}), nt.load("rmsnorm", shard={"D": group})
    plain = nt.load("rmsnorm", partial={"x": other})
    with _backend(COLLECTIVE):
        plain(torch.ones(2, 3))
    counts = [0, 0]
    with _by_words(counts):
        for call, shape in enumerate([(1, 1), (3, 5), (1, 4097), (16, 128), (7, 333), (2, 3), (1, 1)] * 2):
            parts = _parts(*shape, dtype=TYPES[call % len(TYPES)])
            got = norm(parts[rank])
            assert torch.equal(got, plain(parts[rank])), shape
            assert torch.equal(got, nt.load("rmsnorm")(_added(parts))), shape
            if call % 3 == 0:
                spread(parts[rank].float())
        parts = _parts(5, 9, dtype=torch.bfloat16)
        apart = torch.cat([torch.zeros(1, dtype=parts.dtype), parts[rank].flatten()])[1:].view(5, 9)
        assert apart.data_ptr() % 4 and torch.equal(norm(apart), plain(apart))
        turned = parts[rank].t().contiguous().t()
        assert torch.equal(norm(turned), plain(parts[rank]))
    words = norm.backend["x"] == "peer-memory"
    assert plain.backend["x"].startswith(COLLECTIVE) and counts == [0, 16 * words], counts


def sums_that_are_too_large_are_left_to_collectives():
    norm, plain, rank = nt.load("rmsnorm", partial={"x": None}), nt.load("rmsnorm"), dist.get_rank()
    counts = [0, 0]
    with _by_words(counts):
        for columns in (2 * MOST_WORDS, 2 * MOST_WORDS + 1):
            parts = _parts(1, columns, dtype=torch.bfloat16)
            torch.testing.assert_close(norm(parts[rank]), plain(_added(parts)))
    assert counts in ([1, 1], [0, 0]) and (counts == [1, 1]) == (norm.backend["x"] == "peer-memory"), counts


def parts_that_differ_are_named():
    """And the next sum is right."""
    norm, rank, first = nt.load("rmsnorm", partial={"x": None}), dist.get_rank(), dist.get_rank() == 0
    parts = _parts(4, 6)
    norm(parts[rank])
    for wrong, told in (
        (parts[rank][: 2 if first else 3], "rank 1 adds up (3, 6), rank 0 adds up (2, 6)"),
        (parts[rank].bfloat16() if first else parts[rank], "rank 1 adds up torch.float32"),
    ):
        try:
            norm(wrong)
        except ValueError as fault:
            assert told in str(fault), fault
        else:
            raise AssertionError(f"nothing was said of {told}")
        assert torch.equal(norm(parts[rank]), nt.load("rmsnorm")(_added(parts)))


def small_devices_take_tickets():
    """Those that have no room for all blocks beside others, as this one is taken for here."""
    group, rank = dist.new_group(), dist.get_rank()
    norm, plain = nt.load("rmsnorm", partial={"x": group}), nt.load("rmsnorm")
    small = property(lambda words: replace(executor_of(words.transport.key).device, multiprocessors=2))
    with mock.patch.object(PeerMemory, "machine", small):
        for rows in (1, 64, 300):
            parts = _parts(rows, 256, dtype=torch.bfloat16)
            assert torch.equal(norm(parts[rank]), plain(_added(parts)))


def sums_are_replayed():
    """A graph of a sum and its norm, with other values in each replay, of ranks that come late by chance;
    compared on the device, to the last bit."""
    norm, plain, rank = nt.load("add_rmsnorm", partial={"x": None}), nt.load("add_rmsnorm"), dist.get_rank()
    base, residual = _parts(16, 512, dtype=torch.bfloat16), torch.randn(16, 512).bfloat16()
    gain = torch.rand(512).bfloat16()
    turn, wrong = torch.zeros(()), torch.zeros(())

    def step():
        turn.add_(1)
        parts = base * (1 + turn % 7).bfloat16()
        got, want = norm(parts[rank], residual, gain), plain(_added(parts), residual, gain)
        wrong.add_(torch.stack([(a != b).any() for a, b in zip(got, want, strict=True)]).sum())

    replay_late(step, REPLAYS, every=20)
    assert float(wrong) == 0 and float(turn) == REPLAYS + CALLS_BEFORE


def sums_of_two_groups_do_not_mix():
    """Graphs of sums over two groups, replayed on two streams at the same time, beside calls of both."""
    groups, rank = (dist.group.WORLD, dist.new_group()), dist.get_rank()
    norms, plain = [nt.load("rmsnorm", partial={"x": group}) for group in groups], nt.load("rmsnorm")
    streams = [torch.cuda.Stream() for _ in norms]
    parts = [_parts(64, 1024, dtype=torch.bfloat16) for _ in norms]
    mine, want = [each[rank].clone() for each in parts], [plain(_added(each)) for each in parts]
    torch.cuda.synchronize()
    graphs, found = [], []
    for norm, each, stream in zip(norms, mine, streams, strict=True):
        with torch.cuda.stream(stream):
            norm(each)
        torch.cuda.synchronize()
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1], stream=stream):
            found.append(norm(each))
    for _ in range(200):
        for made in found:
            made.zero_()
        torch.cuda.synchronize()
        eager = []
        for norm, graph, each, stream in zip(norms, graphs, mine, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
                eager.append(norm(each))
        torch.cuda.synchronize()
        for made, beside, each in zip(found, eager, want, strict=True):
            assert torch.equal(made, each) and torch.equal(beside, each)


SUMS = (
    sums_have_the_bits_of_collectives,
    sums_that_are_too_large_are_left_to_collectives,
    parts_that_differ_are_named,
    small_devices_take_tickets,
)
SUMS_ON_GPUS = (sums_are_replayed, sums_of_two_groups_do_not_mix)
