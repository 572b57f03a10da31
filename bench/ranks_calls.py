"""The calls of `ranks.py`: norms whose axes are spread over processes, by normgen and by others.

Every process draws the same whole tensors and takes its runs of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from by_hand import (
    added,
    cross_entropy_by_statistics,
    gathered,
    layer_norm,
    layer_norm_by_statistics,
    own,
    rms_norm,
    rms_norm_by_statistics,
    softmax_by_statistics,
)
from ranks_steps import (
    Case,
    Function,
    Results,
    Steps,
    all_reduce_alone,
    drawn,
    own_leaf,
    steps_of,
    sum_alone,
    truth,
)
from torch import Tensor
from torch.nn import functional

import normgen.torch as nt

TYPES = {"bf16": torch.bfloat16, "f32": torch.float32}
_load: Any = nt.load
# That of examples/ranks.py, whose loss is float32 whatever the logits are.
CROSS_ENTROPY = """norm soft_cross_entropy
input  logits[..., V]
input  target[..., V]
save   top[...]   = stop(max[V](logits))
save   total[...] = sum[V](exp(logits - top))
output loss[...]: f32 = -sum[V](target * (logits - top - log(total)))
grad   loss wrt logits
"""


@dataclass(frozen=True)
class Call:
    """`sizes`: rows and the whole length of the spread axis; of images those of one rank, N, C, H and W.
    Images of bf16 are channels last."""

    name: str
    sizes: tuple[int, ...]
    dtype: str = "bf16"

    @property
    def text(self) -> str:
        """As it is printed."""
        return f"{self.name} {'x'.join(map(str, self.sizes))} {self.dtype}"


HIDDEN, VOCABULARY = 8192, 128_256
LARGE, SMALL = (128, 256, 56, 56), (16, 64, 112, 112)
# The most telling first: what comes last may not be reached.
CALLS = (
    Call("rmsnorm", (16, HIDDEN)),
    Call("rmsnorm", (4096, HIDDEN)),
    Call("add_rmsnorm", (16, HIDDEN)),
    Call("sync_batchnorm", LARGE, "f32"),
    Call("cross_entropy", (1024, VOCABULARY)),
    Call("rmsnorm", (256, HIDDEN)),
    Call("rmsnorm", (16384, HIDDEN)),
    Call("sync_batchnorm", LARGE, "bf16"),
    Call("add_rmsnorm", (256, HIDDEN)),
    Call("layernorm", (4096, HIDDEN)),
    Call("cross_entropy", (16, VOCABULARY)),
    Call("add_rmsnorm", (1, HIDDEN)),
    Call("add_rmsnorm", (4096, HIDDEN)),
    Call("layernorm", (16, HIDDEN)),
    Call("sync_batchnorm", SMALL, "f32"),
    Call("sync_batchnorm", SMALL, "bf16"),
    Call("softmax", (16, VOCABULARY)),
    Call("softmax", (1024, VOCABULARY)),
)
_FEW = {"rows": 4, "length": 64, "images": (2, 8, 4, 4)}


def small(calls: Sequence[Call]) -> tuple[Call, ...]:
    """The same with tiny sizes, each once."""
    images, rows, length = _FEW["images"], _FEW["rows"], _FEW["length"]
    cut = [
        replace(each, sizes=images if len(each.sizes) == 4 else (min(each.sizes[0], rows), length))
        for each in calls
    ]
    return tuple(dict.fromkeys(cut))


def case(call: Call, device: torch.device) -> Case:
    """A call on this rank's device."""
    torch.manual_seed(0)
    return _CASES[call.name](call, device)


# ------------------------------------------------------------------------------------------- the calls


@dataclass(frozen=True)
class _Row:
    """A norm of rows by hand: of whole rows, by statistics of runs, and the floats per row of these."""

    whole: Function
    statistics: Function
    params: int
    floats: int


_ROWS = {
    "rmsnorm": _Row(rms_norm, rms_norm_by_statistics, 1, 1),
    "layernorm": _Row(layer_norm, layer_norm_by_statistics, 2, 2),
}


