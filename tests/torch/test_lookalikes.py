"""Norms of other libraries: told by what they compute, with the points at which they round."""

from __future__ import annotations

import pytest

from tests.torch.norms import nt, torch

nn = torch.nn
SHORT = (torch.bfloat16, torch.float16)


class Norm(nn.Module):
    """What all below have; `row` normalizes a row in float32."""

    def __init__(self, size=32, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(size) + 0.5)
        self.eps = eps

    def row(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


class EarlyNorm(Norm):
    """Rounds before the gain, as in Llama."""

    def forward(self, x):
        return self.weight * self.row(x.float()).to(x.dtype)


class T5Norm(Norm):
    def forward(self, x):
        y = x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * (y.to(self.weight.dtype) if self.weight.dtype in SHORT else y)


class LateNorm(Norm):
    def forward(self, x):
        return (self.weight * self.row(x.float())).to(x.dtype)


class GemmaNorm(Norm):
    def forward(self, x):
        return (self.row(x.float()) * (1.0 + self.weight.float())).type_as(x)


class OutsideNorm(Norm):
    def forward(self, x):
        return (x.float() / (x.float().pow(2).mean(-1, keepdim=True).sqrt() + self.eps) * self.weight).to(
            x.dtype
        )


class UnweightedNorm(Norm):
    def __init__(self):
        super().__init__()
        self.weight = None

    def forward(self, x):
        return self.row(x.float()).type_as(x)


class PlainNorm(Norm):
    """Computes in whatever type it is given."""

    def forward(self, x):
        return self.row(x) * self.weight


class Float32LayerNorm(nn.LayerNorm):
    def forward(self, x):
        weight, bias = self.weight.float(), self.bias.float()
        return nn.functional.layer_norm(x.float(), (32,), weight, bias, self.eps).to(x.dtype)


class LayerNorm2d(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class DetachedNorm(Norm):
    """The same results as others, and another gradient."""

    def forward(self, x):
        rstd = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps).detach()
        return (x.float() * rstd * self.weight).to(x.dtype)


class ClippedNorm(Norm):
    def forward(self, x):
        return (self.row(x.float()) * self.weight).clamp(max=2).to(x.dtype)


class DeviceNorm(Norm):
    """A kernel of some other device."""

    def forward(self, x):
        raise RuntimeError("expected a tensor on a GPU")


class ConstantNorm(Norm):
    """An eps that is no attribute."""

    def __init__(self):
        super().__init__()
        del self.eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


KNOWN = [
    (EarlyNorm, "rmsnorm_llama"),
    (T5Norm, "rmsnorm_llama"),
    (LateNorm, "rmsnorm"),
    (GemmaNorm, "rmsnorm_zero_centred"),
    (OutsideNorm, "rmsnorm_eps_outside"),
    (UnweightedNorm, "rmsnorm"),
    (PlainNorm, "rmsnorm"),
    (Float32LayerNorm, "layernorm"),
    (LayerNorm2d, "layernorm2d"),
]


def _report(module, **options):
    report = nt.patch(module, **options)
    return (*report.replaced, *report.left)[0]


@pytest.mark.parametrize(("cls", "spec"), KNOWN)
def test_a_norm_is_told_by_what_it_computes(cls, spec):
    module = cls(32) if issubclass(cls, nn.LayerNorm) else cls()
    x = torch.randn(2, 32, 3, 4) if spec == "layernorm2d" else torch.randn(5, 32)
    theirs, ours = x.clone().requires_grad_(), x.clone().requires_grad_()
    want = module(theirs)
    assert _report(module).spec == spec
    got = module(ours)
    torch.testing.assert_close(got, want, atol=2e-6, rtol=2e-5)
    got.sin().sum().backward()
    want.sin().sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, atol=2e-5, rtol=2e-4)


@pytest.mark.parametrize("cls", [DetachedNorm, ClippedNorm, ConstantNorm])
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


def test_autocast_changes_no_element_type_and_modes_of_the_caller_do_not_mislead():
    module, x = EarlyNorm().bfloat16(), torch.randn(4, 32).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        want = module(x)
        nt.patch(module)
        assert module(x).dtype is want.dtype is torch.bfloat16
    with torch.device("meta"), torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert _report(EarlyNorm()).spec == "rmsnorm_llama"
