"""What a call must not be taken for, what it keeps and what it lets go, in C++ and in Python: faults that no
result of an ordinary call tells."""

from __future__ import annotations

import gc
import weakref
from itertools import count

import pytest

import normgen
from normgen import bundled
from normgen.devices.host.executor import HostExecutor
from normgen.runtime.calls.prepared import PreparedCall
from normgen.torch import local, native, steps
from normgen.torch.function import NormFunction
from tests.torch.norms import batch, drawn, functional, nt, rms, same, torch

grad = torch.autograd.grad
COUNT = count()
KNOWN = 3  # calls after which one is known, as is its backward


def anew(name):
    """A norm that nobody else has."""
    return normgen.load(f"{bundled.read(name).text}# {next(COUNT)}\n")


def softmax(x):
    return functional.softmax(x, -1)


class Token:
    """What a graph of autograd keeps alive."""


def _followed(x):
    """The same tensor as the result of an operation, and whether what autograd keeps of that is alive."""
    token = Token()
    made = x * 1
    made.grad_fn.metadata["token"] = token
    return made, weakref.ref(token)


@pytest.mark.parametrize("name", ("rmsnorm", "softmax", "batchnorm"))
def test_memory_that_is_aligned_otherwise_is_another_call(name, load):
    """The checker tells accesses that are wider than the alignment."""
    norm = NormFunction(anew(name).on(HostExecutor(checked=True)))
    want = {"rmsnorm": rms, "softmax": softmax, "batchnorm": batch}[name]
    for offset in (0, 0, 1, 1, 2, 3, 0):
        memory = torch.randn(2 * 64 + offset)
        for _ in range(2):
            same(norm(memory[offset:].view(2, 64)), want(memory[offset:].view(2, 64)), 1e-4)


@pytest.mark.parametrize(("name", "theirs"), (("softmax", softmax), ("rmsnorm", rms)))
def test_graphs_go_with_their_results(name, theirs, load):
    """A result that is kept for the backward is kept as that: else it keeps itself."""
    norm, x = load(name), drawn(3, 8)
    for _ in range(KNOWN):
        given, token = _followed(x)
        same(grad(norm(given).sin().sum(), x), grad(theirs(x).sin().sum(), x))
    y = norm(given)
    assert token() is not None
    del y, given
    gc.collect()
    assert token() is None


def test_what_a_backward_has_used_is_let_go(load):
    norm, x = load("rmsnorm"), drawn(3, 8)
    for _ in range(KNOWN):
        given = x * 1
        y = norm(given)
        kept = weakref.ref(given)
        del given
        gc.collect()
        assert kept() is not None
        grad(y.sin().sum(), x)
        gc.collect()
        assert kept() is None and y.grad_fn is not None
    with pytest.raises(RuntimeError, match="second time"):
        grad(y.sum(), x)


def test_states_that_overlap_are_refused_where_the_call_is_known(load):
    norm, x = load("batchnorm"), torch.randn(4, 6, 5)
    memory = torch.ones(64)
    for _ in range(KNOWN):
        norm(x, None, None, memory[:6], memory[32:38])
    for first, second in ((0, 0), (0, 4), (4, 0)):
        with pytest.raises(RuntimeError, match=r"overlaps running_(mean|var)"):
            norm(x, None, None, memory[first : first + 6], memory[second : second + 6])
    norm(x, None, None, memory[:6], memory[32:38])


STATES = """norm stateful "Several states, of which a call may have some."
input  x[B, C]
param  w[C] = 1
state  s[C] = 0
state  t[C] = 0
state  u[C] = 0
output y[B, C] = x * w + u
update s = s + sum[B](x)
update t = t + 1
"""


@pytest.mark.parametrize("given", ("stu", "su", "tu", "u"))
@pytest.mark.parametrize("recorded", (False, True))
def test_each_state_that_is_written_is_another_version(given, recorded, load):
    """What autograd kept of it before is refused, and what it kept of others is not."""
    norm, x, w = load(STATES), torch.rand(3, 4), torch.rand(4, requires_grad=recorded)
    for _ in range(KNOWN + 1):
        states, factor = {name: torch.rand(4) for name in given}, drawn(4)
        kept = {name: state * factor for name, state in states.items()}
        before = {name: state._version for name, state in states.items()}
        norm(x, w, *map(states.get, "stu"))
        for name, state in states.items():
            written = name in "st"
            assert state._version == before[name] + written
            if written:
                with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                    grad(kept[name].sum(), factor)
            else:
                same(grad(kept[name].sum(), factor), (state,))
        assert x._version == w._version == 0


def test_scratch_memory_is_as_large_as_it_is_used(monkeypatch, load):
    sizes, calls = [], []
    filled, place = native.filled, PreparedCall.place_scratch

    def note(record, **fields):
        if "scratch" in fields:
            sizes.append(fields["size"])
            calls.append(fields["owner"])
        return filled(record, **fields)

    def placed(self, *given, **named):
        made = place(self, *given, **named)
        sizes.append(made.lent[0].owner.nbytes)
        calls.append(self)
        return made

    monkeypatch.setattr(native, "filled", note)
    monkeypatch.setattr(PreparedCall, "place_scratch", placed)
    norm = NormFunction(anew("rmsnorm"))
    x, w = torch.randn(80, 30, requires_grad=True), torch.rand(15, requires_grad=True)
    for _ in range(KNOWN):
        norm(x[:, ::2], w).sum().backward()
    used = [_used(call) for call in calls]
    assert len(set(used)) >= 2 and all(
        size >= end + 255 for size, end in zip(sizes, used, strict=True) if end
    )


