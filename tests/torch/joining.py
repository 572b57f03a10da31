"""Modules beside their copies with norms joined to what follows them."""

from __future__ import annotations

import copy

from tests.torch.norms import nt, torch


def images(dtype=torch.float64, size=5):
    return torch.randn(3, 4, size, size, dtype=dtype)


def fused(module, **options):
    """A module as it is, its copy with what can be joined, and the report of that."""
    other = copy.deepcopy(module)
    return module, other, nt.patch(other, fuse=True, **options)


def outcome(module, x, run=None):
    """The results of two calls in training and of one in evaluation, gradients of the second, and what the
    module has then. `run`: calls the module."""
    run, x = module if run is None else run, x.clone().requires_grad_()
    module.train()
    first, y = run(x), run(x)
    gradients = torch.autograd.grad(y.sin().sum(), (x, *module.parameters()), allow_unused=True)
    module.eval()
    return first, y, gradients, run(x), dict(module.state_dict())


def agree(ours, theirs, x, tolerance=1e-9):
    want = outcome(theirs, x)
    torch.testing.assert_close(outcome(ours, x), want, atol=tolerance, rtol=tolerance)
