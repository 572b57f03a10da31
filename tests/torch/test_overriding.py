"""Subclasses of PyTorch's norms with methods of their own: patched, they compute what they did before."""

from __future__ import annotations

import copy

import pytest

from tests.torch.norms import functional, nt, torch
from tests.torch.patched import agrees

nn = torch.nn


class Doubled(nn.InstanceNorm2d):
    """Another method than forward, which calls the norm's."""

    def _apply_instance_norm(self, input):
        return 2 * super()._apply_instance_norm(input)


class Own(nn.InstanceNorm2d):
    """Another method than forward, which does without the norm's."""

    def _apply_instance_norm(self, input):
        return functional.instance_norm(input, eps=0.5).abs()


class Strict(nn.BatchNorm2d):
    """A check that the norm calls, not a method of the drop-in."""

    def _check_input_dim(self, input):
        if input.shape[0] == 1:
            raise ValueError("one image is too few")
        super()._check_input_dim(input)


class Cast(nn.GroupNorm):
    """As in guided diffusion."""

    def forward(self, x):
        return super().forward(x.float()).type(x.dtype)


class Activated(nn.BatchNorm2d):
    def __init__(self, channels):
        super().__init__(channels)
        self.act = nn.LeakyReLU(0.1)

    @torch.autocast("cpu", enabled=False)
    def forward(self, input):
        return self.act(super().forward(input))


class Mixin:
    def forward(self, input):
        return super().forward(input) + input


class Mixed(Mixin, nn.LayerNorm):
    pass


class Again(Activated):
    def forward(self, input):
        return super().forward(input) + 1


class Named(Activated):
    """Passes over what it derives from."""

    def forward(self, input):
        return nn.BatchNorm2d.forward(self, input)


class Scaled(nn.Softmax):
    def forward(self, input):
        return super().forward(0.5 * input)


WITHIN = {
    "Doubled": (lambda: Doubled(6), "instancenorm"),
    "Activated": (lambda: Activated(6), "batchnorm"),
    "Mixed": (lambda: Mixed((4, 5)), "layernorm"),
    "Again": (lambda: Again(6), "batchnorm"),
    "Scaled": (lambda: Scaled(-1), "softmax"),
    "Strict": (lambda: Strict(6), "batchnorm"),
}
LEFT = {"Own": lambda: Own(6), "Named": lambda: Named(6)}


@pytest.mark.parametrize(("make", "spec"), WITHIN.values(), ids=WITHIN)
def test_methods_that_call_the_norms_find_the_drop_ins(make, spec, prepared):
    module = make()
    cls = type(module)
    (found,) = agrees(module, torch.randn(2, 6, 4, 5)).replaced
    assert found.spec == spec and any(spec in name for name, _ in prepared)
    assert nt.unpatch(module) == ("",) and type(module) is cls


@pytest.mark.parametrize("make", LEFT.values(), ids=LEFT)
def test_methods_that_do_without_the_norms_are_left(make):
    (left,) = agrees(make(), torch.randn(2, 6, 4, 5)).left
    assert left.reason.startswith("overrides ")


def test_checks_of_a_subclass_hold():
    module = Strict(6)
    nt.patch(module)
    with pytest.raises(ValueError, match="one image is too few"):
        module(torch.randn(1, 6, 4, 5))


def test_element_types_are_those_of_the_method():
    module, x = Cast(2, 6), torch.randn(2, 6, 4, 5).bfloat16()
    want = module(x)
    assert nt.patch(module).replaced
    assert module(x).dtype is want.dtype is torch.bfloat16
    assert (module(x) != want).float().mean() < 0.02


@pytest.mark.parametrize("make", [lambda: Activated(6), lambda: Doubled(6)])
def test_compilers_see_one_graph(make):
    module, x = make(), torch.randn(2, 6, 4, 5)
    want = copy.deepcopy(module)(x)
    nt.patch(module)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), want, atol=1e-5, rtol=1e-4)
