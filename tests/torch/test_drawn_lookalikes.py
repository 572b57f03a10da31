"""Norms of drawn writings are taken, and look-alikes of them compute and keep what they did before."""

from __future__ import annotations

import copy
import random

import pytest

from tests.torch import deviations
from tests.torch.deviations import DEVIATIONS, ReadsFlagOfClass, ReadsOptions
from tests.torch.drawn_norms import norm, shape_of
from tests.torch.norms import nt, torch

NORMS = 40  # classes that are drawn


def _filled(module):
    """With parameters of either sign."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
    return module


def _outcome(module, x):
    """Results and gradients, in either mode."""
    x = x.detach().clone().requires_grad_(x.requires_grad)
    y = module(x)
    if not x.requires_grad:
        return [y.detach()]
    slopes = torch.autograd.grad(1e5 * (y.float().sin() + y.float()).sum(), (x, *module.parameters()))
    return [y.detach(), *(1e-5 * slope for slope in slopes)]


def _close(got, want):
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-3, equal_nan=True)


@pytest.mark.parametrize("seed", range(NORMS))
def test_norms_are_taken_however_they_are_written(seed):
    module = _filled(norm(seed)())
    other, report = copy.deepcopy(module), nt.patch(module)
    assert len(report.replaced) == 1 and not report.left, str(report)
    for rank in (2, 3, 4) if module.dim == -1 else (3, 4):
        for x in (torch.randn(shape_of(type(other), rank)), 1e-3 * torch.randn(shape_of(type(other), rank))):
            _close(_outcome(module, x.requires_grad_()), _outcome(other, x))


def _kept(module, x):
    """What there is beside the results of some calls."""
    deviations.KEPT.clear()
    x, state, counted = x.clone(), torch.get_rng_state(), getattr(module, "calls", 0)
    seen = len(getattr(module, "seen", ()))
    for mode in (True, False):
        for given in (x, x[..., 0] if module.dim == 1 else x[:, 0]):
            module.train(mode)(given)
    own = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    found = {**own, "calls": getattr(module, "calls", 0) - counted, "drawn": state - torch.get_rng_state()}
    return {**found, "x": x, "all": len(deviations.KEPT), "listed": len(getattr(module, "seen", ())) - seen}


def _differ(got, want):
    try:
        _close(got, want)
    except (AssertionError, TypeError, ValueError):
        return True
    return False


@pytest.mark.parametrize("place", [0, 1, pytest.param(2, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", DEVIATIONS)
def test_what_only_looks_like_a_norm_computes_and_keeps_what_it_did(name, place, monkeypatch):
    for home, flag in ((deviations, "FLAG"), (ReadsFlagOfClass, "shared"), (ReadsOptions.options, "flag")):
        monkeypatch.setattr(home, flag, getattr(home, flag))
    mixin, show = DEVIATIONS[name]
    cls = norm(random.Random(name).sample(range(NORMS), 3)[place])
    module = _filled(type(name if place else f"{name}Norm", (mixin, cls), {})())
    plain, other = cls(), copy.deepcopy(module)
    plain.load_state_dict(module.state_dict())
    random_state, report = torch.get_rng_state(), nt.patch(module)
    assert torch.equal(random_state, torch.get_rng_state())
    assert len(report.replaced) + len(report.left) == 1
    x = torch.randn(shape_of(cls))
    for each in (other, module, plain):
        shown = x if show is None else show(each, x)
    outcome = _kept if show is None else _outcome
    want = outcome(other, shown)
    _close(outcome(module, shown), want)
    assert _differ(outcome(plain, shown), want), "what makes it a look-alike is not seen"
