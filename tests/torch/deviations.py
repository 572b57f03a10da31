"""What makes a look-alike of a norm: each shows for some input, state or mode alone."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from tests.torch.norms import torch


class Deviation(NamedTuple):
    """`mixin`: a class whose methods come before those of a norm. `show`: changes a module and an input so
    that results differ from the norm's; None where what the module keeps differs."""

    mixin: type
    show: Any


DEVIATIONS: dict[str, Deviation] = {}
KEPT: list[Any] = []
FLAG = False


def deviation(show):
    def add(mixin):
        DEVIATIONS[mixin.__name__] = Deviation(mixin, show)
        return mixin

    return add


def _scaled(scale):
    return lambda module, x: x * scale


def _with(value):
    def show(module, x):
        x = x.clone()
        x.view(-1)[0] = value
        return x

    return show


def _set(name, value):
    def show(module, x):
        setattr(module, name, value)
        return x

    return show


def _gained(scale):
    """With a gain, or another parameter, of this scale."""

    def show(module, x):
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.mul_(scale)
        return x

    return show


@deviation(None)
class KeepsResult:
    def forward(self, x):
        self.last = super().forward(x)
        return self.last


@deviation(None)
class KeepsByDict:
    def forward(self, x):
        self.__dict__["last"] = x.detach().mean()
        return super().forward(x)


@deviation(None)
class KeepsInTraining:
    def forward(self, x):
        if not self.training:
            object.__setattr__(self, "last", x)
        return super().forward(x)


@deviation(None)
class KeepsForThreeDimensions:
    """Statistics for a `reverse`."""

    def forward(self, x):
        if x.dim() == 3:
            self.mean = x.detach().mean(-1)
        return super().forward(x)


@deviation(None)
class Counts:
    calls = 0

    def forward(self, x):
        type(self).calls += 1
        return super().forward(x)


@deviation(None)
class KeepsInList:
    seen: list[Any] = []

    def forward(self, x):
        self.seen.append(x.shape)
        return super().forward(x)


@deviation(None)
class KeepsInModule:
    def forward(self, x):
        KEPT.append(x.shape)
        return super().forward(x)


@deviation(None)
class ForgetsName:
    def forward(self, x):
        self.first = True
        del self.first
        self.count = getattr(self, "count", 0) + 1
        return super().forward(x)


@deviation(_gained(1e3))
class ClampsResult:
    limit = 10.0

    def forward(self, x):
        return super().forward(x).clamp(-self.limit, self.limit)


@deviation(_gained(1e14))
class ClampsLargeResult(ClampsResult):
    limit = 1e12


@deviation(_scaled(1e9))
class ClampsInput:
    def forward(self, x):
        return super().forward(x.clamp(-1e6, 1e6))


@deviation(_scaled(1e9))
class ClampsFiniteInput:
    def forward(self, x):
        return super().forward(torch.where(x.isinf(), x, x.clamp(-1e6, 1e6)))


@deviation(_with(float("nan")))
class HidesNan:
    def forward(self, x):
        return torch.nan_to_num(super().forward(x))


@deviation(_with(float("inf")))
class HidesInfinity:
    def forward(self, x):
        return super().forward(x.masked_fill(x.isinf(), 0.0))


@deviation(_with(float("-inf")))
class LooksForInfinity:
    def forward(self, x):
        return super().forward(x) if bool(x.isfinite().all()) else torch.zeros_like(x)


@deviation(_scaled(3e16))
class LooksForLarge:
    def forward(self, x):
        return super().forward(x) * (1.0 if x.abs().max() < 1e16 else 0.5)


@deviation(_scaled(0.0))
class FillsZeros:
    def forward(self, x):
        return torch.where((x == 0).all(), 1.0, super().forward(x))


@deviation(_scaled(1e-5))
class DoublesSmall:
    def forward(self, x):
        return super().forward(torch.where(x.abs() < 1e-4, x.sign() * 1e-4, x))


@deviation(lambda module, x: _set(module.names[2], 0.5)(module, x) if isinstance(module, ChangesEps) else x)
class ChangesEps:
    """The norm itself, whose eps is another later."""


@deviation(lambda module, x: x.transpose(0, -1).contiguous().transpose(0, -1))
class LooksAtStrides:
    def forward(self, x):
        return super().forward(x) * (1.0 if x.is_contiguous() else 2.0)


@deviation(lambda module, x: x[:1])
class SparesOne:
    def forward(self, x):
        return super().forward(x) if x.shape[0] > 1 else x


