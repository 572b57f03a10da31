"""Jagged nested tensors along `...`: as the rows of their parts, one by one."""

from __future__ import annotations

import pytest

from tests.torch.norms import nt, same, torch

LENGTHS = (3, 1, 5)
NORMS = {
    "rmsnorm": (8,),
    "layernorm": (8,),
    "softmax": None,
    "add_rmsnorm": (8,),
}
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def _jagged(*behind, dtype=torch.float32, like=None):
    values = torch.randn(sum(LENGTHS), *behind).to(dtype)
    offsets = torch.tensor([0, *torch.tensor(LENGTHS).cumsum(0)]) if like is None else like.offsets()
    return torch.nested.nested_tensor_from_jagged(values, offsets=offsets).detach().requires_grad_()


def _operands(name, behind, dtype):
    x = _jagged(*behind, 8, dtype=dtype)
    residual = [_jagged(*behind, 8, dtype=dtype, like=x)] if name.startswith("add") else []
    gain = NORMS[name]
    gains = [] if gain is None else [torch.randn(gain, dtype=dtype, requires_grad=True)]
    return [x, *residual, *gains]


def _outputs(made):
    return list(made) if isinstance(made, tuple) else [made]


def _rows(tensor):
    return tensor.values() if tensor.is_nested else tensor


def _outcome(function, operands):
    """The rows of the results, and the gradients of a sum of their sines by all operands."""
    made = _outputs(function(*operands))
    loss = sum(_rows(each).float().sin().sum() for each in made)
    return [_rows(each) for each in made], [_rows(g) for g in torch.autograd.grad(loss, operands)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("behind", [(), (2,)], ids=["rows", "heads"])
@pytest.mark.parametrize("name", NORMS)
def test_results_and_gradients_are_those_of_the_rows(name, behind, dtype):
    norm, operands = nt.load(name), _operands(name, behind, dtype)
    plain = [_rows(each).detach().requires_grad_() for each in operands]
    same(_outcome(norm, operands), _outcome(norm, plain), 1e-6)
    for made in _outputs(norm(*operands)):
        assert made.is_nested and made.shape == operands[0].shape and made.dtype is dtype


def test_what_is_saved_and_what_modules_return_are_jagged_too():
    x = _jagged(8)
    y, rstd = nt.load("rmsnorm").with_saved(x)
    assert y.shape == x.shape and rstd.shape == x.shape[:2]
    same(nt.nn.LayerNorm(8)(x).values(), torch.nn.LayerNorm(8)(x.values()))
    h, y = nt.nn.AddRMSNorm(8)(x, x)
    assert h.shape == y.shape == x.shape
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8))
    want = model(x)
    nt.patch(model)
    same(model(x).values(), want.values())


def test_they_are_compiled_whole():
    norm, (x, w) = nt.load("rmsnorm"), _operands("rmsnorm", (), torch.float64)
    compiled = torch.compile(lambda x, w: norm(x.sin(), w).values(), fullgraph=True, backend="aot_eager")
    plain = x.values().detach().requires_grad_()
    same(compiled(x, w), norm(plain.sin(), w))


def test_what_does_not_fit_is_said():
    add, group = nt.load("add_rmsnorm"), nt.load("groupnorm", groups=2)
    x = _jagged(8)
    with pytest.raises(RuntimeError, match=r"^x is a jagged tensor but residual is not"):
        add(x, torch.randn(9, 8))
    with pytest.raises(RuntimeError, match=r"^residual and x have different offsets"):
        add(x, torch.nested.nested_tensor([torch.randn(4, 8), torch.randn(5, 8)], layout=torch.jagged))
    for norm, given in ((group, x), (nt.load("rmsnorm"), x.transpose(1, 2))):
        with pytest.raises(NotImplementedError, match=r"^x is a jagged tensor, which kernels support only "):
            norm(given)
    with pytest.raises(NotImplementedError, match="pass its parts one by one"):
        nt.load("rmsnorm")(torch.nested.nested_tensor([torch.randn(4, 8), torch.randn(5, 8)]))
