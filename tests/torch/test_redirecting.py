"""Forwards that call norms of `torch.nn.functional`: patched, they call kernels, and all else stays."""

from __future__ import annotations

import copy
from functools import wraps

import pytest

from tests.torch.norms import functional, nt, torch
from tests.torch.patched import agrees
from tests.torch.test_modules import copies

nn = torch.nn


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


class Written(nn.LayerNorm):
    """What differs below is how a forward is written."""

    TINY = 1e-3

    def __init__(self):
        super().__init__((4, 5), bias=False)

    @property
    def shape(self):
        return self.normalized_shape


class ByPosition(Written):
    def forward(self, x, /):
        return functional.layer_norm(x, self.shape, self.weight).sigmoid()


class Packed(Written):
    def forward(*given):
        return functional.layer_norm(given[1], (4, 5), given[0].weight).sigmoid()


class Defaulted(Written):
    """Defaults that are names of the class."""

    def forward(self, x, tiny=Written.TINY, *, power=2):
        return functional.layer_norm(x, self.shape, self.weight, None, tiny) ** power


class Constant(Written):
    LARGE = 0.5

    def forward(self, x, tiny=LARGE):
        return functional.layer_norm(x, self.shape, self.weight, None, tiny).sigmoid()


class Private(Written):
    def __init__(self):
        super().__init__()
        self.__tiny = 0.5

    def forward(self, x):
        return functional.layer_norm(x, self.shape, self.weight, None, self.__tiny).sigmoid()


class Rebound(Written):
    """Another thing under the name of the module itself."""

    def forward(self, x):
        weight, self = self.weight, x
        return functional.layer_norm(self, (4, 5), weight).sigmoid()


class Inner(Written):
    def forward(self, x):
        def normed(self):
            return functional.layer_norm(self, (4, 5))

        return self.weight * normed(x)


def _doubled(function):
    @wraps(function)
    def doubled(self, x):
        return 2 * function(self, x)

    return doubled


class Wrapped(Written):
    @_doubled
    @torch.autocast("cpu", enabled=False)
    def forward(self, x):
        return functional.layer_norm(x, self.shape, self.weight).sigmoid()


class WrappedByItsOwn(Written):
    def own(function):
        return _doubled(function)

    @own
    def forward(self, x):
        return functional.layer_norm(x, self.shape, self.weight).sigmoid()


class ShadowedNorm(nn.LayerNorm):
    """A name of the module that is another in the forward."""

    def forward(self, x):
        functional = _Other
        return functional.layer_norm(x, self.normalized_shape)


class InnerShadowedNorm(nn.LayerNorm):
    def forward(self, x):
        return self.by(lambda functional: functional.layer_norm(x, self.normalized_shape))

    def by(self, function):
        return function(_Other)


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
    "SyncBatchNorm": (lambda: nn.SyncBatchNorm(6), "batchnorm"),
    **{each.__name__: (lambda each=each: each(), "layernorm") for each in Written.__subclasses__()},
}


@pytest.mark.parametrize(("make", "specs"), REDIRECTED.values(), ids=REDIRECTED)
def test_functions_of_pytorch_that_a_forward_calls_become_kernels(make, specs, prepared):
    module, x = make(), torch.randn(2, 6, 4, 5)
    (found,) = agrees(module, x).replaced
    assert (found.spec, found.note) == (specs, "inside its own forward")
    for spec in specs.split(" and "):
        assert any(spec in name for name, _ in prepared)
    for each in copies(module):
        assert type(each) is type(module)
        torch.testing.assert_close(each(x), module(x))
    assert nt.unpatch(module) == ("",)


@pytest.mark.parametrize("cls", [ShadowedNorm, InnerShadowedNorm])
def test_a_name_that_is_another_in_the_forward_is_not_taken_for_the_function(cls):
    module, x = cls(5), torch.randn(3, 5)
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


def test_other_paths_of_a_forward_stay(monkeypatch, prepared):
    """A SyncBatchNorm beside other processes calls no function of batch norm."""
    module, x = nn.SyncBatchNorm(6), torch.randn(2, 6, 4, 5)
    nt.patch(module)
    calls = []

    class Exchange:
        @staticmethod
        def apply(*given):
            calls.append(given)
            return given[0]

    with monkeypatch.context() as patch:
        patch.setattr(nn.modules.batchnorm, "sync_batch_norm", Exchange)
        patch.setattr(torch.distributed, "is_initialized", lambda: True)
        patch.setattr(torch.distributed, "get_world_size", lambda group: 2)
        patch.setattr(torch._C, "_get_privateuse1_backend_name", lambda: "cpu")
        assert module(x) is x and not prepared
        ((given, weight, _, mean, *_, count),) = calls
        assert given is x and weight is module.weight and mean is module.running_mean and count == 2
        module.eval()(x)
    assert len(calls) == 1 and any("batchnorm" in name for name, _ in prepared)


FUNCTIONS = {
    "BatchNormAct": (lambda: BatchNormAct(6).eval(), functional.batch_norm),
    "GroupNormAct": (lambda: GroupNormAct(6), functional.group_norm),
    "Wrapped": (lambda: Wrapped(), functional.layer_norm),
    "ScaledNorm": (lambda: ScaledNorm(), functional.rms_norm),
}


@pytest.mark.parametrize(("make", "function"), FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::torch.jit.TracerWarning")
def test_what_traces_sees_the_functions_of_pytorch(make, function):
    """As it does in modules that are not patched."""
    model, x = nn.Sequential(make()), torch.randn(2, 6, 4, 5)
    want = model(x)
    nt.patch(model)
    traced = torch.fx.symbolic_trace(model)
    assert function in [node.target for node in traced.graph.nodes]
    exported = torch.jit.trace(model, x)
    assert "normgen::" not in str(exported.inlined_graph)
    for each in (traced, exported):
        torch.testing.assert_close(each(x), want, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("make", [lambda: BatchNormAct(6), lambda: Wrapped(), lambda: Private()])
def test_compilers_see_one_graph(make):
    module, x = make(), torch.randn(2, 6, 4, 5)
    want = copy.deepcopy(module)(x)
    nt.patch(module)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), want, atol=1e-5, rtol=1e-4)
