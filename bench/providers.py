"""One problem as calls of each provider: normgen, PyTorch eager, PyTorch compiled; and their errors.

`normgen` runs the strategy that it chooses itself; `normgen:NAME` runs the strategy NAME of the pass.

A provider's calls rotate through sets of buffers. Results are kept for one turn of the rotation, so that the
allocator hands out other memory each time and outputs are as cold as inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import torch
from problems import DTYPES, GROUP, OPS, WRONG, Operand, Problem, Tensor
from torch._functorch import config as functorch

import normgen
from normgen.runtime.launch import plan_launches
from normgen.runtime.launches import LaunchPlan
from normgen.runtime.norm import Norm

PROVIDERS = ("normgen", "torch", "compile")
Call = Callable[[int], object]
# The backward is repeated on one forward: its memory must not be handed on.
functorch.donated_buffer = False


class Sets:
    """`count` sets of tensors of a problem. Params are shared, x, dy and states are each set's own."""

    def __init__(self, problem: Problem, count: int, device: str) -> None:
        self.problem, self.count, self.device = problem, count, device
        self._random = torch.Generator(device).manual_seed(7)
        op = OPS[problem.op]
        self._params = [self._operand(o) for o in op.operands]
        self.x = [self._like_x(op.x_dtype or problem.dtype) for _ in range(count)]
        self.dy = [] if op.quantised else [self._like_x(problem.dtype) for _ in range(count)]

    def operands(self, i: int) -> list[Tensor]:
        """x and the other operands of set `i`, as leaves of their own; states are new copies."""
        states = [o.state for o in OPS[self.problem.op].operands]
        mine = [p.clone() if state else p.detach() for p, state in zip(self._params, states, strict=True)]
        return [self.x[i].detach(), *mine]

    def _operand(self, operand: Operand) -> Tensor:
        shape: tuple[int, ...] = (self.problem.channels,)
        if operand.of == "groups":
            shape = (*self.problem.shape[:-1], self.problem.shape[-1] // GROUP)
        noise = torch.randn(shape, generator=self._random, device=self.device)
        return (operand.start + 0.1 * noise).to(DTYPES[operand.dtype or self.problem.dtype])

    def _like_x(self, dtype: str) -> Tensor:
        x = torch.randn(self.problem.shape, generator=self._random, device=self.device) + 0.5
        x = x.to(DTYPES[dtype])
        return x.contiguous(memory_format=torch.channels_last) if self.problem.layout == "nhwc" else x


def calls(provider: str, sets: Sets, direction: str) -> Call:
    """The i-th call queues one `direction` of the problem on the next set of buffers, and returns its
    results: y first, or the gradients of x and of the params.
    """
    make = _normgen_calls if provider.startswith("normgen") else _torch_calls
    call = make(provider, sets, direction)
    kept: list[object] = [None] * sets.count

    def rotating(i: int) -> object:
        kept[i % sets.count] = made = call(i % sets.count)
        return made

    return rotating


# ------------------------------------------------------------------------------------------------ PyTorch


def _torch_calls(provider: str, sets: Sets, direction: str) -> Call:
    op = OPS[sets.problem.op]
    function = _compiled(sets.problem) if provider == "compile" else op.function
    operands = [sets.operands(i) for i in range(sets.count)]
    if op.quantised:
        return lambda i: function(*operands[i])
    leaves = []
    for row in operands:
        mine = [row[0], *(t for t, o in zip(row[1:], op.operands, strict=True) if not o.state)]
        leaves.append([t.requires_grad_() for t in mine])
    if direction == "forward":
        return lambda i: (function(*operands[i]),)
    results = [function(*row) for row in operands]
    return lambda i: torch.autograd.grad(results[i], leaves[i], sets.dy[i], retain_graph=True)


@lru_cache(maxsize=1)
def _compiled(problem: Problem) -> Callable[..., Any]:
    """Compiled for the shapes of this problem, and for both of its directions."""
    torch._dynamo.reset()
    return torch.compile(OPS[problem.op].function, dynamic=False)


# ------------------------------------------------------------------------------------------------ normgen


def _normgen_calls(provider: str, sets: Sets, direction: str) -> Call:
    problem, op = sets.problem, OPS[sets.problem.op]
    loaded = _load(problem)
    planner = Planner(provider.partition(":")[2])
    plans[provider] = planner
    norm = Norm(loaded.package, planner=planner)
    numbers = {a.name: op.numbers[a.name] for a in norm.package.attrs if a.name in op.numbers}
    first = "xq" if op.x_dtype == "f8e4m3" else "x"
    names = [first, *(o.name for o in op.operands)]
    inputs = []
    for i in range(sets.count):
        row = dict(zip(names, sets.operands(i), strict=True))
        inputs.append({k: _last(v, problem) if k == first else v for k, v in row.items()})
    if direction == "forward":
        result = "q" if op.quantised else "y"

        def forward(i: int) -> object:
            made = norm.forward(**inputs[i], **numbers)
            return (_first(getattr(made, result), problem), made)

        return forward
    given = []
    for i in range(sets.count):
        values = inputs[i] | norm.forward(**inputs[i], **numbers)._asdict()
        values["dy"] = _last(sets.dy[i], problem)
        params = [o.name for o in op.operands if not o.state]  # a gradient takes the type of its param
        given.append({k: values[k] for k in {*norm.backward_args, *params}})

    def backward(i: int) -> object:
        dx, *rest = norm.backward(**given[i], **numbers)
        return (_first(dx, problem), *rest)

    return backward


@cache
def _load(problem: Problem) -> Norm:
    name, attrs = OPS[problem.op].specs[problem.layout]
    known = {key: problem.channels if value == "channels" else value for key, value in attrs.items()}
    return normgen.load(name, **known)


def strategies(problem: Problem, direction: str) -> tuple[str, ...]:
    """The names of the ways to run a pass of the problem's norm."""
    package = _load(problem).package
    record = package.backward if direction == "backward" else package.forward
    return tuple(strategy.name for strategy in record.strategies) if record is not None else ()


class Planner:
    """Plans launches as the runtime does, or those of a named strategy, and remembers what came of it."""

    def __init__(self, strategy: str) -> None:
        self._strategy = strategy or None
        self._plan: LaunchPlan | None = None

    def __call__(self, record: Any, binding: Any, device: Any, header: str = "") -> LaunchPlan:
        self._plan = plan_launches(record, binding, device, header, self._strategy)
        return self._plan  # of a backward last: the forward that it needs was planned before

    def told(self, executor: Any) -> list[str]:
        """A line for each launch: its entry, grid, block, shared memory, registers and spills; the notes."""
        lines = list(self._plan.notes) if self._plan else []
        for x in self._plan.launches if self._plan else ():
            report = executor.report(executor.function(x.source, x.entry, x.shared))
            lines.append(
                f"{x.entry} grid {x.grid} block {x.block} cluster {x.cluster} shared {x.shared} "
                f"registers {report.registers} local {report.local}"
            )
        return lines


# What was planned last for each provider.
plans: dict[str, Planner] = {}


def _last(t: Tensor, problem: Problem) -> Tensor:
    return t.permute(0, 2, 3, 1) if problem.layout == "nhwc" else t


def _first(t: Tensor, problem: Problem) -> Tensor:
    return t.permute(0, 3, 1, 2) if problem.layout == "nhwc" else t


# ------------------------------------------------------------------------------------------------ the truth


def check(problem: Problem, provider: str, device: str, direction: str) -> float:
    """The relative l2 error against float64 of what a provider computes, the worst of its results. Raises
    what the provider raises.
    """
    sets = Sets(problem, 1, device)
    made = calls(provider, sets, direction)(0)
    wanted = _truth(sets, direction)
    if not isinstance(made, tuple) or len(made) < len(wanted):
        raise AssertionError(f"{len(wanted)} results are missing from {made}")
    return max(_error(got, want) for got, want in zip(made, wanted, strict=False))


def wrong(problem: Problem, error: float) -> bool:
    """Whether an error is more than rounding."""
    op = OPS[problem.op]
    return not error <= WRONG["f8e4m3" if op.quantised else problem.dtype]


def _truth(sets: Sets, direction: str) -> list[Tensor]:
    op = OPS[sets.problem.op]
    operands = [t.detach().double() for t in sets.operands(0)]
    if op.quantised:
        made = op.function(*operands)
        return [made[0]] if isinstance(made, tuple) else [made]
    mine = [operands[0], *(t for t, o in zip(operands[1:], op.operands, strict=True) if not o.state)]
    leaves = [t.requires_grad_(direction == "backward") for t in mine]
    y = op.function(*operands)
    assert isinstance(y, Tensor)
    if direction == "forward":
        return [y]
    return list(torch.autograd.grad(y, leaves, sets.dy[0].double()))


def _error(got: Any, wanted: Tensor) -> float:
    if not isinstance(got, Tensor) or got.shape != wanted.shape:
        raise AssertionError(f"got {getattr(got, 'shape', got)}, not {tuple(wanted.shape)}")
    return float(got.double().sub_(wanted).norm() / wanted.norm())
