"""Norms beside the functions of PyTorch that they are, and operands for both: what these tests go through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")
nt = pytest.importorskip("normgen.torch")
functional = torch.nn.functional


class Case(NamedTuple):
    """A norm with what PyTorch calls it. `shapes`: of its operands, the first being x."""

    name: str
    attrs: dict[str, Any]
    theirs: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def mine(self) -> Any:
        return nt.load(self.name, **self.attrs)

    def draw(self) -> list[Any]:
        return [drawn(*shape) for shape in self.shapes]


def drawn(*shape: int, **options: Any) -> Any:
    return torch.randn(shape, requires_grad=True, **options)


def rms(x, w=None, eps=1e-6):
    return functional.rms_norm(x, (x.shape[-1],), w, eps)


def layer(x, w=None, b=None, eps=1e-5):
    return functional.layer_norm(x, (x.shape[-1],), w, b, eps)


def group(x, w=None, b=None, eps=1e-5):
    return functional.group_norm(x, 2, w, b, eps)


def batch(x, w=None, b=None, mean=None, var=None, momentum=0.1):
    return functional.batch_norm(x, mean, var, w, b, training=True, momentum=momentum)


CASES = (
    Case("rmsnorm", {}, rms, ((3, 2, 8), (8,))),
    Case("layernorm", {}, layer, ((3, 2, 8), (8,), (8,))),
    Case("groupnorm", {"groups": 2}, group, ((3, 4, 5), (4,), (4,))),
)
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def same(got: Any, want: Any, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance)


def gradients(function: Callable[..., Any], operands: list[Any]) -> Any:
    """Of something that is not linear in the output."""
    return torch.autograd.grad(function(*operands).sin().sum(), operands)
