"""Functions over the samples of PyTorch's own operators, forward and backward, beside these.

What a spec lacks is said around it, as a user would: several dimensions are one, another dimension moves to
the end, no eps is that of the element type. `_outside` says which samples are left out, and why.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
op_db = pytest.importorskip("torch.testing._internal.common_methods_invocations").op_db

import normgen.torch as nt  # noqa: E402

TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-4}


def _flat(tensor, count):
    return None if tensor is None else tensor.flatten(-count)


def layer_norm(x, shape, weight=None, bias=None, eps=1e-5):
    count = len(shape)
    return nt.load("layernorm")(_flat(x, count), _flat(weight, count), _flat(bias, count), eps=eps).view_as(x)


def rms_norm(x, shape, weight=None, eps=None):
    count, eps = len(shape), torch.finfo(x.dtype).eps if eps is None else eps
    return nt.load("rmsnorm")(_flat(x, count), _flat(weight, count), eps=eps).view_as(x)


def group_norm(x, groups, weight=None, bias=None, eps=1e-5):
    return nt.load("groupnorm", groups=groups)(x, weight, bias, eps=eps)


def batch_norm(x, mean, var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
    norm = nt.load("batchnorm", training=training)
    return norm(x, weight, bias, running_mean=mean, running_var=var, momentum=momentum, eps=eps)


def instance_norm(x, running_mean=None, running_var=None, weight=None, bias=None, **named):
    """Channels of samples as channels of one sample, as PyTorch does it."""
    eps, count = named.get("eps", 1e-5), x.shape[0]
    if running_mean is None:
        return nt.load("instancenorm")(x, weight, bias, eps=eps)
    states = [state.repeat(count) for state in (running_mean, running_var)]
    params = [None if param is None else param.repeat(count) for param in (weight, bias)]
    y = batch_norm(x.flatten(0, 1)[None], *states, *params, True, named.get("momentum", 0.1), eps)
    for state, repeated in zip((running_mean, running_var), states, strict=True):
        state.copy_(repeated.view(count, -1).mean(0))
    return y.view_as(x)


def local_response_norm(x, size, alpha=1e-4, beta=0.75, k=1.0):
    return nt.load("local_response_norm", n=size)(x, alpha=alpha, beta=beta, k=k)


def softmax(x, dim, dtype=None):
    return nt.load("softmax")(x.to(dtype or x.dtype).movedim(dim, -1)).movedim(-1, dim)


def log_softmax(x, dim, dtype=None):
    return nt.load("log_softmax")(x.to(dtype or x.dtype).movedim(dim, -1)).movedim(-1, dim)


FUNCTIONS = {
    "nn.functional.layer_norm": layer_norm,
    "nn.functional.rms_norm": rms_norm,
    "nn.functional.group_norm": group_norm,
    "nn.functional.batch_norm": batch_norm,
    "nn.functional.instance_norm": instance_norm,
    "nn.functional.local_response_norm": local_response_norm,
    "softmax": softmax,
    "log_softmax": log_softmax,
}


def _outside(name, sample):
    """Why a sample is none of the spec's, "" where it is."""
    if name.endswith("softmax") and sample.input.ndim == 0:
        return "a scalar has no axis"
    if name.endswith("batch_norm") and sample.input.ndim < 2:
        return "no channels"
    return ""


def _samples():
    for op in op_db:
        if op.name in FUNCTIONS:
            for dtype in TOLERANCES:
                name = f"{op.name.rpartition('.')[2]}-{op.variant_test_name}".rstrip("-")
                yield pytest.param(op, dtype, id=f"{name}-{dtype}".replace("torch.", ""))


def _copied(value):
    """A copy for one of two calls: states are written."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone().requires_grad_(value.requires_grad)


def _called(function, sample):
    """The output, the gradients of what requires one, and all tensors as the call left them."""
    x, args = _copied(sample.input), [_copied(each) for each in sample.args]
    named = {key: _copied(each) for key, each in sample.kwargs.items()}
    y = function(x, *args, **named)
    tensors = [each for each in (x, *args, *named.values()) if isinstance(each, torch.Tensor)]
    wanted = [each for each in tensors if each.requires_grad]
    gradients = torch.autograd.grad(y.sin().sum(), wanted, materialize_grads=True)
    return [y, *gradients, *tensors]


@pytest.mark.parametrize(("op", "dtype"), list(_samples()))
def test_samples_have_the_results_of_pytorch(op, dtype):
    compared = 0
    for sample in op.sample_inputs("cpu", dtype, requires_grad=True):
        if _outside(op.name, sample):
            continue
        mine, theirs = (_called(function, sample) for function in (FUNCTIONS[op.name], op.op))
        for got, want in zip(mine, theirs, strict=True):
            torch.testing.assert_close(got, want, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])
        compared += 1
    assert compared


def test_few_samples_are_left_out():
    left = {
        (op.name, tuple(sample.input.shape), reason)
        for op in op_db
        if op.name in FUNCTIONS
        for sample in op.sample_inputs("cpu", torch.float32)
        if (reason := _outside(op.name, sample))
    }
    assert left == {
        ("softmax", (), "a scalar has no axis"),
        ("log_softmax", (), "a scalar has no axis"),
        ("nn.functional.batch_norm", (0,), "no channels"),
    }