def _used(call):
    """The end of the scratch memory that a call touches."""
    first = len(call.operands) + len(call.given) + len(call.numbers) + len(call.made)
    offsets = dict(enumerate((offset for _, offset in call.scratch.offsets), first))
    return max(
        (
            offsets[place] + start + size
            for step in call.steps
            for place, start, size, *_ in step.buffers
            if place in offsets
        ),
        default=0,
    )


def test_autocast_widens_also_what_is_known(runs):
    known = {name: nt.load(bundled.read(name).text) for name in ("layernorm", "instancenorm")}
    x = torch.randn(3, 4, 8)
    for norm in known.values():
        for _ in range(KNOWN):
            norm(x)
    enabled = torch.is_autocast_enabled("cuda")
    for name, norm in known.items():
        runs.clear()
        torch.set_autocast_enabled("cuda", True)
        try:
            norm(x)
        finally:
            torch.set_autocast_enabled("cuda", enabled)
        assert bool(runs) == (name == "layernorm")
        runs.clear()
        norm(x)
        assert not runs


def test_gradients_by_many_cotangents_at_once(load):
    for name, theirs in (("rmsnorm", rms), ("softmax", softmax)):
        norm, x, many = load(name), drawn(3, 8), torch.randn(4, 3, 8)
        for _ in range(KNOWN):
            grad(norm(x), x, many[0])
        found, want = (grad(each(x), x, many, is_grads_batched=True)[0] for each in (norm, theirs))
        same(found, want)


def test_backwards_in_a_mode_are_seen_by_it(load):
    modes = pytest.importorskip("torch.testing._internal.logging_tensor")
    norm, x, dy = load("rmsnorm"), drawn(3, 8), torch.randn(3, 8)
    for _ in range(KNOWN):
        y = norm(x)
        grad(y, x, dy, retain_graph=True)
    with modes.capture_logs_with_logging_tensor_mode() as seen:
        found = grad(y, x, dy)
    assert any("rmsnorm" in line and "backward" in line for line in seen)
    same(found, grad(rms(x), x, dy))


def test_numbers_that_change_make_no_new_call(load):
    """As the share of a batch in averages of all batches does."""
    norm, x, mean, var = load("batchnorm"), torch.randn(4, 6, 5), torch.zeros(6), torch.ones(6)
    theirs = mean.clone(), var.clone()
    for _ in range(KNOWN):
        norm(x, None, None, mean, var, momentum=0.0)
    known = len(norm._step.calls._known)
    for batches in range(1, 6):
        same(
            norm(x, None, None, mean, var, momentum=1 / batches, eps=10.0**-batches),
            functional.batch_norm(x, *theirs, training=True, momentum=1 / batches, eps=10.0**-batches),
        )
        same([mean, var], [*theirs])
    assert len(norm._step.calls._known) == known
    with pytest.raises(ValueError, match="eps must be >"):
        norm(x, None, None, mean, var, eps=-1.0)
    with pytest.raises(ValueError, match="finite"):
        norm(x, None, None, mean, var, momentum=float("nan"))


@pytest.mark.parametrize("momentum", (None, 0.1))
def test_steps_of_batch_norm_make_no_new_call(monkeypatch, momentum):
    """With cumulative averages too, whose share is another number in each step: nothing is prepared again,
    and Python runs nothing but the first call and what C++ learns of it."""
    mine, theirs = (home.BatchNorm1d(6, momentum=momentum) for home in (nt.nn, torch.nn))
    prepare, run, prepared, runs = local.prepare, steps.Step.run, [], []
    monkeypatch.setattr(local, "prepare", lambda *given: prepared.append(given) or prepare(*given))
    monkeypatch.setattr(steps.Step, "run", lambda *given: runs.append(given) or run(*given))
    for step in range(6):
        x = drawn(5, 6)
        made = [(y := norm(x), *grad(y.sin().sum(), (x, norm.weight, norm.bias))) for norm in (mine, theirs)]
        same(*made)
        assert step == 0 or not prepared
        assert step < 3 or native.EXTENSION.loaded is None or not runs
        prepared.clear()
        runs.clear()
    same(dict(mine.state_dict()), dict(theirs.state_dict()))


@torch._dynamo.config.patch(capture_scalar_outputs=True)
def test_cumulative_averages_are_compiled():
    mine, theirs = nt.nn.BatchNorm1d(6, momentum=None), torch.nn.BatchNorm1d(6, momentum=None)
    compiled = torch.compile(mine, backend="aot_eager")
    for _ in range(3):
        x = drawn(5, 6)
        y = compiled(x)
        same((y, *grad(y.sin().sum(), x)), (want := theirs(x), *grad(want.sin().sum(), x)))
    same(dict(mine.state_dict()), dict(theirs.state_dict()))
