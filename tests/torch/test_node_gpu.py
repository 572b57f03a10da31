"""Known calls in C++ on a GPU: nothing of a forward and its backward runs in Python, on any stream."""

from __future__ import annotations

import pytest

from normgen.devices.executors import context_of
from normgen.torch.native import EXTENSION
from normgen.torch.steps import Step
from tests.torch.norms import every_case, gradients, nt, same, torch

DEVICE = "cuda"
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.fixture
def python(monkeypatch):
    """The names of the steps that run in Python."""
    if not context_of(("cuda", 0)).launch_address:
        pytest.skip("this launcher keeps its functions to itself")
    if EXTENSION.build() is None:
        pytest.skip(EXTENSION.fault)
    names = []
    run = Step.run

    def noted(self, *arguments):
        names.append(self.name)
        return run(self, *arguments)

    monkeypatch.setattr(Step, "run", noted)
    return names


def _twice_known(norm, operands, cotangent, python):
    """The gradients of a known call. What has run in Python since it is known is in `python`."""
    for _ in range(3):  # the first has it in Python, the second in C++ but for its scratch memory
        python.clear()
        found = torch.autograd.grad(norm(*operands), operands, cotangent)
    return found


@every_case
def test_known_calls_and_their_backwards_need_no_python(case, python):
    operands = [each.detach().to(DEVICE).requires_grad_() for each in case.draw()]
    cotangent = torch.randn_like(operands[0])
    want = torch.autograd.grad(case.theirs(*operands), operands, cotangent)
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            found = _twice_known(case.mine, operands, cotangent, python)
        torch.cuda.synchronize()
        assert python == []
        same(found, want)


def test_long_rows_of_bf16_need_no_python(python):
    x = torch.randn(64, 4096, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    w = torch.ones(4096, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    _twice_known(nt.load("rmsnorm"), (x, w), torch.randn_like(x), python)
    assert python == []


def test_batch_norms_in_training_need_no_python(python):
    mine, theirs = (home.BatchNorm2d(8, device=DEVICE) for home in (nt.nn, torch.nn))
    x = torch.randn(4, 8, 6, 6, device=DEVICE, requires_grad=True)
    for _ in range(3):
        python.clear()
        found = gradients(lambda x, *_: mine(x), [x, mine.weight, mine.bias])
    assert python == []
    for _ in range(3):
        want = gradients(lambda x, *_: theirs(x), [x, theirs.weight, theirs.bias])
    same(found, want, 1e-4)
    same(dict(mine.state_dict()), dict(theirs.state_dict()))


def test_a_captured_call_in_c_plus_plus_is_replayed(python):
    norm = nt.load("rmsnorm")
    x = torch.randn(64, 4096, device=DEVICE, requires_grad=True)
    w, cotangent = torch.rand(4096, device=DEVICE, requires_grad=True), torch.randn(64, 4096, device=DEVICE)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        _twice_known(norm, (x, w), cotangent, python)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        found = torch.autograd.grad(norm(x, w), (x, w), cotangent)
    with torch.no_grad():
        x.copy_(torch.randn_like(x))
    graph.replay()
    same(found, torch.autograd.grad(norm(x, w), (x, w), cotangent), 1e-4)