def _rows(call: Call, device: torch.device) -> Case:
    """Hidden units are spread."""
    norm, dtype = _ROWS[call.name], TYPES[call.dtype]
    shapes = (call.sizes, *[call.sizes[1:]] * norm.params)
    whole, dy = [drawn(shape, dtype, device) for shape in shapes], drawn(call.sizes, dtype, device)
    mine, own_dy = [own_leaf(each) for each in whole], own_leaf(dy)
    wanted = truth(norm.whole, whole, [dy])

    def by_gathering(x: Tensor, *params: Tensor) -> Tensor:
        return own(norm.whole(gathered(x, parts=True), *params))

    def seen(made: Results) -> Results:
        return (*made[:2], *(own(each) for each in made[2:]))  # gradients of whole parameters

    return Case(
        {
            "normgen": lambda: steps_of(_load(call.name, shard={"D": dist.group.WORLD}), mine, [own_dy]),
            "gather": lambda: steps_of(by_gathering, (mine[0], *whole[1:]), [own_dy], seen),
            "statistics": lambda: steps_of(norm.statistics, mine, [own_dy]),
            "dtensor": lambda: _of_dtensors(norm.whole, mine, whole[1:], dy),
            "local normgen": lambda: steps_of(_load(call.name), mine, [own_dy], None),
            "local torch": lambda: steps_of(norm.whole, mine, [own_dy], None),
            "all_reduce": lambda: all_reduce_alone((norm.floats * call.sizes[0],), torch.float32, device),
        },
        [own(each) for each in wanted],
    )


