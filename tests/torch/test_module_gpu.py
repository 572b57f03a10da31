"""Drop-ins on a GPU, which need not be there: results are of the types of PyTorch. No tensor has values."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
nt = pytest.importorskip("normgen.torch")
fake_tensor = pytest.importorskip("torch._subclasses.fake_tensor")

from tests.torch.test_autocast import on_gpu as on_gpu  # noqa: E402

CASES = [
    ("RMSNorm", ((2, 3),), (4, 2, 3)),
    ("RMSNorm", (6,), (4, 6)),
    ("LayerNorm", (6,), (4, 6)),
    ("GroupNorm", (2, 6), (4, 6, 5)),
    ("BatchNorm1d", (6,), (4, 6)),
    ("InstanceNorm1d", (6,), (4, 6, 5)),
    ("LocalResponseNorm", (3,), (4, 6, 5)),
    ("Softmax", (0,), (4, 6)),
    ("LogSoftmax", (-1,), (4, 6)),
    ("Softmax2d", (), (4, 6, 3, 2)),
]


@pytest.fixture
def float64():
    """float64 as the type of new tensors."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def _types(name, arguments, shape, dtype):
    """Element type, shape and device of what each of the two modules gives."""
    with fake_tensor.FakeTensorMode(), torch.device("cuda"):
        x = torch.empty(shape, dtype=dtype)
        made = [getattr(home, name)(*arguments)(x) for home in (nt.nn, torch.nn)]
    return [(each.dtype, each.shape, each.device) for each in made]


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize(("name", "arguments", "shape"), CASES, ids=str)
def test_results_under_autocast_are_of_the_types_of_pytorch(name, arguments, shape, dtype, on_gpu):
    mine, theirs = _types(name, arguments, shape, dtype)
    assert mine == theirs


@pytest.mark.parametrize(("name", "arguments", "shape"), CASES, ids=str)
def test_what_has_no_kernels_is_left_to_pytorch(name, arguments, shape, float64):
    mine, theirs = _types(name, arguments, shape, torch.float64)
    assert mine == theirs
