"""Modules whose parameters are missing when `patch` looks: empty (as in ZeRO-3), lazy, on the meta device, or
None. They are replaced or left, never an error, and compute the same later."""

from __future__ import annotations

import copy

import pytest

from tests.torch.norms import nt, torch
from tests.torch.other_norms import EarlyNorm
from tests.torch.test_overriding import Mixed
from tests.torch.test_redirecting import BatchNormAct, LayerNormAct
from tests.torch.unnamed_norms import LN, SIZE, Activated, Frozen, MyRMS, Scale

nn = torch.nn
MODULES = {
    "LayerNorm": lambda: nn.LayerNorm(SIZE),
    "RMSNorm": lambda: nn.RMSNorm(SIZE, 1e-6),
    "GroupNorm": lambda: nn.GroupNorm(3, SIZE),
    "BatchNorm2d": lambda: nn.BatchNorm2d(SIZE),
    "InstanceNorm2d": lambda: nn.InstanceNorm2d(SIZE, affine=True, track_running_stats=True),
    "SyncBatchNorm": lambda: nn.SyncBatchNorm(SIZE).eval(),
    "subclass": lambda: Mixed(SIZE),
    "named look-alike": lambda: EarlyNorm(SIZE),
    "look-alike": MyRMS,
    "look-alike with a bias": LN,
    "frozen": Frozen,
    "redirected": lambda: LayerNormAct(SIZE),
    "redirected with statistics": lambda: BatchNormAct(SIZE),
    "redirected and unnamed": Activated,
    "no norm": Scale,
}


def _meta(each):
    there = each.detach().to("meta")
    return nn.Parameter(there) if isinstance(each, nn.Parameter) else there


def _emptied(each):
    return nn.Parameter(torch.empty(0)) if isinstance(each, nn.Parameter) else torch.empty(0)


def _lazy(each):
    return nn.UninitializedParameter() if isinstance(each, nn.Parameter) else nn.UninitializedBuffer()


KINDS = {"empty": _emptied, "lazy": _lazy, "meta": _meta, "None": lambda _: None}


def _homes(module):
    return [module._parameters, module._buffers]


@pytest.mark.parametrize("which", ["all", "parameters", "first"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)
def test_modules_without_their_parameters_are_replaced_or_left(make, kind, which):
    module = make()
    other = copy.deepcopy(module)
    own = [dict(home) for home in _homes(module)]
    chosen = [name for home in own[: 1 + (which == "all")] for name in home if home[name] is not None]
    for home in _homes(module):
        for name in chosen[:1] if which == "first" else chosen:
            if name in home:
                home[name] = KINDS[kind](home[name])
    cls = type(module)
    report = nt.patch(nn.Sequential(module), fuse=True)
    assert [each.name for each in (*report.replaced, *report.left)] == ["0"]
    assert report.replaced or type(module) is cls
    for home, before in zip(_homes(module), own, strict=True):
        home.update(before)
    x = torch.randn(2, SIZE, 3, SIZE)
    torch.testing.assert_close(module(x), other(x), atol=1e-5, rtol=1e-4)
