"""What processes check together of norms that are one kernel, which exchanges words itself."""

from __future__ import annotations

import os
from contextlib import contextmanager
from unittest import mock

import torch
import torch.distributed as dist

import normgen.torch as nt
from normgen.torch.ranks.group import ranks_by_name
from normgen.torch.ranks.told import MOST_BYTES, ToldCall
from tests.codegen.norms import H200
from tests.torch.spread_peer_memory import BACKEND, by_words
from tests.torch.spreading import same


def within():
    """Whether this run is to exchange words within kernels."""
    return os.environ.get(BACKEND) in ("auto", "in-kernel")


@contextmanager
def _kernels(counts):
    """Counts the calls that took such a kernel, and those that took stages."""
    run = ToldCall.run

    def counted(call, ranks, tensors, numbers):
        found = run(call, ranks, tensors, numbers)
        counts[found is not None] += 1
        return found

    with mock.patch.object(ToldCall, "run", counted):
        yield


def _runs(lengths, *tensors):
    return [each.split(lengths, -1)[dist.get_rank()] for each in tensors]


def _both(norm, given, dy):
    given = [each.detach().clone().requires_grad_() for each in given]
    made = norm(*given)
    return (made, *torch.autograd.grad(made, given, dy))


def _uneven(first, rest):
    return [first, *[rest] * (dist.get_world_size() - 1)]


def rows_are_told_within_kernels():
    """Of runs of all lengths, by kernels that hold a row in lanes of a warp or in a block."""
    counts = [0, 0]
    with _kernels(counts):
        for name in ("rmsnorm", "layernorm", "softmax"):
            norm, plain = nt.load(name, shard={"D": dist.group.WORLD}), nt.load(name)
            for rows, lengths in ((1, _uneven(4, 4)), (37, _uneven(3, 20)), (6, _uneven(1500, 256))):
                x, w, b, dy = (torch.randn(*s, sum(lengths)) for s in ((rows,), (), (), (rows,)))
                given = (x, w, b)[: len(plain.step.operands)]
                for _ in range(2):
                    got = _both(norm, _runs(lengths, *given), *_runs(lengths, dy))
                    for one, other in zip(got, _both(plain, given, dy), strict=True):
                        same(one, *_runs(lengths, other), 2e-4)
    assert not counts[False] or not within(), counts


def groups_are_told_within_kernels():
    """Of images in stripes, in both directions."""
    options, counts = {"groups": 2}, [0, 0]
    norm, plain = nt.load("groupnorm", shard={"...": None}, **options), nt.load("groupnorm", **options)
    lengths = _uneven(6, 3)
    x, dy = (torch.randn(2, 6, 5, sum(lengths)) for _ in range(2))
    w, b = torch.rand(6), torch.rand(6)
    with _kernels(counts):
        got = _both(norm, (*(each.contiguous() for each in _runs(lengths, x)), w, b), *_runs(lengths, dy))
    y, dx, *parts = _both(plain, (x, w, b), dy)
    for one, other in zip(got, _runs(lengths, y, dx), strict=False):
        same(one, other, 2e-4)
    for part, total in zip(got[2:], parts, strict=True):
        dist.all_reduce(part)
        same(part, total, 2e-4)
    assert counts == [0, 2] or not within(), counts


def whole_results_have_the_same_bits():
    """Where ranks have runs of other lengths, and so other schedules."""
    norm, lengths = nt.load("layernorm", shard={"D": dist.group.WORLD}), _uneven(1000, 72)
    x = torch.randn(50, sum(lengths)) + 100
    counts = [0, 0]
    with _kernels(counts):
        made = norm.with_saved(*_runs(lengths, x))
    assert counts == [0, 1] or not within()
    for each in (made.mu, made.rstd):
        every = [torch.empty_like(each) for _ in lengths]
        dist.all_gather(every, each)
        assert all(torch.equal(other, each) for other in every)


def what_no_kernel_holds_takes_stages():
    """A rank without elements, rows that are too long for a block, and those that lie apart on one rank: the
    others then exchange with its stages."""
    norm, plain = nt.load("rmsnorm", shard={"D": dist.group.WORLD}), nt.load("rmsnorm")
    counts = [0, 0]
    with _kernels(counts):
        for lengths in (_uneven(0, 8), _uneven(8, MOST_BYTES // 4 + 4)):
            x = torch.randn(3, sum(lengths))
            same(norm(*_runs(lengths, x)), *_runs(lengths, plain(x)))
        assert not counts[True]
        lengths = _uneven(24, 24)
        x = torch.randn(5, sum(lengths))
        (mine,) = _runs(lengths, x)
        if dist.get_rank() == 0:
            mine = mine.t().contiguous().t()
        for _ in range(2):
            same(norm(mine), *_runs(lengths, plain(x)))
    assert counts[True] == 2 * (dist.get_rank() > 0) or not within()


def kernels_that_would_fill_the_device_are_left_alone():
    """Others that wait are to find room beside them."""
    norm, plain = nt.load("rmsnorm", shard={"D": dist.group.WORLD}), nt.load("rmsnorm")
    lengths, counts = _uneven(1024, 1024), [0, 0]
    few = torch.randn(2, sum(lengths))
    same(norm(*_runs(lengths, few)), *_runs(lengths, plain(few)), 2e-4)
    machine = ranks_by_name(dist.group.WORLD.group_name)._peer_memory.machine if by_words() else H200
    rows = machine.multiprocessors * machine.registers_per_multiprocessor // lengths[0] // 2 + 1
    for count, taken in ((2, [0, 1]), (rows, [1, 1])):
        x = torch.randn(count, sum(lengths))
        with _kernels(counts):
            same(norm(*_runs(lengths, x)), *_runs(lengths, plain(x)), 2e-4)
        assert counts == taken or os.environ.get(BACKEND) != "auto", (count, counts)


TOLD = (
    kernels_that_would_fill_the_device_are_left_alone,
    rows_are_told_within_kernels,
    groups_are_told_within_kernels,
    whole_results_have_the_same_bits,
    what_no_kernel_holds_takes_stages,
)
