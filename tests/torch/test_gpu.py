"""Norms in PyTorch on a GPU: graphs, streams, devices, threads, and all that surrounds a call there."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from tests.threads import at_once
from tests.torch.norms import CASES, every_case, functional, gradients, nt, same, torch

DEVICE = "cuda"
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
CYCLES = 50_000_000  # that a stream sleeps before what it is to be waited for


def _draw(case, device=DEVICE):
    return [each.detach().to(device).requires_grad_() for each in case.draw()]


@contextmanager
def _deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextmanager
def _unsynchronized():
    """Raise where the host waits for the device."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def _warm(run):
    """Run on a stream of its own, as PyTorch asks before a capture."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)


# --------------------------------------------------------------------------- results


@pytest.mark.parametrize("dtype", (torch.float32, torch.float16, torch.bfloat16), ids=str)
@every_case
def test_results_are_those_of_pytorch(case, dtype):
    operands = [each.detach().to(dtype).requires_grad_() for each in _draw(case)]
    exact = [each.detach().double().requires_grad_() for each in operands]
    tolerance = 8 * torch.finfo(dtype).eps
    same(case.mine(*operands).double(), case.theirs(*exact), tolerance)
    found = [each.double() for each in gradients(case.mine, operands)]
    same(found, list(gradients(case.theirs, exact)), 4 * tolerance)


@pytest.mark.parametrize("shape", ((2, 4, 6, 5), (2, 4, 3, 2, 5)), ids=("images", "volumes"))
def test_images_whose_channels_lie_innermost(shape):
    (case,) = (case for case in CASES if case.name == "groupnorm")
    format = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    x = torch.randn(shape, device=DEVICE).to(memory_format=format).requires_grad_()
    operands = [x, *_draw(case)[1:]]
    got, want = case.mine(*operands), case.theirs(*operands)
    same(got, want)
    found, expected = gradients(case.mine, operands), gradients(case.theirs, operands)
    same(found, expected)
    assert all(each.is_contiguous(memory_format=format) for each in (got, found[0]))


def test_float64_has_one_clear_error():
    with pytest.raises(RuntimeError, match="float64 operands, which kernels do not take"):
        nt.load("rmsnorm")(torch.randn(3, 8, device=DEVICE, dtype=torch.float64))


@every_case
def test_deterministic_algorithms_give_the_same_bits(case):
    operands = _draw(case)
    with _deterministic():
        first, second = (gradients(case.mine, operands) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("name", ("RMSNorm", "LayerNorm"))
@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16), ids=str)
def test_autocast_gives_the_element_types_of_pytorch(name, dtype):
    mine, theirs = (getattr(home, name)(16, device=DEVICE) for home in (nt.nn, torch.nn))
    linear, x = torch.nn.Linear(8, 16, device=DEVICE), torch.randn(3, 8, device=DEVICE)
    with torch.autocast(DEVICE, dtype):
        got, want = (norm(linear(x)) for norm in (mine, theirs))
    assert got.dtype == want.dtype
    same(got, want, 8 * torch.finfo(dtype).eps)
    got.float().sum().backward()
    assert linear.weight.grad.dtype == torch.float32


# --------------------------------------------------------------------------- graphs


@every_case
def test_a_captured_step_is_replayed_on_new_data(case):
    norm, operands = case.mine, _draw(case)
    _warm(lambda: gradients(norm, operands))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = norm(*operands)
        found = torch.autograd.grad(y.sin().sum(), operands)
    for seed in (1, 2):
        torch.manual_seed(seed)
        with torch.no_grad():
            for operand in operands:
                operand.copy_(torch.randn_like(operand))
        graph.replay()
        same(y, case.theirs(*operands))
        same(found, gradients(case.theirs, operands))


def test_states_are_updated_by_every_replay():
    norm, x = nt.load("batchnorm"), torch.randn(4, 6, 5, device=DEVICE)
    mean, var = torch.zeros(6, device=DEVICE), torch.ones(6, device=DEVICE)
    _warm(lambda: norm(x, running_mean=mean, running_var=var))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        norm(x, running_mean=mean, running_var=var)
    mean.zero_()
    var.fill_(1)
    their_mean, their_var = mean.clone(), var.clone()
    for _ in range(3):
        graph.replay()
        functional.batch_norm(x, their_mean, their_var, training=True)
    same((mean, var), (their_mean, their_var))


def test_graphed_callables_train():
    norm = nt.nn.LayerNorm(8, device=DEVICE)
    theirs = torch.nn.LayerNorm(8, device=DEVICE)
    graphed = torch.cuda.make_graphed_callables(norm, (torch.randn(3, 8, device=DEVICE, requires_grad=True),))
    for _ in range(2):
        x = torch.randn(3, 8, device=DEVICE, requires_grad=True)
        same(gradients(graphed, [x]), gradients(theirs, [x]))


@every_case
def test_reduce_overhead_compiles_and_replays(case):
    torch._dynamo.reset()
    norm = case.mine
    compiled = torch.compile(lambda *o: norm(*o).cos(), fullgraph=True, mode="reduce-overhead")
    for seed in range(4):  # warm-up, capture, replays
        torch.manual_seed(seed)
        operands = [torch.randn_like(each).requires_grad_() for each in _draw(case)]
        torch.compiler.cudagraph_mark_step_begin()
        found = [each.clone() for each in gradients(compiled, operands)]
        same(found, list(gradients(lambda *o: case.theirs(*o).cos(), operands)))


def test_calls_do_not_wait_for_the_device():
    norm = nt.load("rmsnorm")
    operands = [torch.randn(3, 8, device=DEVICE).requires_grad_(), torch.rand(8, device=DEVICE)]
    gradients(norm, operands[:1])
    with _unsynchronized():
        gradients(lambda x: norm(x, operands[1]), operands[:1])
        gradients(lambda x: norm(x, operands[1]), operands[:1])


# --------------------------------------------------------------------------- streams, devices, threads


@every_case
def test_work_of_a_side_stream_is_in_its_order(case):
    operands = _draw(case)
    want_y, want = case.theirs(*operands), gradients(case.theirs, operands)
    gradients(case.mine, operands)
    stream = torch.cuda.Stream()
    late = [torch.zeros_like(each).requires_grad_() for each in operands]
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(CYCLES)  # operands are there only after it
        with torch.no_grad():
            for target, source in zip(late, operands, strict=True):
                target.copy_(source)
        y, found = case.mine(*late), gradients(case.mine, late)
    torch.cuda.current_stream().wait_stream(stream)
    same(y, want_y)
    same(found, want)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one device")
@every_case
def test_calls_run_where_their_tensors_are(case):
    for index in (1, 0, 1):  # while the current device is the first
        operands = _draw(case, f"{DEVICE}:{index}")
        y = case.mine(*operands)
        assert y.device.index == index
        same(y, case.theirs(*operands))
        same(gradients(case.mine, operands), gradients(case.theirs, operands))
    with pytest.raises(RuntimeError, match="is on cuda:0 but w is on cuda:1"):
        first, second = _draw(case)[0], _draw(case, f"{DEVICE}:1")
        case.mine(first, *second[1:])


@every_case
def test_threads_do_not_disturb_one_another(case):
    operands = _draw(case)
    want = gradients(case.theirs, operands)
    torch.cuda.synchronize()

    def work():
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                found = gradients(case.mine, operands)
            torch.cuda.current_stream().synchronize()
        same(found, want)

    at_once(*[work] * 4)
