"""What processes check together of calls that were made before: nothing of an earlier one is left in them."""

from __future__ import annotations

import gc
import weakref
from contextlib import contextmanager
from unittest import mock

import torch
import torch.distributed as dist

import normgen.torch as nt
from normgen.torch import layouts, private
from normgen.torch.native import EXTENSION
from tests.torch.spreading import own_run, same

CHANNELS = 6


def _others():
    return dist.get_world_size() - 1


def _both(norm, *tensors, dy):
    given = [t.detach().clone().requires_grad_() for t in tensors]
    y = norm(*given)
    return (y, *torch.autograd.grad(y, given, dy))


def _rows(norm, lengths, rows=3, dtype=torch.float32, **attrs):
    """A call of both directions, of runs of these lengths, beside that of one process."""
    rank, close = dist.get_rank(), 2e-5 if dtype == torch.float32 else 2e-2
    x, w, dy = (torch.randn(*shape, sum(lengths)).to(dtype) for shape in ((rows,), (), (rows,)))
    plain = nt.load("rmsnorm")
    want = _both(lambda *given: plain(*given, **attrs), x, w, dy=dy)
    mine = [each.split(lengths, -1)[rank] for each in (x, w, dy)]
    got = _both(lambda *given: norm(*given, **attrs), *mine[:2], dy=mine[2])
    for one, other in zip(got, want, strict=True):
        same(one, other.split(lengths, -1)[rank], close)


def known_calls_are_told_from_others():
    """By the lengths on other ranks too, where this one's are as before."""
    norm, others = nt.load("rmsnorm", shard={"D": dist.new_group()}), _others()
    for _ in range(2):
        for first, rest in ((8, 8), (8, 4), (8, 8), (0, 4), (8, 0), (8, 12)):
            _rows(norm, [first, *[rest] * others])
        for options in (
            {"rows": 5},
            {"dtype": torch.bfloat16},
            {"eps": 0.5},
            {"eps": 0.25},
            {"rows": 0},
            {},
        ):
            _rows(norm, [8, *[8] * others], **options)


def graphs_take_no_lengths_of_other_calls():
    """As far as hosts see graphs: while one is captured they tell each other nothing."""
    norm, plain, others = nt.load("rmsnorm", shard={"D": dist.new_group()}), nt.load("rmsnorm"), _others()
    alike, apart = [[5, *[n] * others] for n in (5, 7)], [6, *[3] * others]
    given = [torch.randn(3, sum(lengths)) for lengths in (*alike, apart)]
    mine = [x.split(n, 1)[dist.get_rank()] for x, n in zip(given, (*alike, apart), strict=True)]
    for x in mine:
        norm(x)
    with mock.patch.object(private, "is_capturing", lambda: True):
        same(norm(mine[2]), plain(given[2]).split(apart, 1)[dist.get_rank()])
        for x, why in (*((x, "cannot tell which lengths") for x in mine[:2]), (mine[0][:2], "once before")):
            try:
                norm(x)
            except RuntimeError as fault:
                assert why in str(fault), fault
            else:
                raise AssertionError("a graph took lengths that it could not know")


def known_calls_in_the_extension():
    """Built here, which calls on CPUs do not ask for."""
    if EXTENSION.build() is None:
        return
    known_calls_are_told_from_others()
    images_with_channels_innermost()


def a_known_call_that_others_do_not_make_is_refused():
    norm, first = nt.load("rmsnorm", shard={"D": dist.new_group()}), dist.get_rank() == 0
    x, w = torch.randn(3, 4), torch.rand(4)
    for _ in range(2):
        norm(x, w), norm(x, w, eps=0.5)
        for said, wrong in (
            ("eps", lambda: norm(x, w, eps=0.5 if first else 1e-5)),
            ("D is", lambda: norm(x[:, : 3 if first else 4], w)),
        ):
            try:
                wrong()
            except RuntimeError as fault:
                assert said in str(fault), fault
            else:
                raise AssertionError("ranks made different calls")


def tensors_of_known_calls_are_not_kept():
    norm, w = nt.load("rmsnorm", shard={"D": dist.new_group()}), torch.rand(16)
    for _ in range(3):
        x = torch.randn(64, 16, requires_grad=True)
        y = norm(x, w)
        kept = [weakref.ref(each) for each in (x, y)]
        y.sum().backward()
        del x, y
        gc.collect()
        assert not any(each() is not None for each in kept)


def tensors_that_stand_for_others():
    """The negative of what lies in memory, and a view."""
    norm, plain = nt.load("rmsnorm", shard={"D": None}), nt.load("rmsnorm")
    x, w = torch.randn(3, 12), torch.rand(12)
    mine, gain = own_run(x), own_run(w)
    for _ in range(2):
        same(norm(mine, gain), own_run(plain(x, w)))
        same(norm(torch.complex(mine, mine).conj().imag, gain), own_run(plain(-x, w)))
        wide = torch.stack([mine, mine], -1)
        same(norm(wide[..., 1], gain), own_run(plain(x, w)))


