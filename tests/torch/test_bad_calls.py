"""Calls that cannot be: PyTorch's types of exceptions, in one line that names the tensors."""

from __future__ import annotations

import numpy as np
import pytest

from tests.torch.norms import functional, nt, same, torch

RMS, DYT, BATCH, GROUP = (
    nt.load("rmsnorm"), nt.load("dyt"), nt.load("batchnorm"), nt.load("groupnorm", groups=2)
)  # fmt: skip
X, W = torch.randn(3, 8), torch.ones(8)

ARGUMENTS = {
    "missing": (lambda: RMS(), "rmsnorm() needs x"),
    "missing among others": (lambda: DYT(X), "dyt() needs alpha"),
    "None where a tensor is needed": (lambda: RMS(None), "rmsnorm() needs x"),
    "unknown": (lambda: RMS(X, gain=W), "rmsnorm() got an unknown argument 'gain'; it takes x, w, eps"),
    "misspelt": (lambda: RMS(X, epz=1), "rmsnorm() got an unknown argument 'epz'; did you mean eps?"),
    "twice": (lambda: RMS(X, W, w=W), "rmsnorm() got w twice, by position and by name"),
    "too many": (lambda: RMS(X, W, W), "rmsnorm() takes 2 tensors (x, w) but got 3"),
    "number": (lambda: RMS(X, 1.0), "rmsnorm() takes tensors, but w is of type float"),
    "number for a 0-d tensor": (lambda: DYT(X, 0.5), "dyt() takes tensors, but alpha is of type float"),
    "list": (lambda: RMS([1.0]), "rmsnorm() takes tensors, but x is of type list"),
    "array": (lambda: RMS(X.numpy()), "rmsnorm() takes tensors, but x is of type ndarray"),
    "text": (lambda: RMS(X, eps="a"), "eps must be a number but is a str"),
    "None for a number": (lambda: RMS(X, eps=None), "eps must be a number but is a NoneType"),
    "tensor for a number": (lambda: RMS(X, eps=W), "eps must be a number but is a Tensor"),
    "fixed": (
        lambda: GROUP(torch.randn(2, 4, 5), groups=4),
        "groups was fixed to 2 when groupnorm was loaded: load it again",
    ),
}

TENSORS = {
    "shape": (lambda: RMS(X, torch.ones(7)), "D is 8 in x[..., D] but 7 in w[D]"),
    "shape in float64": (lambda: RMS(X.double(), torch.ones(7)), "D is 8 in x[..., D] but 7 in w[D]"),
    "rank": (lambda: RMS(X, W[:, None]), "w[D] needs 1 dimension, but the array has shape (8, 1)"),
    "scalar": (lambda: RMS(W[0]), "x[..., D] needs at least 1 dimension, but the array has shape ()"),
    "group": (
        lambda: GROUP(torch.randn(2, 3, 4)),
        "(G C) is 3 in x[B, (G C), ...], not a multiple of G = 2",
    ),
    "device": (lambda: RMS(X, W.to("meta")), "x is on cpu but w is on meta: move them to one device"),
    "device first": (lambda: RMS(X.to("meta"), W), "x is on meta but w is on cpu: move them to one device"),
    "state": (
        lambda: BATCH(X, running_mean=torch.zeros(8).bfloat16(), running_var=W.clone()),
        "running_mean[C] must be f32 (the spec says so) but is bf16; cast it: running_mean.to(torch.float32)",
    ),
    "strided state": (
        lambda: BATCH(X, running_mean=torch.zeros(1).expand(8), running_var=W.clone()),
        "state running_mean is updated in place, so it must be contiguous: pass a contiguous array",
    ),
    "differentiated state": (
        lambda: BATCH(X, running_mean=torch.zeros(8, requires_grad=True), running_var=W.clone()),
        "running_mean is a state of batchnorm and cannot require grad: pass running_mean.detach()",
    ),
}

KINDS = {
    "integer": (lambda: X.int(), "torch.int32"),
    "bool": (lambda: X > 0, "torch.bool"),
    "complex": (lambda: X.to(torch.complex64).requires_grad_(), "torch.complex64"),
    "quantised": (lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.qint8), "torch.qint8"),
    "sparse": (lambda: X.to_sparse().requires_grad_(), "a torch.sparse_coo tensor"),
    "nested": (lambda: torch.nested.nested_tensor([X, X]), "a nested tensor"),
}


CALLS = {name: (TypeError, *call) for name, call in ARGUMENTS.items()}
CALLS |= {name: (RuntimeError, *call) for name, call in TENSORS.items()}


@pytest.mark.parametrize(("fault", "call", "message"), CALLS.values(), ids=CALLS)
def test_calls_that_cannot_be(fault, call, message):
    with pytest.raises(fault) as caught:
        call()
    assert str(caught.value) == message


@pytest.mark.parametrize(("make", "text"), KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("other", [W, W.double()], ids=["f32", "f64"])
@pytest.mark.filterwarnings("ignore")  # PyTorch's own, of prototypes
def test_kinds_of_tensors_that_no_kernel_takes(make, text, other):
    with pytest.raises(NotImplementedError) as caught:  # a RuntimeError, as PyTorch's own functions raise
        RMS(make(), other)
    assert str(caught.value).startswith(f"x is {text}, which kernels do not support: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_out_of_range(dtype):
    norm = nt.load("rmsnorm_quantized_row")
    for floor in (0.0, False):
        with pytest.raises(ValueError, match=rf"^floor must be > 0 but is {floor:.1f}$"):
            norm(X.to(dtype), floor=floor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_of_every_kind_that_pytorch_takes(dtype):
    """One element of a tensor, and bools, which are 0 and 1."""
    x = X.to(dtype)
    for eps in (0.5, 1, True, False, np.float32(0.5), np.True_, torch.tensor(0.5), torch.tensor(True)):
        want = functional.rms_norm(x, (8,), eps=eps)
        for norm in (RMS, RMS, RMS):  # the last time, a call that is known
            same(norm(x, eps=eps), want)
        same(nt.load("rmsnorm", eps=eps)(x), want)
    compiled = torch.compile(lambda x: RMS(x, eps=True), backend="eager", fullgraph=True)
    same(compiled(x), functional.rms_norm(x, (8,), eps=True))


def test_wrong_tensors_are_refused_while_compiling_too():
    # Lengths as numbers, whatever other tests have compiled before.
    compiled = torch.compile(RMS, fullgraph=True, backend="eager", dynamic=False)
    with pytest.raises(RuntimeError, match=r"D is 8 in x\[..., D\] but 7 in w\[D\]"):
        compiled(X, torch.ones(7))


def test_what_does_not_require_a_gradient_has_pytorchs_own_error():
    norm = nt.load("rmsnorm_quantized_static")
    made = norm(X.clone().requires_grad_(), torch.tensor(2.0))
    with pytest.raises(RuntimeError, match="does not require grad and does not have a grad_fn"):
        made.amax.backward()
