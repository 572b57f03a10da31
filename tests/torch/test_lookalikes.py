"""Norms of other libraries: told by what they compute, with the points at which they round."""

from __future__ import annotations

import pytest

from tests.torch.norms import nt, torch
from tests.torch.other_norms import (
    KNOWN,
    SHORT,
    AnnotatedNorm,
    ClippedNorm,
    DetachedNorm,
    DeviceNorm,
    EarlyNorm,
    EvaluatedNorm,
    FrozenGainNorm,
    GemmaNorm,
    LateNorm,
    Norm,
    PlainNorm,
)

nn = torch.nn
IMAGES = ("layernorm2d", "groupnorm", "batchnorm")


def _report(module, **options):
    report = nt.patch(module, **options)
    return (*report.replaced, *report.left)[0]


def _made(cls):
    return cls(32) if issubclass(cls, nn.LayerNorm) else cls()


@pytest.mark.parametrize(("cls", "spec"), KNOWN)
def test_a_norm_is_told_by_what_it_computes(cls, spec):
    module = _made(cls)
    x = torch.randn(2, 32, 3, 4) if spec in IMAGES else torch.randn(5, 32)
    theirs, ours = x.clone().requires_grad_(), x.clone().requires_grad_()
    want = module(theirs)
    assert _report(module).spec == spec
    got = module(ours)
    torch.testing.assert_close(got, want, atol=2e-6, rtol=2e-5)
    got.sin().sum().backward()
    want.sin().sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, atol=2e-5, rtol=2e-4)


@pytest.mark.parametrize("cls", [DetachedNorm, FrozenGainNorm, ClippedNorm, EvaluatedNorm])
def test_what_computes_something_else_is_left(cls):
    module = cls()
    assert _report(module).reason == "computes something that no bundled norm does"
    assert type(module) is cls


def test_what_does_not_run_here_is_left():
    module = DeviceNorm()
    module.shapes = ([1], [2])  # cannot be a key
    reason = _report(module).reason
    assert reason == "does not run on a small draw on the CPU, by which norms of other libraries are known"


@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("cls", [EarlyNorm, LateNorm, GemmaNorm])
def test_rounding_points_are_kept(cls, dtype):
    module, x = cls().to(dtype), torch.randn(64, 32).to(dtype)
    want = module(x)
    assert _report(module)
    assert (module(x) != want).float().mean() < 0.02


def test_rounding_once_is_asked_for_and_said():
    module, exact, x = EarlyNorm().to(torch.bfloat16), LateNorm(), torch.randn(64, 32).bfloat16()
    exact.load_state_dict(module.state_dict())
    found = _report(module, dtype="once")
    assert (found.spec, found.note) == (
        "rmsnorm",
        "rounds less often in bfloat16, float16, float64; "
        "as before in bfloat16 with float32, float16 with float32",
    )
    assert (module(x) != exact(x.float()).bfloat16()).float().mean() < 0.02


def test_element_types_that_do_not_agree_run_as_before():
    module, x = EarlyNorm(), torch.randn(4, 32).bfloat16()
    want = module(x)
    assert "as before in bfloat16 with float32" in _report(module).note
    assert want.dtype is torch.float32 and torch.equal(module(x), want)
    assert _report(PlainNorm()).note.startswith("as before in bfloat16, float16, ")


@pytest.mark.parametrize("cls", [PlainNorm, LateNorm])
def test_float64_is_computed_as_the_module_does(cls):
    module, x = cls().double(), torch.randn(4, 32, dtype=torch.float64, requires_grad=True)
    want = module(x)
    (slopes,) = torch.autograd.grad(want.sin().sum(), x)
    assert _report(module)
    got = module(x)
    torch.testing.assert_close(got, want, atol=1e-14, rtol=1e-13)
    torch.testing.assert_close(torch.autograd.grad(got.sin().sum(), x)[0], slopes, atol=1e-13, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, *SHORT], ids=str)
@pytest.mark.parametrize(("cls", "spec"), KNOWN)
def test_autocast_on_a_gpu_changes_the_same_element_types_as_before(cls, spec, dtype, request):
    """Specs whose results autocast would widen too: those of a lookalike are what the module made of them."""
    module = _made(cls).to(dtype)
    assert _report(module).spec == spec
    shape = (2, 32, 3, 4) if spec in IMAGES else (5, 32)
    found = []
    with request.getfixturevalue("on_gpu"):
        torch.set_default_dtype(dtype)
        fresh = _made(cls)
        torch.set_default_dtype(torch.float32)
        for fresh.__class__ in (cls, type(module)):
            found.append([fresh(torch.empty(shape, dtype=each)).dtype for each in (torch.float32, *SHORT)])
    assert found[0] == found[1]


def test_autocast_changes_no_element_type_and_modes_of_the_caller_do_not_mislead():
    module, x = EarlyNorm().bfloat16(), torch.randn(4, 32).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        want = module(x)
        nt.patch(module)
        assert module(x).dtype is want.dtype is torch.bfloat16
    with torch.device("meta"), torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert _report(EarlyNorm()).spec == "rmsnorm_llama"


def test_torchvisions_frozen_batch_norm_is_one():
    frozen = pytest.importorskip("torchvision.ops").FrozenBatchNorm2d(6)
    for buffer in frozen.buffers():
        buffer.uniform_(0.5, 2)
    x = torch.randn(2, 6, 3, 4)
    want, state = frozen(x), frozen.state_dict()
    assert _report(frozen).spec == "batchnorm"
    torch.testing.assert_close(frozen(x), want, atol=2e-6, rtol=2e-5)
    assert list(frozen.state_dict()) == list(state)
    frozen.running_mean.zero_()  # what a module has is read at each call
    assert not torch.allclose(frozen(x), want)


def test_an_eps_is_read_at_each_call():
    for cls, name in ((LateNorm, "eps"), (AnnotatedNorm, "layer_eps")):
        module, other, x = cls(), cls(), 1e-3 * torch.randn(4, 32)
        other.load_state_dict(module.state_dict())
        assert _report(module)
        for each in (module, other):
            setattr(each, name, 0.5)
        torch.testing.assert_close(module(x), other(x), atol=2e-6, rtol=2e-5)


class SequenceNorm(Norm):
    """Another norm for inputs of three dimensions."""

    def forward(self, x):
        return self.row(x) * self.weight * (2 if x.dim() == 3 else 1)


def test_other_numbers_of_dimensions_run_as_before():
    module = SequenceNorm()
    inputs = [torch.randn(shape) for shape in ((32,), (3, 32), (2, 3, 32), (2, 3, 2, 32))]
    want = [module(x) for x in inputs]
    assert "as before with 3 dimensions" in _report(module).note
    torch.testing.assert_close([module(x) for x in inputs], want, atol=2e-6, rtol=2e-5)


def test_a_gain_of_one_element_is_not_taken_for_one_of_a_row():
    module = PlainNorm(1)
    assert _report(module).reason == "its parameters have one element"
