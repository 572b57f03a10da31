"""Norms of many writings, drawn from a seed."""

from __future__ import annotations

import random
from typing import Any

from tests.torch.norms import functional, torch

nn = torch.nn


def _moments(x, dim):
    return x.mean(dim, keepdim=True), x.var(dim, keepdim=True, unbiased=False)


# How a row is normalized. `d`: its dimension.
RMS = (
    lambda x, eps, d: x * torch.rsqrt(x.pow(2).mean(d, keepdim=True) + eps),
    lambda x, eps, d: x / torch.sqrt((x * x).mean(dim=d, keepdim=True) + eps),
    lambda x, eps, d: x * (x.square().sum(d, True) / x.shape[d] + eps) ** -0.5,
    lambda x, eps, d: x.div(x.pow(2).mean(d, keepdim=True).add(eps).sqrt()),
    lambda x, eps, d: functional.rms_norm(x, x.shape[-1:], None, eps) if d == -1 else RMS[0](x, eps, d),
)
LAYER = (
    lambda x, eps, d: (x - x.mean(d, True)) * torch.rsqrt(x.var(d, correction=0, keepdim=True) + eps),
    lambda x, eps, d: (x - _moments(x, d)[0]) / (_moments(x, d)[1] + eps).sqrt(),
    lambda x, eps, d: (x - x.mean(d, True)) / ((x - x.mean(d, True)).pow(2).mean(d, True) + eps).pow(0.5),
    lambda x, eps, d: functional.layer_norm(x, x.shape[-1:], eps=eps) if d == -1 else LAYER[0](x, eps, d),
)
# Where a row is rounded to the input's type, if it has another.
CASTS = (
    lambda norm, x, row, apply: apply(row(x)),
    lambda norm, x, row, apply: apply(row(x.float())).to(x.dtype),
    lambda norm, x, row, apply: apply(row(x.float()).type_as(x)),
    lambda norm, x, row, apply: apply(row(x.to(torch.float32))).type_as(x),
)
EPS = (1e-5, 1e-6, 1e-8, 3.7e-4, 2.0**-20, 1e-12)


class Drawn(nn.Module):
    """A norm whose writing is in its class. `names`: of gain and bias, None where it has none, and of eps."""

    row: Any
    cast: Any
    names: tuple[Any, Any, str]
    size: int
    dim = -1
    centred = 0.0

    def __init__(self):
        super().__init__()
        for name, begin in zip(self.names[:2], (0.5, -0.5), strict=True):
            if name is not None:
                setattr(self, name, nn.Parameter(torch.rand(self.size) + begin))

    def apply_gain(self, row):
        gain, bias, _ = self.names
        shape = (-1, *[1] * (row.dim() - 2)) if self.dim == 1 else (-1,)
        if gain is not None:
            row = row * (getattr(self, gain).view(shape) + self.centred)
        return row if bias is None else row + getattr(self, bias).view(shape)

    def normalized(self, x):
        return self.row(x, getattr(self, self.names[2]), self.dim)

    def forward(self, x):
        return self.cast(x, self.normalized, self.apply_gain)


class Grouped(Drawn):
    groups = 4

    def normalized(self, x):
        y = self.row(x.reshape(x.shape[0], self.groups, -1), getattr(self, self.names[2]), -1)
        return y.reshape(x.shape)


class Frozen(Drawn):
    """A batch norm by statistics that stay."""

    def __init__(self):
        super().__init__()
        self.register_buffer("running_mean", torch.randn(self.size))
        self.register_buffer("running_var", torch.rand(self.size) + 0.5)

    def normalized(self, x):
        mean, var = (
            each.reshape(1, -1, *[1] * (x.dim() - 2)) for each in (self.running_mean, self.running_var)
        )
        return (x - mean) * (var + getattr(self, self.names[2])).rsqrt()


class Under(nn.LayerNorm):
    """A norm of PyTorch with a forward of its own."""

    names, dim = ("weight", "bias", "eps"), -1

    def __init__(self):
        super().__init__(self.size, eps=self.tiny)

    def forward(self, x):
        return super().forward(x)


def norm(seed: int) -> type[nn.Module]:
    """A class of norms, all of which a bundled spec computes. Every other is called one."""
    draw = random.Random(seed)
    kind = draw.choice((Drawn, Drawn, Drawn, Grouped, Frozen, Under))
    size, tiny = draw.choice((8, 12, 32)), draw.choice(EPS)
    if kind is Under:
        return type("UnderNorm", (Under,), {"size": size, "tiny": tiny})
    is_rms = kind is Drawn and draw.random() < 0.5
    gain = draw.choice(("weight", "gamma", "scale", "g", "a_2"))
    bias = None if is_rms else draw.choice(("bias", "beta", "b", None))
    rounds = CASTS if kind is Drawn else CASTS[:2]
    members = {
        "row": staticmethod(draw.choice(RMS if is_rms else LAYER[:3] if kind is Grouped else LAYER)),
        "cast": draw.choice(rounds),
        "names": (gain, bias, draw.choice(("eps", "epsilon", "variance_epsilon", "tiny"))),
        "size": size,
        "dim": 1 if kind in (Grouped, Frozen) or (not is_rms and draw.random() < 0.4) else -1,
        "centred": draw.choice((0.0, 1.0)) if kind is Drawn and bias is None else 0.0,
    }
    if members["dim"] == 1 and kind is Drawn:
        members["centred"] = 0.0
    # Eps is a number of the class, or an attribute of each module.
    name = members["names"][2]
    if draw.random() < 0.3:
        members[name] = tiny
    else:
        members["__init__"] = lambda self: (kind.__init__(self), setattr(self, name, tiny))[0]
    return type(f"{kind.__name__}{'Norm' if seed % 2 else ''}", (kind,), members)


def shape_of(cls: type[nn.Module], rank: int = 4) -> tuple[int, ...]:
    """That of an input."""
    shape = [3, 2, 5, 4][: rank - 1]
    shape.insert(1 if cls.dim == 1 else rank - 1, cls.size)
    return tuple(shape)
