"""Memory after thousands of calls: what it was before them."""

from __future__ import annotations

import gc
import time

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
chains = pytest.importorskip("tests.gpu.chains")

from tests.gpu.calls import Call, place  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
WARM, CALLS, DIFFERENT, LOOKS = 100, 2000, 700, 3
KINDS = (
    Call("batchnorm", (("training", True),), sizes=(("B", 4), ("C", 8), ("...", 64)), dtypes=chains.MIXED),
    Call("rmsnorm", (), 64, 256, chains.BF16),
    Call("add_rmsnorm", (), 16, 256, chains.F32),
    Call("softmax", (), 16, 256, chains.F32),
    Call("groupnorm", (("groups", 2),), sizes=(("B", 2), ("C", 4), ("...", 64)), dtypes=chains.F32),
)
every_kind = pytest.mark.parametrize("call", KINDS, ids=str)


def _count():
    """Bytes of tensors on the device, and objects that Python's collector knows.

    The least of several looks: a thread of autograd may let go of the last call a little after that returned.
    """
    torch.cuda.synchronize()
    found = []
    for _ in range(LOOKS):
        time.sleep(0.02)
        gc.collect()
        found.append((torch.cuda.memory_allocated(), len(gc.get_objects())))
    return tuple(map(min, zip(*found, strict=True)))


def _held_after(step):
    """Make many calls; nothing is held that was not before."""
    for turn in range(WARM):
        step(turn)
    memory, objects = _count()
    for turn in range(CALLS):
        step(turn)
    memory_after, objects_after = _count()
    assert memory_after <= memory, f"{memory_after - memory} bytes more after {CALLS} calls"
    assert objects_after - objects < CALLS / 10, f"{objects_after - objects} objects more after {CALLS} calls"


def _ways(call):
    """A call in each of the ways that it can be made and given up."""
    made = place(call, "cuda")
    tensors = list(made.tensors.values())
    plain = [None if each is None else each.detach() for each in tensors]
    wrt = [each for each in tensors if each is not None and each.requires_grad]
    function = call.norm.function

    def outputs(operands):
        found = function(*operands, **call.named)
        return found if isinstance(found, tuple) else (found,)

    def whole(turn):
        torch.autograd.grad(sum(each.float().sum() for each in outputs(tensors)), wrt)

    def forgotten(turn):
        outputs(tensors)  # no backward comes

    def without(turn):
        with torch.inference_mode() if turn % 2 else torch.no_grad():
            outputs(plain)

    def twice(turn):
        y = outputs(tensors)[0].float().sum()
        first = torch.autograd.grad(y, wrt, create_graph=True, allow_unused=True)
        if turn % 20 == 0:  # it takes longer
            torch.autograd.grad(first[0].float().sin().sum(), wrt, allow_unused=True)

    def refused(turn):
        with pytest.raises((TypeError, ValueError, RuntimeError)):
            function(*tensors, unknown=1.0)
        with pytest.raises((TypeError, ValueError, RuntimeError)):
            function(tensors[0].sum(), *tensors[1:])

    return {"whole": whole, "forgotten": forgotten, "without": without, "twice": twice, "refused": refused}


@pytest.mark.parametrize("way", ("whole", "forgotten", "without", "twice", "refused"))
@every_kind
def test_calls_leave_nothing_behind(call, way):
    _held_after(_ways(call)[way])


def test_calls_that_all_differ_leave_no_tensors_behind():
    """What is known of calls is bounded, and holds no tensor."""
    norm = KINDS[1].norm.function
    x, w = torch.randn(DIFFERENT, 256, device="cuda"), torch.rand(256, device="cuda", requires_grad=True)
    norm(x, w).sum().backward()
    memory, _ = _count()
    for rows in range(1, DIFFERENT):
        torch.autograd.grad(norm(x[:rows], w).sum(), w)
    assert _count()[0] - memory <= 1 << 20, (
        "scratch memory grows with the longest call, not with their number"
    )


def test_graphs_that_are_given_up_give_back_their_memory():
    chain, stream, memory = chains.Chain(KINDS[0]), torch.cuda.Stream(), []
    for _ in range(12):
        made, graph = chains.captured(lambda: chain.run(2), stream=stream)
        graph.replay()
        torch.cuda.synchronize()
        del made, graph
        memory.append(_count()[0])
    assert memory[-1] == memory[3], memory
