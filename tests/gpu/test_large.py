"""Tensors of more than 2^31 elements, and rows further apart than that.

Some rows are looked at, against float64; cotangents of the others are zero, so that gradients of params come
from these alone. Batches are one block repeated, whose statistics are those of the block.
"""

from __future__ import annotations

import gc

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
calls = pytest.importorskip("tests.gpu.calls")

from normgen.verify.cases import DTYPE_SETS  # noqa: E402
from tests.gpu.chains import BF16  # noqa: E402
from tests.gpu.judge import check  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
GIB = 1 << 30


@pytest.fixture(autouse=True)
def _memory(request):
    """Skip what the device has no room for, by name, and leave nothing behind."""
    needed = request.node.callspec.params.get("gib", 24) if hasattr(request.node, "callspec") else 24
    gc.collect()
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    if free < needed * GIB:
        pytest.skip(f"{free // GIB} GiB of the device are free, {needed} needed")


def _held(call, x, params, dy, rows):
    """Make a call on all of x, and hold what it makes of some of its rows to their bounds."""
    whole = _whole(call, {"x": x.requires_grad_(), **params}, dy)
    part = calls.adopt(call, {"x": x.detach()[rows], **params}, {"dy": dy[rows]})
    part.outputs = {name: each.detach()[rows] for name, each in whole.outputs.items()}
    part.gradients = {**whole.gradients, "x": whole.gradients["x"][rows]}
    check(part)


def _whole(call, operands, dy):
    return calls.differentiate(calls.forward(calls.Made(call, operands, {"dy": dy}, {})))


def _params(call, kind):
    names = [t.name for t in call.norm.operands if t.role == "param"]
    shape = {t.name: call.case.memory_shape(t) for t in call.norm.operands}
    return {
        name: torch.rand(shape[name], device="cuda", dtype=kind).add_(0.5).requires_grad_() for name in names
    }


@pytest.mark.parametrize(("name", "gib"), [("rmsnorm", 24), ("layernorm", 24), ("softmax", 24)])
def test_rows_of_more_than_2_to_the_31_elements(name, gib):
    count, width = (1 << 17) + 5, 1 << 14
    rows = torch.tensor([0, 1, (1 << 16) - 1, 1 << 16, (1 << 17) - 1, 1 << 17, count - 1], device="cuda")
    call = calls.Call(name, (), len(rows), width, BF16, sizes=(("...", len(rows)),))
    x = torch.randn(count, width, device="cuda", dtype=torch.bfloat16)
    dy = torch.zeros_like(x)
    dy[rows] = torch.randn(len(rows), width, device="cuda", dtype=torch.bfloat16)
    _held(call, x, _params(call, torch.bfloat16), dy, rows)


@pytest.mark.parametrize(("name", "gib"), [("groupnorm", 24), ("instancenorm", 24)])
def test_images_of_more_than_2_to_the_31_elements(name, gib):
    count, channels, places = 2050, 16, 1 << 16
    rows = torch.tensor([0, 1023, 2047, 2048, count - 1], device="cuda")
    attrs = (("groups", 4),) if name == "groupnorm" else ()
    own = channels // 4 if attrs else channels
    call = calls.Call(name, attrs, sizes=(("B", len(rows)), ("C", own), ("...", places)), dtypes=BF16)
    shape = (channels, *call.case.rest)
    x = torch.randn(count, *shape, device="cuda", dtype=torch.bfloat16)
    dy = torch.zeros_like(x)
    dy[rows] = torch.randn(len(rows), *shape, device="cuda", dtype=torch.bfloat16)
    _held(call, x, _params(call, torch.bfloat16), dy, rows)


@pytest.mark.parametrize("name", ["rmsnorm", "layernorm", "softmax"])
def test_rows_that_lie_further_apart_than_2_to_the_30(name):
    """The last begins beyond 2^32 elements."""
    count, width, stride = 5, 64, (1 << 30) + 8
    memory = torch.empty((count - 1) * stride + width, device="cuda", dtype=torch.bfloat16)
    x = memory.as_strided((count, width), (stride, 1))
    with torch.no_grad():
        x.copy_(torch.randn(count, width))
    call = calls.Call(name, (), count, width, BF16, sizes=(("...", count),))
    dy = torch.randn(count, width, device="cuda", dtype=torch.bfloat16)
    rows = torch.arange(count, device="cuda")
    _held(call, x.detach(), _params(call, torch.bfloat16), dy, rows)


# Samples, channels, places along a side, repetitions, and how many times its bound an error may be. The bound
# of a sum is that of a thousand summands per thread, and errors grow with the root of their number: with few
# channels a thread has more than ten thousand.
BATCHES = {"many channels": (2, 1 << 14, 8, 1 << 11, 1), "few channels": (2, 16, 32, 1 << 17, 4)}


@pytest.mark.parametrize(("channels_last", "gib"), [(False, 56), (True, 56)], ids=["NCHW", "channels_last"])
@pytest.mark.parametrize("batch", BATCHES)
def test_a_batch_of_2_to_the_32_elements(batch, channels_last, gib):
    samples, channels, side, times, allowed = BATCHES[batch]
    format = torch.channels_last if channels_last else torch.contiguous_format
    sizes = (("B", samples), ("C", channels), ("...", side * side))
    states = ("running_mean", "running_var")
    call = calls.Call("batchnorm", (("training", True),), sizes=sizes, dtypes=DTYPE_SETS[2], absent=states)
    x, dy = (torch.randn(samples, channels, side, side, device="cuda", dtype=torch.bfloat16) for _ in "xy")
    # Each time with its places in another turn, so that no thread adds up the same numbers again and again.
    turns = torch.randint(side * side, (times, 1), device="cuda")
    turns[0] = turns[-1] = 0
    order = (torch.arange(side * side, device="cuda") + turns) % (side * side)
    many, many_dy = (_turned(each, order).contiguous(memory_format=format) for each in (x, dy))
    params = {**_params(call, torch.float32), **dict.fromkeys(states)}
    whole = _whole(call, {"x": many.requires_grad_(), **params}, many_dy)
    for rows in (slice(0, samples), slice(-samples, None)):
        part = calls.adopt(call, {"x": x, **params}, {"dy": dy})
        part.outputs = {"y": whole.outputs["y"].detach()[rows]}
        part.gradients = {name: each / times for name, each in whole.gradients.items() if name != "x"}
        part.gradients["x"] = whole.gradients["x"][rows]
        check(part, allowed)


def _turned(block, order):
    """Images repeated along the batch, the places of each time in an order of their own."""
    samples, channels, *places = block.shape
    made = block.new_empty(len(order), samples, channels, order.shape[1])
    flat = block.flatten(2)
    for start in range(0, len(order), 1 << 8):  # a gather of all would take more memory than the result
        made[start : start + (1 << 8)] = flat[:, :, order[start : start + (1 << 8)]].permute(2, 0, 1, 3)
    return made.view(-1, channels, *places)


def test_channels_that_begin_beyond_2_to_the_31():
    """A view of a larger tensor."""
    memory = torch.empty((1 << 31) + 4096 * 8, device="cuda", dtype=torch.bfloat16)
    x = memory[1 << 31 :].view(8, 4096)
    with torch.no_grad():
        x.copy_(torch.randn(8, 4096))
    call = calls.Call("rmsnorm", (), 8, 4096, BF16, sizes=(("...", 8),))
    dy = torch.randn(8, 4096, device="cuda", dtype=torch.bfloat16)
    _held(call, x.detach(), _params(call, torch.bfloat16), dy, torch.arange(8, device="cuda"))
