"""Blocks whose residual add and norm become one kernel: known by their source, and otherwise unchanged."""

from __future__ import annotations

import copy
from functools import wraps

import pytest

torch = pytest.importorskip("torch")
nt = pytest.importorskip("normgen.torch")
nn = torch.nn

from tests.torch.test_lookalikes import EarlyNorm  # noqa: E402


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.grow = nn.Linear(32, 32), nn.Linear(32, 32)
        self.norm, self.after = EarlyNorm(), EarlyNorm()


class Prenorm(Block):
    """As the decoder layers of transformers are written."""

    def forward(self, x):
        residual = x
        x = self.mix(self.norm(x))
        x = residual + x
        residual = x
        x = self.after(x)
        return residual + self.grow(x)


class Named(Block):
    """The sum and the norm have names of their own, and the sum is used again."""

    def forward(self, x):
        total = x + self.mix(self.norm(x))
        normed = self.after(total)
        return total + self.grow(normed)


class Three(Block):
    """Three names, of which two are the sum."""

    def forward(self, x):
        total = x + self.mix(self.norm(x))
        again = total
        normed = self.after(again)
        return total * 0.5 + again * 0.5 + self.grow(normed)


class Checkpointed(nn.Module):
    """A base that wraps what its subclasses are written with."""

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        forward = cls.forward

        @wraps(forward)
        def counted(self, *arguments):
            self.calls = getattr(self, "calls", 0) + (type(self).forward is counted)
            return forward(self, *arguments)

        cls.forward = counted


class Wrapped(Checkpointed, Block):
    forward = Prenorm.forward


class Unsummed(Block):
    def forward(self, x):
        x = self.mix(self.norm(x))
        return x + self.grow(self.after(x))


class Superior(Prenorm):
    """What a forward closes over is not known by its source."""

    def forward(self, x):
        x = x + super().forward(x)
        y = self.after(x)
        return y


def _decorated(function):
    @wraps(function)
    def decorated(self, x):
        return function(self, 2 * x)

    return decorated


class Hidden(Block):
    """A wrapper that the source of the forward does not show."""

    forward = _decorated(Prenorm.forward)


FUSED = [Prenorm, Named, Three, Wrapped]


def _run(model, x):
    x = x.clone().requires_grad_()
    model.zero_grad()
    y = model(x)
    y.float().sin().sum().backward()
    return [y.detach(), x.grad, *(p.grad.clone() for p in model.parameters())]


def _count_sums(monkeypatch):
    """How often a norm is called with a sum, from now on."""
    fusing = pytest.importorskip("normgen.torch.patching.fusing")
    calls = []
    compute = fusing.compute
    monkeypatch.setattr(fusing, "compute", lambda *given: calls.append(1) or compute(*given))
    return calls


@pytest.mark.parametrize("cls", FUSED)
def test_a_sum_and_its_norm_become_one_call(cls, monkeypatch):
    torch.manual_seed(0)
    model, x = cls(), torch.randn(3, 5, 32)
    want = _run(model, x)
    report = nt.patch(model, fuse=True)
    assert [(each.name, each.type, each.spec) for each in report.fused] == [
        ("", cls.__name__, "sum and rmsnorm_llama (after)")
    ]
    calls = _count_sums(monkeypatch)
    got = _run(model, x)
    assert calls == [1]
    for ours, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=2e-4)


def test_bfloat16_rounds_where_it_did():
    torch.manual_seed(0)
    model, x = Prenorm().bfloat16(), torch.randn(16, 32).bfloat16()
    want = model(x)
    nt.patch(model, fuse=True)
    assert (model(x) != want).float().mean() < 0.05


@pytest.mark.parametrize("cls", [Unsummed, Superior, Hidden])
def test_other_blocks_are_left(cls):
    model = cls()
    report = nt.patch(model, fuse=True)
    assert not report.fused and len(report.replaced) == 2 and type(model) is cls


def test_fusing_is_off_by_default_and_comes_later_too():
    model = Prenorm()
    assert not nt.patch(model).fused
    assert len(nt.patch(model, fuse=True).fused) == 1
    assert not nt.patch(model, fuse=True).fused
    assert nt.unpatch(model) == ("", "norm", "after")
    assert type(model) is Prenorm


def test_hooks_of_the_norm_are_called(monkeypatch):
    model = Prenorm()
    nt.patch(model, fuse=True)
    seen = []
    model.after.register_forward_hook(lambda module, given, made: seen.append(made.shape))
    calls = _count_sums(monkeypatch)
    model(torch.randn(2, 32))
    assert seen == [(2, 32)] and not calls


def test_sums_of_different_types_and_shapes_are_added_first(monkeypatch):
    model = Named()
    x = torch.randn(1, 32)
    model.mix.forward = lambda x: torch.ones(3, 32)
    want = model(x)
    nt.patch(model, fuse=True)
    calls = _count_sums(monkeypatch)
    torch.testing.assert_close(model(x), want, atol=2e-6, rtol=2e-5)
    assert not calls


@pytest.mark.parametrize("fuse", [False, True])
def test_compilers_see_one_graph(fuse):
    torch.manual_seed(0)
    model, x = Prenorm(), torch.randn(3, 32)
    want = _run(model, x)
    nt.patch(model, fuse=fuse)
    got = _run(torch.compile(model, backend="aot_eager", fullgraph=True), x)
    for ours, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=2e-4)


def test_fused_blocks_are_copied():
    model = Wrapped()
    nt.patch(model, fuse=True)
    made, x = copy.deepcopy(model), torch.randn(2, 32)
    assert type(made) is type(model) and torch.equal(made(x), model(x))
    assert made.calls == 1


def test_a_norm_that_was_put_back_is_called_by_itself(monkeypatch):
    model, x = Prenorm(), torch.randn(2, 32)
    want = model(x)
    nt.patch(model, fuse=True)
    nt.unpatch(model.after)
    calls = _count_sums(monkeypatch)
    torch.testing.assert_close(model(x), want, atol=2e-6, rtol=2e-5)
    assert not calls


@pytest.mark.parametrize("spec", ["rmsnorm", "rmsnorm_llama", "rmsnorm_zero_centred"])
def test_sums_and_norms_have_derivatives_of_any_order(spec):
    norm = nt.load(pytest.importorskip("normgen.torch.patching.fusing").ADDED[spec])
    operands = [
        torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((2, 3), (2, 3), (3,))
    ]
    assert torch.autograd.gradcheck(norm, operands)
    assert torch.autograd.gradgradcheck(norm, operands)
    h, y = norm(*[operand.bfloat16() for operand in operands])
    assert h.dtype is y.dtype is torch.bfloat16