def gradients_go_through_hooks_of_autograd():
    norm, plain = nt.load("softmax", shard={"D": None}), nt.load("softmax")
    x, dy = torch.randn(3, 12), torch.randn(3, 12)
    mine, whole = own_run(x).requires_grad_(), x.clone().requires_grad_()
    with torch.autograd.graph.save_on_cpu():
        got = norm(mine)
    (want,) = torch.autograd.grad(plain(whole), whole, dy)
    same(torch.autograd.grad(got, mine, own_run(dy), retain_graph=True)[0], own_run(want))
    got.backward(own_run(dy))
    same(mine.grad, own_run(want))


@contextmanager
def _nothing_laid_anew():
    with mock.patch.object(layouts, "laid_last", side_effect=AssertionError("a result was copied")):
        yield


def _batch(norm, x, dy, runs, formats, dtype=torch.float32):
    """Batch norm of both directions with its states, beside that of one process."""
    close = 1e-4 if dtype == torch.float32 else 4e-2
    rank, found = dist.get_rank(), []
    for function, pieces in ((nt.load("batchnorm"), [x, dy]), (norm, [t.split(runs)[rank] for t in (x, dy)])):
        image, slope = (each.to(dtype).contiguous(memory_format=formats[rank]) for each in pieces)
        gain, bias = torch.linspace(1, 2, CHANNELS), torch.linspace(0, 1, CHANNELS)
        given = [each.requires_grad_() for each in (image.detach().clone(), gain, bias)]
        states = torch.zeros(CHANNELS), torch.ones(CHANNELS)
        y = function(*given, running_mean=states[0], running_var=states[1])
        grads = torch.autograd.grad(y, given, slope)
        found.append((y, grads[0], *states, *grads[1:]))
    want, got = found
    for one, other in zip(got[:2], want[:2], strict=True):
        same(one, other.split(runs)[rank], close)
    if runs[rank] and formats[rank] is torch.channels_last:
        assert all(each.is_contiguous(memory_format=torch.channels_last) for each in got[:2])
    for one, other in zip(got[2:4], want[2:4], strict=True):
        same(one, other, close)
    for one, other in zip(got[4:], want[4:], strict=True):
        dist.all_reduce(one)
        same(one, other, close * float(other.abs().max()))


def images_with_channels_innermost():
    """On all ranks, on some, and where some have no images; results are made so, not copied."""
    norm, ranks = nt.load("batchnorm", shard={"B": dist.new_group()}), dist.get_world_size()
    last, first = torch.channels_last, torch.contiguous_format
    for _ in range(2):
        for runs, formats in (
            ([2] * ranks, [last] * ranks),
            ([3, *[1] * (ranks - 1)], [last] * ranks),
            ([2] * ranks, [last, *[first] * (ranks - 1)]),
            ([0, *[2] * (ranks - 1)], [last] * ranks),
        ):
            x, dy = (torch.randn(sum(runs), CHANNELS, 4, 5) + 3 for _ in range(2))
            with _nothing_laid_anew():
                _batch(norm, x, dy, runs, formats)
        _batch(norm, x, dy, runs, formats, torch.bfloat16)


def groups_with_channels_innermost():
    """With two axes spread, and differentiated twice."""
    x, w, b = torch.randn(4, CHANNELS, 4, 6), torch.rand(CHANNELS), torch.rand(CHANNELS)
    plain = nt.load("groupnorm", groups=2)
    for axis, dim in (("B", 0), ("...", 3)):
        norm = nt.load("groupnorm", groups=2, shard={axis: None})
        last = {"memory_format": torch.channels_last}
        mine = own_run(x, dim).contiguous(**last).requires_grad_()
        whole = x.clone(**last).requires_grad_()
        got, want = norm(mine, w, b), plain(whole, w, b)
        same(got, own_run(want, dim))
        assert got.is_contiguous(**last) or not got.numel()
        if axis == "B":
            continue
        one = torch.autograd.grad(got.sin().sum(), mine, create_graph=True)[0]
        other = torch.autograd.grad(want.sin().sum(), whole, create_graph=True)[0]
        same(one, own_run(other, dim))
        two = torch.autograd.grad(one.cos().sum(), mine)[0], torch.autograd.grad(other.cos().sum(), whole)[0]
        same(two[0], own_run(two[1], dim), 1e-4)


KNOWN = (
    known_calls_are_told_from_others,
    graphs_take_no_lengths_of_other_calls,
    a_known_call_that_others_do_not_make_is_refused,
    tensors_of_known_calls_are_not_kept,
    tensors_that_stand_for_others,
    gradients_go_through_hooks_of_autograd,
    images_with_channels_innermost,
    groups_with_channels_innermost,
    known_calls_in_the_extension,
)
