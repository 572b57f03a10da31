"""Blocks whose residual add and norm become one kernel: known by their source, and otherwise unchanged."""

from __future__ import annotations

import copy
from functools import wraps

import pytest

from tests.torch.norms import drawn, nt, torch
from tests.torch.other_norms import EarlyNorm

nn, fusing = torch.nn, pytest.importorskip("normgen.torch.patching.fusing")


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


def slopes(model, x):
    """The result, and the gradients of its sine by x and all parameters."""
    x = x.clone().requires_grad_()
    model.zero_grad()
    y = model(x)
    y.float().sin().sum().backward()
    found = [p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad for p in model.parameters()]
    return [y.detach(), x.grad, *(gradient.clone() for gradient in found if gradient is not None)]


def agree(ours, theirs):
    torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=2e-4)


@pytest.mark.parametrize("cls", (Prenorm, Named, Three, Wrapped))
def test_a_sum_and_its_norm_become_one_call(cls, sums):
    model, x = cls(), torch.randn(3, 5, 32)
    want = slopes(model, x)
    report = nt.patch(model, fuse=True)
    assert [(each.name, each.type, each.spec) for each in report.fused] == [
        ("", cls.__name__, "sum and rmsnorm_llama (after)")
    ]
    agree(slopes(model, x), want)
    assert sums == [1]
    made = copy.deepcopy(model)
    assert type(made) is type(model) and torch.equal(made(x), model(x))
    assert cls is not Wrapped or made.calls == 3  # before, after and as a copy


def test_bfloat16_rounds_where_it_did():
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


def test_where_a_sum_is_no_operand_or_its_norm_was_put_back_the_norm_is_called_by_itself(sums):
    x = torch.randn(1, 32)
    widened, restored = models = Named(), Prenorm()
    widened.mix.forward = lambda x: torch.ones(3, 32)
    want = [model(x) for model in models]
    for model in models:
        nt.patch(model, fuse=True)
    nt.unpatch(restored.after)
    agree([model(x) for model in models], want)
    assert not sums


HOOKS = (
    "register_forward_hook",
    "register_forward_pre_hook",
    "register_full_backward_hook",
    "register_full_backward_pre_hook",
)


@pytest.mark.parametrize("everywhere", [False, True])
@pytest.mark.parametrize("register", HOOKS)
def test_hooks_of_a_norm_see_its_own_call(register, everywhere, sums):
    """Those of one module, and those of all."""
    model, x, seen = Prenorm(), torch.randn(3, 32), []
    want = slopes(model, x)
    nt.patch(model, fuse=True)

    def hook(module, *given):
        seen.extend([given] if module is model.after else [])

    home, name = model.after, register
    if everywhere:
        home, name = nn.modules.module, register.replace("register_", "register_module_")
    handle = getattr(home, name)(hook)
    try:
        agree(slopes(model, x), want)
    finally:
        handle.remove()
    assert len(seen) == 1 and not sums
    agree(slopes(model, x), want)
    assert len(sums) == 1


KINDS = {
    "sum of float32": (torch.float32, torch.bfloat16),
    "norm of bfloat16": (torch.bfloat16, torch.float32),
    "half": (torch.float16, torch.bfloat16),
}


@pytest.mark.parametrize(("residual", "mixed"), KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("cls", (Prenorm, Named))
def test_what_is_added_in_two_element_types_is_promoted_as_before(cls, residual, mixed, sums):
    model, x = cls(), torch.randn(3, 32).to(residual)
    model.norm, model.grow = nn.Identity(), nn.Identity()
    model.mix.forward = lambda x: (2 * x).to(mixed)
    want = model(x)
    assert nt.patch(model, fuse=True).fused
    got = model(x)
    assert got.dtype is want.dtype is torch.float32 and not sums
    agree(got, want)


@pytest.mark.parametrize("fuse", [False, True])
def test_compilers_see_one_graph(fuse):
    model, x = Prenorm(), torch.randn(3, 32)
    want = slopes(model, x)
    nt.patch(model, fuse=fuse)
    agree(slopes(torch.compile(model, backend="aot_eager", fullgraph=True), x), want)


@pytest.mark.parametrize("spec", fusing.ROWS)
def test_sums_and_norms_have_derivatives_of_any_order(spec):
    norm, operands = (
        nt.load(fusing.added(spec)),
        [drawn(*s, dtype=torch.float64) for s in ((2, 3), (2, 3), (3,))],
    )
    assert torch.autograd.gradcheck(norm, operands)
    assert torch.autograd.gradgradcheck(norm, operands)
    h, y = norm(*[operand.bfloat16() for operand in operands])
    assert h.dtype is y.dtype is torch.bfloat16
