"""Threads that come to a norm at once, for the first time: all get one function, and what it gives alone."""

from __future__ import annotations

import sys
from itertools import count

import pytest

import normgen
from normgen import bundled
from tests.threads import at_once
from tests.torch.norms import nt, same, torch

THREADS = 8
NUMBERS = count()


@pytest.fixture(autouse=True)
def _in_turn():
    """Threads take turns often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def _text(name="layernorm"):
    """A spec that no other test has loaded."""
    return f"{bundled.read(name).text}\n# loaded by threads, {next(NUMBERS)}\n"


def _module(text):
    found = type(sys)("made")
    found.NORM = normgen.load(text)
    return found


SOURCES = {"text": lambda text: text, "norm": normgen.load, "module": _module}


@pytest.mark.parametrize("kind", SOURCES)
def test_threads_that_load_a_norm_at_once_get_one_function(kind):
    for _ in range(4):
        text = _text()
        found = at_once(*[lambda text=text: nt.load(SOURCES[kind](text))] * THREADS)
        assert len({id(each) for each in found}) == 1


def test_first_calls_at_once_give_what_one_alone_gives():
    x, w, b = torch.randn(3, 6), torch.rand(6), torch.rand(6)

    def curvature(norm):
        leaf = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(norm(leaf, w, b).sin().sum(), leaf, create_graph=True)
        (second,) = torch.autograd.grad(first.sin().sum(), leaf)
        return first.detach(), second

    want = curvature(nt.load("layernorm"))
    for _ in range(2):
        text = _text()
        for found in at_once(*[lambda text=text: curvature(nt.load(text))] * THREADS):
            same(found, want)


def test_modules_that_are_called_at_once_share_a_function():
    text, x = _text(), torch.randn(3, 6)
    modules = [nt.nn.from_spec(text, sizes={"D": 6}) for _ in range(THREADS)]
    want = nt.load("layernorm")(x, torch.ones(6), torch.zeros(6))
    for found in at_once(*[lambda module=module: module(x) for module in modules]):
        same(found, want)


def test_a_derivative_is_made_once_whoever_asks(monkeypatch):
    """PyTorch knows one operator of a name. That of the forward is made where a norm is loaded."""
    made, derivative = [], nt.levels.Level.derivative
    monkeypatch.setattr(
        nt.levels.Level, "derivative", lambda *asked: made.append(asked) or derivative(*asked)
    )
    for _ in range(4):
        backward = nt.load(_text())._step.derive().step
        made.clear()
        found = at_once(*[backward.derive] * THREADS)
        assert len({id(each) for each in found}) == len(made) == 1
