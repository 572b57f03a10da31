"""Modules beside what `patch` makes of them."""

from __future__ import annotations

import copy

from tests.torch.norms import nt, torch


def _outcome(module, x):
    """The result of two calls in a row in training and of one in evaluation, gradients of the first, and what
    the module has then."""
    x = x.clone().requires_grad_()
    y = module.train()(module(x))
    wanted = (x, *module.parameters())
    gradients = torch.autograd.grad(y.float().sin().sum(), wanted)
    return y, gradients, module.eval()(x), dict(module.state_dict())


def agrees(module, x):
    """The report of patching a module, which computes and keeps what it did before."""
    other = copy.deepcopy(module)
    report = nt.patch(module)
    want = _outcome(other, x)
    torch.testing.assert_close(_outcome(module, x), want, atol=1e-5, rtol=1e-4)
    assert repr(module) == repr(other)
    return report