def _of_dtensors(function: Function, mine: Sequence[Tensor], params: Sequence[Tensor], dy: Tensor) -> Steps:
    """PyTorch's norm of DTensors, parameters cut as x is, or replicated where that is refused."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh(dy.device.type, (dist.get_world_size(),))

    def placed(tensor: Tensor, place: Any) -> Tensor:
        return DTensor.from_local(tensor.detach(), mesh, [place], run_check=False).requires_grad_()

    def made(replicated: bool) -> Steps:
        cut = [placed(each, Shard(0)) for each in mine[1:]]
        operands = (
            placed(mine[0], Shard(1)),
            *([placed(p, Replicate()) for p in params] if replicated else cut),
        )
        with torch.no_grad():
            y = function(*operands)
        note = f"weight {'replicated' if replicated else 'Shard(0)'}, result {y.placements[0]}"
        steps = steps_of(function, operands, [distribute_tensor(dy, mesh, y.placements)], seen)
        return replace(steps, note=note)

    def seen(made: Results) -> Results:
        return tuple(own(each.full_tensor()) for each in made)

    try:
        return made(replicated=False)
    except Exception:
        return made(replicated=True)


def _sums(call: Call, device: torch.device) -> Case:
    """The parts that ranks have of x are added up, with a residual, before the norm."""
    dtype, ranks = TYPES[call.dtype], dist.get_world_size()
    parts = drawn((ranks, *call.sizes), dtype, device).detach()
    residual, dh, dy = (drawn(call.sizes, dtype, device) for _ in range(3))
    w = drawn(call.sizes[1:], dtype, device)
    x = parts[dist.get_rank()].clone().requires_grad_()
    local, cotangents = _load("add_rmsnorm"), [dh.detach(), dy.detach()]

    def by_torch(x: Tensor, residual: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h = x + residual
        return h, rms_norm(h, w)

    def after(norm: Function) -> Steps:
        return steps_of(lambda x, *others: norm(added(x, parts=False), *others), (x, residual, w), cotangents)

    total = parts.double().sum(0).requires_grad_()
    return Case(
        {
            "normgen": lambda: steps_of(
                _load("add_rmsnorm", partial={"x": dist.group.WORLD}), (x, residual, w), cotangents
            ),
            "all_reduce, normgen": lambda: after(local),
            "all_reduce, torch": lambda: after(by_torch),
            "local normgen": lambda: steps_of(local, (x, residual, w), cotangents, None),
            "local torch": lambda: steps_of(by_torch, (x, residual, w), cotangents, None),
            "sum of parts": lambda: sum_alone(call.sizes, dtype, device),
            "all_reduce": lambda: all_reduce_alone(call.sizes, dtype, device),
        },
        truth(by_torch, (total, residual, w), cotangents),
    )


def _batches(call: Call, device: torch.device) -> Case:
    """Batch norm in training, whose statistics are those of all batches."""
    batch, channels, *_ = call.sizes
    dtype, ranks = TYPES[call.dtype], dist.get_world_size()
    layout = torch.channels_last if call.dtype == "bf16" else torch.contiguous_format
    shape = (ranks * batch, *call.sizes[1:])
    whole, dy = drawn(shape, dtype, device), drawn(shape, dtype, device).detach()
    w, b = (drawn((channels,), torch.float32, device) for _ in range(2))
    x, own_dy = (own(each.detach(), 0).clone(memory_format=layout) for each in (whole, dy))
    x.requires_grad_()

    def trained(kind: Any, seen: Callable[[Results], Results] | None) -> Steps:
        module = kind(channels, device=device)
        with torch.no_grad():
            module.weight.copy_(w)
            module.bias.copy_(b)
        operands = (x, module.weight, module.bias)
        return replace(steps_of(lambda x, *_: module(x), operands, [own_dy], seen), forward=None)

    def joined(made: Results) -> Results:
        y, dx, *parts = made
        return (y, dx, *(added(part, parts=False) for part in parts))

    def norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return functional.batch_norm(x, None, None, w, b, training=True)

    y, dx, *sums = truth(norm, (whole, w, b), [dy])
    return Case(
        {
            "normgen": lambda: trained(nt.nn.SyncBatchNorm, joined),
            "torch": lambda: trained(torch.nn.SyncBatchNorm, joined),
            "local normgen": lambda: trained(nt.nn.BatchNorm2d, None),
            "local torch": lambda: trained(torch.nn.BatchNorm2d, None),
        },
        [own(y, 0).clone(), own(dx, 0).clone(), *sums],
    )


def _losses(call: Call, device: torch.device) -> Case:
    """A vocabulary is spread; targets are soft."""
    logits, target = (drawn(call.sizes, TYPES[call.dtype], device) for _ in range(2))
    target = target.detach().softmax(-1)
    dy = drawn(call.sizes[:1], torch.float32, device).detach()
    mine = own_leaf(logits), own(target).contiguous()

    def loss(logits: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(logits, target, reduction="none")

    def by_gathering(run: Tensor, target: Tensor) -> Tensor:
        return loss(gathered(run, parts=False), target).float()

    y, dx = truth(loss, (logits, target), [dy])
    return Case(
        {
            "normgen": lambda: steps_of(_load(CROSS_ENTROPY, shard={"V": dist.group.WORLD}), mine, [dy]),
            "statistics": lambda: steps_of(cross_entropy_by_statistics, mine, [dy]),
            "gather": lambda: steps_of(by_gathering, (mine[0], target), [dy]),
            "local normgen": lambda: steps_of(_load(CROSS_ENTROPY), mine, [dy], None),
            "local torch": lambda: steps_of(lambda *run: loss(*run).float(), mine, [dy], None),
            "all_reduce": lambda: all_reduce_alone((2 * call.sizes[0],), torch.float32, device),
        },
        [y, own(dx)],
    )


def _softmaxes(call: Call, device: torch.device) -> Case:
    """A vocabulary is spread."""
    x, dy = (drawn(call.sizes, TYPES[call.dtype], device) for _ in range(2))
    mine, own_dy = [own_leaf(x)], [own_leaf(dy).detach()]

    def softmax(x: Tensor) -> Tensor:
        return x.softmax(-1)

    wanted = truth(softmax, [x], [dy])
    return Case(
        {
            "normgen": lambda: steps_of(_load("softmax", shard={"D": dist.group.WORLD}), mine, own_dy),
            "statistics": lambda: steps_of(softmax_by_statistics, mine, own_dy),
            "gather": lambda: steps_of(lambda run: own(softmax(gathered(run, parts=True))), mine, own_dy),
            "local normgen": lambda: steps_of(_load("softmax"), mine, own_dy, None),
            "local torch": lambda: steps_of(softmax, mine, own_dy, None),
            "all_reduce": lambda: all_reduce_alone((2 * call.sizes[0],), torch.float32, device),
        },
        [own(each) for each in wanted],
    )


_CASES: dict[str, Callable[[Call, torch.device], Case]] = {
    "rmsnorm": _rows,
    "layernorm": _rows,
    "sync_batchnorm": _batches,
    "add_rmsnorm": _sums,
    "cross_entropy": _losses,
    "softmax": _softmaxes,
}
