"""Subclasses of PyTorch's norms with methods of their own: patched, they compute what they did before."""

from __future__ import annotations

import copy

import pytest

from tests.torch.conftest import forget_calls
from tests.torch.norms import functional, nt, torch
from tests.torch.test_modules import copies

nn = torch.nn


@pytest.fixture
def prepared(runs):
    """The steps that run, none of which was known before."""
    forget_calls()
    return runs


class Doubled(nn.InstanceNorm2d):
    """Another method than forward, which calls the norm's."""

    def _apply_instance_norm(self, input):
        return 2 * super()._apply_instance_norm(input)


class Own(nn.InstanceNorm2d):
    """Another method than forward, which does without the norm's."""

    def _apply_instance_norm(self, input):
        return functional.instance_norm(input, eps=0.5)


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


def _outcome(module, x):
    """The result of two calls in a row in training and of one in evaluation, gradients of the first, and what
    the module has then."""
    x = x.clone().requires_grad_()
    y = module.train()(module(x))
    wanted = (x, *module.parameters())
    gradients = torch.autograd.grad(y.float().sin().sum(), wanted)
    return y, gradients, module.eval()(x), dict(module.state_dict())


def _agrees(module, x):
    other = copy.deepcopy(module)
    report = nt.patch(module)
    want = _outcome(other, x)
    torch.testing.assert_close(_outcome(module, x), want, atol=1e-5, rtol=1e-4)
    assert repr(module) == repr(other)
    return report


@pytest.mark.parametrize(("make", "spec"), WITHIN.values(), ids=WITHIN)
def test_methods_that_call_the_norms_find_the_drop_ins(make, spec, prepared):
    module = make()
    cls = type(module)
    (found,) = _agrees(module, torch.randn(2, 6, 4, 5)).replaced
    assert found.spec == spec and any(spec in name for name, _ in prepared)
    assert nt.unpatch(module) == ("",) and type(module) is cls


@pytest.mark.parametrize("make", LEFT.values(), ids=LEFT)
def test_methods_that_do_without_the_norms_are_left(make):
    (left,) = _agrees(make(), torch.randn(2, 6, 4, 5)).left
    assert " of its own, and " in left.reason


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


class BatchNormAct(nn.BatchNorm2d):
    """As in timm: the norm's own forward, and then an activation."""

    def __init__(self, channels, momentum=0.1):
        super().__init__(channels, momentum=momentum)
        self.drop, self.act = nn.Identity(), nn.ReLU()

    def forward(self, x):
        average = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                average = 1.0 / float(self.num_batches_tracked)
        training = self.training or (self.running_mean is None and self.running_var is None)
        x = nn.functional.batch_norm(
            x,
            self.running_mean if not self.training or self.track_running_stats else None,
            self.running_var if not self.training or self.track_running_stats else None,
            self.weight,
            self.bias,
            training,
            average,
            self.eps,
        )
        return self.act(self.drop(x))


class GroupNormAct(nn.GroupNorm):
    def __init__(self, channels):
        super().__init__(2, channels)
        self.act = nn.SiLU()

    def forward(self, x):
        return self.act(functional.group_norm(x, self.num_groups, self.weight, self.bias, self.eps))


class LayerNormAct(nn.LayerNorm):
    def forward(self, x):
        if x.dim() == 0:
            return x
        return torch.sigmoid(functional.layer_norm(x, self.normalized_shape, eps=1e-3, weight=self.weight))


class ScaledNorm(nn.Module):
    """No subclass of a norm, and two of them in a row."""

    def __init__(self):
        super().__init__()
        self.weight, self.size = nn.Parameter(torch.rand(5)), (5,)

    def forward(self, x, scale=2.0):
        y = functional.rms_norm(x, self.size, self.weight)
        return scale * functional.layer_norm(y, self.size)


class ShadowedNorm(nn.LayerNorm):
    """A name of the module that is another in the forward."""

    def forward(self, x):
        functional = _Other
        return functional.layer_norm(x, self.normalized_shape)


class _Other:
    @staticmethod
    def layer_norm(x, shape):
        return x + len(shape)


REDIRECTED = {
    "BatchNormAct": (lambda: BatchNormAct(6), "batchnorm"),
    "average": (lambda: BatchNormAct(6, None), "batchnorm"),
    "GroupNormAct": (lambda: GroupNormAct(6), "groupnorm"),
    "LayerNormAct": (lambda: LayerNormAct((4, 5), bias=False), "layernorm"),
    "ScaledNorm": (lambda: ScaledNorm(), "rmsnorm and layernorm"),
}


@pytest.mark.parametrize(("make", "specs"), REDIRECTED.values(), ids=REDIRECTED)
def test_functions_of_pytorch_that_a_forward_calls_become_kernels(make, specs, prepared):
    module, x = make(), torch.randn(2, 6, 4, 5)
    (found,) = _agrees(module, x).replaced
    assert (found.spec, found.note) == (specs, "within forward of its own")
    for spec in specs.split(" and "):
        assert any(spec in name for name, _ in prepared)
    for each in copies(module):
        assert type(each) is type(module)
        torch.testing.assert_close(each(x), module(x))
    assert nt.unpatch(module) == ("",)


def test_a_name_that_is_another_in_the_forward_is_not_taken_for_the_function():
    module, x = ShadowedNorm(5), torch.randn(3, 5)
    nt.patch(module)
    assert torch.equal(module(x), x + 1)


def test_what_kernels_do_not_take_is_refused_as_before():
    for module, x in ((BatchNormAct(6), torch.randn(1, 6, 1, 1)), (GroupNormAct(6), torch.randn(2, 5))):
        found = []
        for _ in range(2):
            with pytest.raises((RuntimeError, ValueError)) as caught:
                module(x)
            found.append((caught.type, str(caught.value)))
            nt.patch(module)
        assert found[0] == found[1]


@pytest.mark.parametrize("make", [lambda: BatchNormAct(6), lambda: Activated(6), lambda: Doubled(6)])
def test_compilers_see_one_graph(make):
    module, x = make(), torch.randn(2, 6, 4, 5)
    want = copy.deepcopy(module)(x)
    nt.patch(module)
    torch._dynamo.reset()
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), want, atol=1e-5, rtol=1e-4)
