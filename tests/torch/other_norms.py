"""Norms as other libraries write them."""

from __future__ import annotations

from tests.torch.norms import functional, torch

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


class FrozenGainNorm(Norm):
    """The same, for the gain."""

    def forward(self, x):
        return (self.row(x.float()) * self.weight.detach()).to(x.dtype)


class EvaluatedNorm(Norm):
    """Another norm in evaluation."""

    def forward(self, x):
        return self.row(x) * (self.weight if self.training else 1.0)


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


class DefaultNorm(ConstantNorm):
    """An eps among the defaults of a method."""

    def forward(self, x):
        return self.by(x) * self.weight

    def by(self, x, tiny=3e-4):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + tiny)


class TinyNorm(ConstantNorm):
    TINY = 1e-4

    def forward(self, x):
        return functional.rms_norm(x, (32,), self.weight, TinyNorm.TINY)


class NoneNorm(ConstantNorm):
    def forward(self, x):
        return functional.rms_norm(x, (32,), self.weight)


class AnnotatedNorm(nn.Module):
    """As in the annotated transformer, but for its deviation."""

    def __init__(self):
        super().__init__()
        self.a_2, self.b_2 = nn.Parameter(torch.rand(32) + 0.5), nn.Parameter(torch.randn(32))
        self.layer_eps = 1e-6

    def forward(self, x):
        mean, var = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, correction=0)
        return self.a_2 * (x - mean) * torch.rsqrt(var + self.layer_eps) + self.b_2


class ReversedNorm(AnnotatedNorm):
    def __init__(self):
        super().__init__()
        self.a_2, self.b_2 = self.b_2, self.a_2

    def forward(self, x):
        return functional.layer_norm(x, (32,), self.b_2, self.a_2)


class Norm32(nn.GroupNorm):
    """As in guided diffusion."""

    def __init__(self):
        super().__init__(4, 32)
        nn.init.normal_(self.weight)

    def forward(self, x):
        return super().forward(x.float()).type(x.dtype)


class FreeGroupNorm(nn.Module):
    """With a number of groups under another name, and no GroupNorm below."""

    def __init__(self):
        super().__init__()
        self.group_count = 8
        self.gamma, self.beta = nn.Parameter(torch.rand(32) + 0.5), nn.Parameter(torch.randn(32))

    def forward(self, x):
        y = x.reshape(x.shape[0], self.group_count, -1)
        var, mean = torch.var_mean(y, -1, correction=0, keepdim=True)
        y = ((y - mean) * (var + 1e-5).rsqrt()).reshape(x.shape)
        shape = (1, 32, *[1] * (x.dim() - 2))
        return y * self.gamma.reshape(shape) + self.beta.reshape(shape)


class FrozenNorm(nn.Module):
    """As in detectron2 and torchvision."""

    def __init__(self):
        super().__init__()
        for name, values in (("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0)):
            self.register_buffer(name, torch.rand(32) + values)

    def forward(self, x):
        scale = self.weight.reshape(1, -1, 1, 1) * (self.running_var.reshape(1, -1, 1, 1) + 1e-5).rsqrt()
        return x * scale + self.bias.reshape(1, -1, 1, 1) - self.running_mean.reshape(1, -1, 1, 1) * scale


# Those that a bundled spec computes, and which.
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
    (ConstantNorm, "rmsnorm"),
    (DefaultNorm, "rmsnorm"),
    (TinyNorm, "rmsnorm"),
    (NoneNorm, "rmsnorm"),
    (AnnotatedNorm, "layernorm"),
    (ReversedNorm, "layernorm"),
    (Norm32, "groupnorm"),
    (FreeGroupNorm, "groupnorm"),
    (FrozenNorm, "batchnorm"),
]
