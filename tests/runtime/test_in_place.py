"""Results written over operands: the same bits as anywhere else, nothing for the checker to report, and
refused wherever the kernels would read what they have overwritten."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import normgen
from normgen.devices.host.executor import HostExecutor
from normgen.launching.in_place import may_overlie
from normgen.launching.launch import Binding, LaunchPlan, Operand
from normgen.launching.machine import Machine
from normgen.package.kernels import KernelRecord
from normgen.package.records import PassRecord, Strategy
from normgen.runtime.norm import Norm
from normgen.runtime.planning.choose import plan_launches

EXECUTOR = HostExecutor(checked=True, order=2, seed=7)
f32 = np.float32


def streaming(record: PassRecord, binding: Binding, device: Machine) -> LaunchPlan:
    """Plans for a device whose registers hold nothing, which leaves the form that passes over memory."""
    return plan_launches(record, binding, replace(device, registers_per_multiprocessor=1))


def restreaming(record: PassRecord, binding: Binding, device: Machine) -> LaunchPlan:
    """The same without shared memory for a copy of the row."""
    return streaming(record, binding, replace(device, shared_per_block=0))


@cache
def norm(name: str, planner: Callable[..., LaunchPlan] = plan_launches) -> Norm:
    package = normgen.load(name).package
    return Norm(package, executors=lambda device: EXECUTOR, planner=planner)


def draw(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(f32)


def operands(name: str, direction: str, shape: tuple[int, ...]) -> dict[str, Any]:
    """What a direction reads. Rows are `shape` without its last dimension."""
    made = norm(name)
    tensors = {t.name: t for t in made.package.forward.reads}
    whole = {
        n: draw(*(shape if ("...",) in t.dims else shape[-1:]), seed=i)
        for i, (n, t) in enumerate(tensors.items())
    }
    if direction == "forward":
        return whole
    results = made.forward(**whole)._asdict()
    cotangents = {n: draw(*shape, seed=9 + i) for i, n in enumerate(made.backward_args) if n.startswith("d")}
    return {n: (cotangents | whole | results)[n] for n in made.backward_args}


def call(made: Norm, direction: str, arrays: Mapping[str, Any], **more: Any) -> Any:
    return getattr(made, direction)(**arrays, **more)


ALLOWED = [
    ("rmsnorm", "forward", {"y": "x"}),
    ("layernorm", "forward", {"y": "x"}),
    ("add_rmsnorm", "forward", {"h": "residual", "y": "x"}),
    ("add_rmsnorm", "forward", {"h": "x", "y": "residual"}),
    ("layernorm", "backward", {"dx": "dy"}),
    ("layernorm", "backward", {"dx": "x"}),
    ("add_rmsnorm", "backward", {"dx": "dy", "dresidual": "h"}),
]
# 5 rows leave thread groups without one, and so do 23 to persistent blocks in their last round.
SIZES = {
    "short rows": ((5, 24), plan_launches),
    "long rows": ((3, 4096), plan_launches),
    "rows of two blocks": ((3, 2080), plan_launches),
    "many rows": ((23, 40), plan_launches),
    "streamed": ((4, 1100), streaming),
    "streamed from memory": ((4, 1100), restreaming),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("name", "direction", "over"), ALLOWED)
def test_the_bits_are_those_of_memory_of_its_own(
    name: str, direction: str, over: dict[str, str], size: str
) -> None:
    shape, planner = SIZES[size]
    made, arrays = norm(name, planner), operands(name, direction, shape)
    want = call(made, direction, arrays)
    backward = "overlapped" if size == "rows of two blocks" else "pipeline"
    expected = (
        "multipass" if size.startswith("streamed") else "registers" if direction == "forward" else backward
    )
    EXECUTOR.history.clear()
    got = call(made, direction, arrays, out={result: arrays[operand] for result, operand in over.items()})
    for result, operand in over.items():
        assert getattr(got, result) is arrays[operand]
    for field in want._fields:
        assert getattr(got, field).tobytes() == getattr(want, field).tobytes(), field
    assert EXECUTOR.history[0][0] == f"{name}_{direction}_{expected}"


X, RESIDUAL, W = draw(4, 4), draw(4, 4, seed=1), draw(4)
RSTD, WIDE, LINE = np.ones(4, f32), draw(4, 8), draw(40)
FIRST, LATER, SQUARE = LINE[:16].reshape(4, 4), LINE[4:20].reshape(4, 4), draw(4, 4)
SPLIT = """norm split
input  x[..., D]
input  z[..., D]
output y[..., D] = x / sum[D](x)
output u[..., D] = z + x
"""


@pytest.mark.parametrize(
    ("spec", "direction", "arrays", "out", "message"),
    [
        (
            "rmsnorm",
            "forward",
            (FIRST, W),
            {"y": LATER},
            r"y'\] overlaps x .* of its own, or exactly that of x$",
        ),
        ("rmsnorm", "forward", (X.T, W), {"y": X}, r"y'\] overlaps x .* of its own$"),
        (
            "rmsnorm",
            "forward",
            (WIDE[:, ::2], W),
            {"y": WIDE.reshape(8, 4)[:4]},
            r"y'\] overlaps x .* of its own$",
        ),
        ("rmsnorm", "forward", (X[:, :], X[0]), {"y": X}, r"y'\] overlaps w .*, or exactly that of x$"),
        ("rmsnorm", "backward", (X, SQUARE, W, RSTD), {"dw": W}, r"dw'\] overlaps w .* of its own$"),
        (
            "rmsnorm",
            "backward",
            (X, SQUARE, W, X[0]),
            {"dx": X},
            r"dx'\] overlaps rstd .*exactly that of dy or x$",
        ),
        ("add_rmsnorm", "forward", (X, RESIDUAL, W), {"h": X, "y": X}, r"y'\] overlaps out\['h'\]"),
        (SPLIT, "forward", (X, RESIDUAL), {"y": RESIDUAL}, r"y'\] overlaps z .*, or exactly that of x$"),
    ],
)
def test_what_must_not_be_in_place(
    spec: str, direction: str, arrays: tuple[Any, ...], out: dict[str, Any], message: str
) -> None:
    EXECUTOR.history.clear()
    with pytest.raises(ValueError, match=r"out\['" + message):
        getattr(norm(spec), direction)(*arrays, out=out)
    assert not EXECUTOR.history


def test_a_sum_onto_what_is_there_needs_memory_of_its_own() -> None:
    made = norm("norm scaled\ninput x[..., D]\nparam p[..., D]\noutput y[..., D] = x * p\n")
    x, p, dy = X.copy(), RESIDUAL, SQUARE
    dp = made.backward(dy=dy, x=x, p=p, wrt="p", out={"dp": x}).dp
    assert dp is x and (dp == dy * X).all()
    with pytest.raises(
        ValueError, match=r"out\['dp'\] overlaps x in memory; give out\['dp'\] memory of its own$"
    ):
        made.backward(dy=dy, x=x, p=p, wrt="p", out={"dp": x}, accumulate=True)


def test_element_types_must_agree() -> None:
    made = norm("norm half\ninput x[..., D]\noutput y[..., D]: f16 = x / sum[D](x)\n")
    memory = X.copy()
    with pytest.raises(ValueError, match=r"out\['y'\] overlaps x .* of its own$"):
        made.forward(memory, out={"y": memory.view(np.float16)[:2].reshape(4, 4)})


def test_what_an_earlier_kernel_may_touch() -> None:
    """The last that touches them, unless an earlier one wrote or read the result where the operand is."""
    record = normgen.load("rmsnorm").package.backward
    assert record is not None
    (kernel,) = record.kernels
    whole = Operand("f32", (("...", 8), ("D", 1)), 16)
    binding = Binding((("...", 4), ("D", 8)), (("dy", whole), ("x", whole), ("dx", whole)))
    (x,) = [o for o in kernel.reads if o.tensor == "x"]
    (dx,) = [o for o in kernel.writes if o.tensor == "dx"]
    idle = replace(kernel, reads=(), writes=(), finals=(), final_reads=())
    reads_x = replace(idle, reads=(x,))
    finals_x = replace(kernel, final_reads=(x,))

    def over(*kernels: KernelRecord) -> list[str]:
        """Which operands dx may lie over."""
        changed = replace(record, strategies=(Strategy("split", kernels),))
        return [name for name in ("dy", "x") if may_overlie(changed, binding, "dx", name)]

    assert over(kernel) == over(idle, kernel) == over(reads_x, kernel) == ["dy", "x"]
    assert over(kernel, reads_x) == over(finals_x) == ["dy"]
    earlier = (
        replace(idle, writes=(dx,)),
        replace(idle, finals=(dx,)),
        replace(idle, reads=(replace(x, tensor="dx"),)),
        replace(idle, final_reads=(replace(x, tensor="dx"),)),
    )
    assert [over(each, kernel) for each in earlier] == [[]] * 4
