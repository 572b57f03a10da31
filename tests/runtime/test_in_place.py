"""Results written over operands: the same bits as anywhere else, nothing for the checker to report, and
refused wherever the kernels would read what they have overwritten."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from itertools import permutations
from typing import Any

import numpy as np
import pytest

import normgen
from normgen.devices.host.executor import HostExecutor
from normgen.launching.in_place import may_overlie
from normgen.launching.launch import Binding, LaunchPlan, Operand
from normgen.launching.machine import Machine
from normgen.package.kernels import RowsRecord
from normgen.package.records import PassRecord, Strategy
from normgen.runtime.norm import Norm
from normgen.runtime.planning.choose import plan_launches
from tests.codegen.ways import first, of_form

EXECUTOR = HostExecutor(checked=True, order=2, seed=7)
f32, f16 = np.float32, np.float16


@cache
def norm(name: str, form: str = "") -> Norm:
    """A norm of which the kernels take the form, where there is one."""

    def planner(record: PassRecord, binding: Binding, device: Machine) -> LaunchPlan:
        with first(of_form(form)) if form else nullcontext():
            return plan_launches(record, binding, device)

    package = normgen.load(name).package
    return Norm(package, executors=lambda device: EXECUTOR, planner=planner)


def draw(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(f32)


def operands(name: str, direction: str, shape: tuple[int, ...]) -> dict[str, Any]:
    """What a direction reads. Rows are `shape` without its last dimension."""
    made = norm(name)
    names = dict.fromkeys((*made.forward_args, *made.backward_args))
    arrays = {n: draw(*(shape[-1:] if n in "wb" else shape), seed=i) for i, n in enumerate(names)}
    arrays |= made.forward(**{n: arrays[n] for n in made.forward_args})._asdict()
    return {n: arrays[n] for n in getattr(made, f"{direction}_args")}


ALLOWED = [
    ("layernorm", "forward", {"y": "x"}),
    ("add_rmsnorm", "forward", {"h": "x", "y": "residual"}),
    ("layernorm", "backward", {"dx": "x"}),
    ("add_rmsnorm", "backward", {"dx": "dy", "dresidual": "h"}),
]


@pytest.mark.parametrize(("name", "direction", "over"), ALLOWED)
def test_the_bits_are_those_of_memory_of_its_own(name: str, direction: str, over: dict[str, str]) -> None:
    """In each form. 23 rows leave persistent blocks without one in their last round."""
    forward = [((23, 40), "registers"), ((3, 2080), "registers")]
    other = forward if direction == "forward" else []
    for shape, form in (((23, 40), "pipeline"), ((4, 1100), "multipass"), *other):
        run, arrays = getattr(norm(name, form), direction), operands(name, direction, shape)
        want = run(**arrays)
        EXECUTOR.history.clear()
        got = run(**arrays, out={result: arrays[operand] for result, operand in over.items()})
        assert EXECUTOR.history[0][0] == f"{name}_{direction}_{form}"
        assert all(getattr(got, result) is arrays[operand] for result, operand in over.items())
        for field in want._fields:
            assert getattr(got, field).tobytes() == getattr(want, field).tobytes(), (form, field)


X, RESIDUAL, W = draw(4, 4), draw(4, 4, seed=1), draw(4)
RSTD, LINE = np.ones(4, f32), draw(40)
FIRST, LATER, SQUARE = LINE[:16].reshape(4, 4), LINE[4:20].reshape(4, 4), draw(4, 4)
SPLIT = """norm split
input  x[..., D]
input  z[..., D]
output y[..., D] = x / sum[D](x)
output u[..., D] = z + x
"""


HALF = "norm half\ninput x[..., D]\noutput y[..., D]: f16 = x / sum[D](x)\n"
# A spec and direction, arrays, `out`, and what is said of which result.
REFUSED = [
    ("rmsnorm", "forward", (FIRST, W), {"y": LATER}, "y", "overlaps x .* memory, or exactly that of x"),
    ("rmsnorm", "forward", (X.T, W), {"y": X}, "y", "overlaps x in memory: .* its own memory"),
    ("rmsnorm", "forward", (X[:, :], X[0]), {"y": X}, "y", "overlaps w .*, or exactly that of x"),
    ("rmsnorm", "backward", (X, SQUARE, W, RSTD), {"dw": W}, "dw", "overlaps w in memory: .* its own memory"),
    ("rmsnorm", "backward", (X, SQUARE, W, X[0]), {"dx": X}, "dx", "overlaps rstd .*exactly that of dy or x"),
    ("add_rmsnorm", "forward", (X, RESIDUAL, W), {"h": X, "y": X}, "y", r"overlaps out\['h'\].*"),
    (SPLIT, "forward", (X, RESIDUAL), {"y": RESIDUAL}, "y", "overlaps z .*, or exactly that of x"),
    (
        HALF,
        "forward",
        (X,),
        {"y": X.view(f16)[:2].reshape(4, 4)},
        "y",
        "overlaps x in memory: .* its own memory",
    ),
]


@pytest.mark.parametrize(("spec", "direction", "arrays", "out", "result", "said"), REFUSED)
def test_what_must_not_be_in_place(
    spec: str, direction: str, arrays: tuple[Any, ...], out: dict[str, Any], result: str, said: str
) -> None:
    EXECUTOR.history.clear()
    with pytest.raises(ValueError, match=rf"^out\['{result}'\] {said}$"):
        getattr(norm(spec), direction)(*arrays, out=out)
    assert not EXECUTOR.history


def test_a_sum_onto_what_is_there_needs_memory_of_its_own() -> None:
    made = norm("norm scaled\ninput x[..., D]\nparam p[..., D]\noutput y[..., D] = x * p\n")
    given = {"dy": SQUARE, "x": X.copy(), "p": RESIDUAL, "wrt": "p"}
    dp = made.backward(**given, out={"dp": given["x"]}).dp
    assert dp is given["x"] and (dp == SQUARE * X).all()
    with pytest.raises(ValueError, match=r"^out\['dp'\] overlaps x in memory: .* its own memory$"):
        made.backward(**given, out={"dp": given["x"]}, accumulate=True)


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

    def over(*kernels: RowsRecord) -> list[str]:
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


PERMUTED = [
    (shape, order)
    for shape in ((6, 6), (4, 3, 4), (4, 4, 4))
    for order in list(permutations(range(len(shape))))[1:]
]


@pytest.mark.parametrize("name", ["softmax", "rmsnorm", "layernorm"])
def test_a_view_that_is_permuted_is_not_written_over(name: str) -> None:
    """Its elements lie elsewhere than the result's, though both take the same bytes."""
    for shape, order in PERMUTED:
        memory = draw(*shape)
        x = memory.transpose(order)
        want = norm(name).forward(x).y
        with pytest.raises(ValueError, match=r"out\['y'\] overlaps x"):
            norm(name).forward(x, out={"y": memory.reshape(x.shape)})
        assert np.array_equal(norm(name).forward(x).y, want)
