"""Norms in PyTorch on a GPU: graphs, streams, devices, threads, known calls in C++, and all that surrounds a
call there."""

from __future__ import annotations

import pytest

from normgen.torch.native import EXTENSION
from tests.threads import at_once
from tests.torch.norms import CASES, batch, every_case, gradients, nt, same, torch

DEVICE = "cuda"
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
CYCLES = 50_000_000  # that a stream sleeps before what it is to be waited for


def _draw(case, device=DEVICE):
    return [each.detach().to(device).requires_grad_() for each in case.draw()]


def _captured(run):
    """What a run makes, and the graph that makes it again."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # as PyTorch asks before a capture
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        made = run()
    return made, graph


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


@every_case
def test_deterministic_algorithms_give_the_same_bits(case, request):
    request.addfinalizer(lambda: torch.use_deterministic_algorithms(False))
    torch.use_deterministic_algorithms(True)
    operands = _draw(case)
    first, second = (gradients(case.mine, operands) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("shape", ((2, 4, 6, 5), (2, 4, 3, 2, 5)), ids=("images", "volumes"))
def test_images_whose_channels_lie_innermost(shape):
    case, format = CASES[2], torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    x = torch.randn(shape, device=DEVICE).to(memory_format=format).requires_grad_()
    operands = [x, *_draw(case)[1:]]
    got, found = case.mine(*operands), gradients(case.mine, operands)
    same((got, *found), (case.theirs(*operands), *gradients(case.theirs, operands)))
    assert all(each.is_contiguous(memory_format=format) for each in (got, found[0]))


def test_float64_has_one_clear_error():
    with pytest.raises(RuntimeError, match="float64 is supported on the CPU only"):
        nt.load("rmsnorm")(torch.randn(3, 8, device=DEVICE, dtype=torch.float64))


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
    made, graph = _captured(lambda: (norm(*operands), *gradients(norm, operands)))
    for _ in range(2):
        with torch.no_grad():
            for operand in operands:
                operand.copy_(torch.randn_like(operand))
        graph.replay()
        same(made, (case.theirs(*operands), *gradients(case.theirs, operands)))


def test_states_are_updated_by_every_replay():
    norm, x = nt.load("batchnorm"), torch.randn(4, 6, 5, device=DEVICE)
    mine, theirs = ([torch.zeros(6, device=DEVICE), torch.ones(6, device=DEVICE)] for _ in range(2))
    _, graph = _captured(lambda: norm(x, None, None, *mine))
    for state, start in zip(mine, theirs, strict=True):
        state.copy_(start)
    for _ in range(3):
        graph.replay()
        batch(x, None, None, *theirs)
    same(mine, theirs)


def test_graphed_callables_train():
    mine, theirs = (home.LayerNorm(8, device=DEVICE) for home in (nt.nn, torch.nn))
    graphed = torch.cuda.make_graphed_callables(mine, (torch.randn(3, 8, device=DEVICE, requires_grad=True),))
    for _ in range(2):
        x = torch.randn(3, 8, device=DEVICE, requires_grad=True)
        same(gradients(graphed, [x]), gradients(theirs, [x]))


@every_case
def test_reduce_overhead_compiles_and_replays(case):
    norm = case.mine
    compiled = torch.compile(lambda *o: norm(*o).cos(), fullgraph=True, mode="reduce-overhead")
    for _ in range(4):  # warm-up, capture, replays
        operands = _draw(case)
        torch.compiler.cudagraph_mark_step_begin()
        found = [each.clone() for each in gradients(compiled, operands)]
        same(found, list(gradients(lambda *o: case.theirs(*o).cos(), operands)))


def test_calls_do_not_wait_for_the_device(request):
    norm = nt.load("rmsnorm")
    operands = [torch.randn(3, 8, device=DEVICE).requires_grad_(), torch.rand(8, device=DEVICE)]
    gradients(norm, operands[:1])
    request.addfinalizer(lambda: torch.cuda.set_sync_debug_mode("default"))
    torch.cuda.set_sync_debug_mode("error")  # where the host waits
    for _ in range(2):
        gradients(lambda x: norm(x, operands[1]), operands[:1])


# --------------------------------------------------------------------------- streams, devices, threads


@every_case
def test_work_of_a_side_stream_is_in_its_order(case):
    operands = _draw(case)
    want = case.theirs(*operands), *gradients(case.theirs, operands)
    gradients(case.mine, operands)
    stream = torch.cuda.Stream()
    late = [torch.zeros_like(each).requires_grad_() for each in operands]
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(CYCLES)  # operands are there only after it
        with torch.no_grad():
            for target, source in zip(late, operands, strict=True):
                target.copy_(source)
        found = case.mine(*late), *gradients(case.mine, late)
    torch.cuda.current_stream().wait_stream(stream)
    same(found, want)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one device")
@every_case
def test_calls_run_where_their_tensors_are(case):
    """On the device of its tensors, and in the order of the stream that is current there."""
    drawn = [_draw(case, f"{DEVICE}:{index}") for index in range(2)]
    wanted = [(case.theirs(*each), *gradients(case.theirs, each)) for each in drawn]
    streams = [torch.cuda.Stream(index) for index in range(2)]
    for index in range(2):
        torch.cuda.synchronize(index)
    with torch.cuda.stream(streams[1]), torch.cuda.stream(streams[0]):
        for index in (1, 0, 1, 0, 1):  # while the current device is the first
            late = [torch.zeros_like(each).requires_grad_() for each in drawn[index]]
            with torch.cuda.device(index), torch.no_grad():
                assert torch.cuda.current_stream() == streams[index]
                torch.cuda._sleep(CYCLES)  # operands are there only after it
                for target, source in zip(late, drawn[index], strict=True):
                    target.copy_(source)
            assert torch.cuda.current_device() == 0
            found = case.mine(*late), *gradients(case.mine, late)
            assert found[0].device.index == index
            same(found, wanted[index])
    with pytest.raises(RuntimeError, match="is on cuda:0 but w is on cuda:1"):
        first, second = _draw(case)[0], _draw(case, f"{DEVICE}:1")
        case.mine(first, *second[1:])


@every_case
def test_calls_that_differ_in_their_device_alone_are_other_calls(case):
    """The host and every GPU, in both orders."""
    norm, operands = case.mine, case.draw()
    devices = ["cpu", *[f"cuda:{n}" for n in range(torch.cuda.device_count())]]
    want = gradients(case.theirs, operands)
    for order in (devices, devices[::-1]):
        for device in (*[each for each in order for _ in range(3)], *order):
            given = [each.detach().to(device).requires_grad_() for each in operands]
            y, found = norm(*given), gradients(norm, given)
            assert {each.device for each in (y, *found)} == {torch.device(device)}
            same([each.cpu() for each in found], list(want), 1e-4)


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


# --------------------------------------------------------------------------- known calls in C++


@pytest.fixture
def python(runs):
    """The steps that run in Python."""
    if EXTENSION.build() is None:
        pytest.skip(EXTENSION.fault)
    return runs


def _known(run, python):
    """What the last of some calls makes, which does without Python."""
    for _ in range(3):  # the first is in Python, the second in C++ but for its scratch memory
        python.clear()
        found = run()
    assert python == []
    return found


@every_case
def test_known_calls_and_their_backwards_need_no_python(case, python):
    operands = _draw(case)
    want = gradients(case.theirs, operands)
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            found = _known(lambda: gradients(case.mine, operands), python)
        torch.cuda.synchronize()
        same(found, want)


def test_batch_norms_in_training_need_no_python(python):
    mine, theirs = (home.BatchNorm2d(8, device=DEVICE) for home in (nt.nn, torch.nn))
    x = torch.randn(4, 8, 6, 6, device=DEVICE, requires_grad=True)
    found = _known(lambda: gradients(lambda x, *_: mine(x), [x, mine.weight, mine.bias]), python)
    for _ in range(3):
        want = gradients(lambda x, *_: theirs(x), [x, theirs.weight, theirs.bias])
    same(found, want, 1e-4)
    same(dict(mine.state_dict()), dict(theirs.state_dict()))


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_a_captured_call_of_long_rows_is_replayed(dtype, python):
    norm, about = nt.load("rmsnorm"), {"device": DEVICE, "dtype": dtype}
    x, w = torch.randn(64, 4096, **about, requires_grad=True), torch.rand(4096, **about, requires_grad=True)
    cotangent = torch.randn(64, 4096, **about)

    def step():
        return torch.autograd.grad(norm(x, w), (x, w), cotangent)

    _known(step, python)
    found, graph = _captured(step)
    with torch.no_grad():
        x.copy_(torch.randn_like(x))
    graph.replay()
    same(found, step(), 1e-4 if dtype is torch.float32 else 0.02)