@deviation(lambda module, x: x.repeat(100, *[1] * (x.dim() - 1)))
class LooksAtRows:
    def forward(self, x):
        return super().forward(x) if x.shape[0] < 200 else super().forward(x) + 1.0


def _alike(module, x):
    shape = list(x.shape)
    shape[1 if module.dim == -1 else 2] = module.size
    return torch.randn(shape)


@deviation(_alike)
class FindsChannels:
    """By their number, wherever it comes first."""

    def forward(self, x):
        place = 2 if self.dim == 1 else 1
        if x.dim() > 2 and x.shape[place] == self.size:
            return super().forward(x.transpose(place, self.dim)).transpose(place, self.dim)
        return super().forward(x)


@deviation(_alike)
class FindsLength:
    def forward(self, x):
        return super().forward(x) + (1.0 if list(x.shape).count(self.size) > 1 else 0.0)


@deviation(_set("flag", True))
class ReadsFlag:
    flag = False

    def forward(self, x):
        return super().forward(x) + (1.0 if self.flag else 0.0)


@deviation(_set("flag", 2.0))
class ReadsNumber(ReadsFlag):
    flag = 0.0


@deviation(_set("flag", torch.ones(())))
class AsksForFlag:
    def forward(self, x):
        return super().forward(x) + getattr(self, "flag", 0.0)


@deviation(_set("flag", True))
class LooksForFlag:
    def forward(self, x):
        return super().forward(x) + hasattr(self, "flag")


@deviation(lambda module, x: _set("shared", 1.0)(ReadsFlagOfClass, x))
class ReadsFlagOfClass:
    shared = 0.0

    def forward(self, x):
        return super().forward(x) + self.shared


@deviation(lambda module, x: _set("flag", 1.0)(ReadsOptions.options, x))
class ReadsOptions:
    class Options:
        flag = 0.0

    options = Options()

    def forward(self, x):
        return super().forward(x) + self.options.flag


@deviation(lambda module, x: _set("FLAG", True)(sys.modules[__name__], x))
class ReadsFlagOfModule:
    def forward(self, x):
        return super().forward(x) + (1.0 if FLAG else 0.0)


@deviation(_set("helped", lambda y: 2 * y))
class CallsMethod:
    def forward(self, x):
        return self.helped(super().forward(x))

    def helped(self, y):
        return y


@deviation(_set("extra", torch.nn.Parameter(torch.ones(()))))
class AddsWhatIsThere:
    def __init__(self):
        super().__init__()
        self.register_parameter("extra", None)

    def forward(self, x):
        y = super().forward(x)
        return y if self.extra is None else y + self.extra


@deviation(lambda module, x: (module.eval(), x)[1])
class DiffersInEvaluation:
    def forward(self, x):
        return super().forward(x) * (1.0 if self.training else 2.0)


@deviation(lambda module, x: x.bfloat16())
class DiffersInBfloat16:
    def forward(self, x):
        return super().forward(x) * (2.0 if x.dtype is torch.bfloat16 else 1.0)


@deviation(lambda module, x: x[..., 0] if module.dim == 1 else x[0])
class DiffersInThreeDimensions:
    def forward(self, x):
        return super().forward(x) + (1.0 if x.dim() == 3 else 0.0)


@deviation(lambda module, x: x.requires_grad_())
class DiffersInGradientMode:
    def forward(self, x):
        y = super().forward(x)
        return y + 1.0 if x.requires_grad else y


def _negated(module, x):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(-parameter.abs())
    return x


@deviation(_negated)
class LooksAtSigns:
    def forward(self, x):
        negative = [bool((each < 0).all()) for each in self.parameters()]
        return super().forward(x).relu() if all(negative) else super().forward(x)


@deviation(None)
class ChangesInput:
    def forward(self, x):
        y = super().forward(x)
        x.data.add_(1.0)
        return y


@deviation(None)
class Draws:
    def forward(self, x):
        return super().forward(x) + (1.0 if float(torch.rand(())) < 1e-6 else 0.0)


class ClipsGradient:
    """Another gradient where that of the result is large."""

    def forward(self, x):
        y = super().forward(x)
        if y.requires_grad:
            y.register_hook(lambda slope: slope.clamp(-1e3, 1e3))
        return y


DEVIATIONS["ClipsGradient"] = Deviation(ClipsGradient, lambda module, x: x.requires_grad_())
