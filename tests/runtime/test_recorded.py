"""Arrays that a framework records for its derivatives: refused by name, never computed with in silence."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import normgen
from tests.fakes.arrays import JaxTracer, Parameter
from tests.fakes.driver import FakeDriver
from tests.generated import generated
from tests.runtime.calling import tensor

ROOT = Path(__file__).parent.parent.parent
REFUSED = r"requires grad, and autograd does not record .*normgen\.torch.*\.detach\(\).*torch\.no_grad\(\)"


@pytest.fixture
def torch(streams: dict[int, int]) -> Any:
    return sys.modules["torch"]


@pytest.mark.parametrize("load", [normgen.load, generated])
def test_a_tensor_that_requires_a_gradient_is_refused_by_name(
    torch: Any, driver: FakeDriver, load: Callable[[str], Any]
) -> None:
    norm = load("rmsnorm")
    x, w, dy, rstd = tensor(6, 64), tensor(64), tensor(6, 64), tensor(6)
    trained, traced = tensor(64, kind=Parameter), JaxTracer()
    calls: list[tuple[str, Callable[[], Any]]] = [
        ("w", lambda: norm.forward(x, trained)),
        (r"out\['y'\]", lambda: norm.forward(x, w, out={"y": tensor(6, 64, kind=Parameter)})),
        ("dy", lambda: norm.backward(tensor(6, 64, kind=Parameter), x, w, rstd)),
    ]
    for _ in range(2):  # the first calls of their kind, and then calls like one before
        count = len(driver.launches)
        for name, call in calls:
            with pytest.raises(TypeError, match=f"^{name}: it {REFUSED}"):
                call()
        for call in (lambda: norm.forward(x, traced), lambda: norm.backward(dy, x, traced, rstd)):
            with pytest.raises(TypeError, match=r"^w: a traced JAX value has no data"):
                call()
        assert len(driver.launches) == count
        norm.forward(x, trained.detach())
        norm.backward(dy, x, w, rstd)
        torch.grad_enabled = False
        for _, call in calls:
            call()
        torch.grad_enabled = True
    assert driver.launches


def test_a_plan_refuses_it_too(torch: Any, driver: FakeDriver) -> None:
    norm = normgen.load("rmsnorm")
    x, w, trained = tensor(6, 64), tensor(64), tensor(64, kind=Parameter)
    with pytest.raises(TypeError, match=r"^x: a traced JAX value has no data"):
        norm.plan("forward", JaxTracer())
    with pytest.raises(TypeError, match=f"^w: it {REFUSED}"):
        norm.plan("forward", x, trained)
    plan = norm.plan("forward", x, w)
    plan(x, w)
    count = len(driver.launches)
    for call in (lambda: plan(x, trained), lambda: plan(x, w=trained)):
        with pytest.raises(TypeError, match=f"^w: it {REFUSED}"):
            call()
    assert len(driver.launches) == count
    # The mode is asked for only where a tensor requires a gradient.
    asked: list[int] = []
    torch.is_grad_enabled = lambda: bool(asked.append(1))
    plan(x, w)
    norm.forward(x, w)
    assert not asked
    plan(x, trained)
    assert asked and len(driver.launches) == count + 3


PROGRAM = """
import pytest, torch
import normgen
from examples.autograd import Tensor, apply
norm = normgen.load("rmsnorm")
x, w = torch.randn(6, 64), torch.nn.Parameter(torch.ones(64))
refused = "it requires grad"
for _ in range(2):
    with torch.no_grad():
        y = norm.forward(x, w).y
        with torch.enable_grad(), pytest.raises(TypeError, match="^w: " + refused):
            norm.forward(x, w)
    with torch.inference_mode():
        assert torch.equal(norm.forward(x, w).y, y)
    assert torch.equal(norm.forward(x, w.detach()).y, y) and not y.requires_grad
with pytest.raises(TypeError, match="^x: " + refused):  # of a network, not a leaf
    norm.forward(torch.nn.Linear(64, 64)(x), w.detach())

class Function(torch.autograd.Function):
    @staticmethod
    def forward(context, x, w):
        made = norm.forward(x, w)
        context.save_for_backward(x, w, made.rstd)
        return made.y

    @staticmethod
    def backward(context, dy):
        x, w, rstd = context.saved_tensors
        return tuple(norm.backward(dy, x, w, rstd))

x.requires_grad_()
Function.apply(x, w).sum().backward()
want = torch.autograd.grad(torch.nn.functional.rms_norm(x, (64,), w, 1e-6).sum(), (x, w))
for leaf, gradient in zip((x, w), want):
    torch.testing.assert_close(leaf.grad, gradient)
with pytest.raises(TypeError, match=refused):  # a second derivative would be wrong
    torch.autograd.grad(Function.apply(x, w).sum(), x, create_graph=True)
with pytest.raises(TypeError, match=refused):
    apply(norm, x, Tensor(w.detach().numpy(), requires_grad=True))
with pytest.raises(TypeError, match="autograd does not record"):
    Tensor(w, requires_grad=True)
"""


def test_pytorch_itself() -> None:
    """In a process of its own: it starts threads, and stays imported."""
    if find_spec("torch") is None:
        pytest.skip("torch is not installed")
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
