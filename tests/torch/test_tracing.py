"""Models that `torch.jit.trace` traces, which knows the operators of PyTorch alone: patched norms are traced
as what they were, and others say so. Methods that were set on a patched norm can be put back too."""

from __future__ import annotations

import pytest

from tests.torch.norms import nt, same, torch

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.trace")


class LlamaRMSNorm(torch.nn.Module):
    """As in transformers."""

    def __init__(self, size=8):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(size))
        self.variance_epsilon = 1e-6

    def forward(self, hidden_states):
        kind = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden_states.to(kind)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = LlamaRMSNorm()

    def forward(self, x, residual):
        h = residual + x
        return self.norm(h), h


@pytest.mark.parametrize("fuse", (False, True))
@pytest.mark.parametrize("make", (LlamaRMSNorm, Block, lambda: torch.nn.LayerNorm(8)))
def test_patched_modules_are_traced_as_what_they_were(make, fuse):
    model = torch.nn.ModuleList([make()])
    given = (torch.randn(3, 8), torch.randn(3, 8))[: 2 if make is Block else 1]
    want = model[0](*given)
    assert nt.patch(model, fuse=fuse).replaced
    traced = torch.jit.trace(model[0], given)
    same(traced(*given), want)
    assert "normgen::" not in str(traced.inlined_graph)


def test_functions_say_that_they_cannot_be_traced(load):
    x = torch.randn(3, 8)
    norm = load("rmsnorm")
    for _ in range(3):
        norm(x)
    for call in (norm, lambda x: norm(x), lambda x: nt.load("rmsnorm")(x)):
        with pytest.raises(RuntimeError, match=r"torch\.jit\.trace cannot trace rmsnorm\(\)"):
            torch.jit.trace(call, (x,))


@pytest.mark.parametrize(
    "make", (lambda: nt.nn.AddRMSNorm(8), lambda: nt.nn.from_spec("add_rmsnorm", sizes={"D": 8}))
)
def test_modules_that_pytorch_has_not_say_so_too(make):
    x = torch.randn(3, 8)
    with pytest.raises(RuntimeError, match=r"use torch\.export"):
        torch.jit.trace(make(), (x, x))


@pytest.mark.parametrize("name", ("forward", "_old_forward"))
@pytest.mark.parametrize("make", (LlamaRMSNorm, lambda: torch.nn.LayerNorm(8)))
def test_a_method_that_was_set_on_a_module_is_put_back_with_it(make, name):
    model, x = torch.nn.Sequential(make()), torch.randn(3, 8)
    original, want = type(model[0]), model(x)
    nt.patch(model)
    setattr(model[0], name, model[0].forward)
    same(model(x), want)
    assert nt.unpatch(model) == ("0",)
    assert type(model[0]) is original and getattr(model[0], name).__func__ is original.forward
    same(model(x), want)
