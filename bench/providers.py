"""One problem as calls of each provider: normgen, PyTorch eager and compiled, Liger, quack; and their errors.

Forwards run without gradients, whoever provides them. `compile` is torch.compile as it comes, `autotune` the
same in its mode "max-autotune-no-cudagraphs": every provider is recorded into a graph by the clock that times
it.

`normgen` runs the strategy that it chooses itself; `normgen:NAME` runs the strategy NAME of the pass.

A provider's calls rotate through sets of buffers. Results are kept for one turn of the rotation, so that the
allocator hands out other memory each time and outputs are as cold as inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from peers import PEERS, peer
from problems import GROUP, OPS, WRONG, Operand, Problem, norm_of
from references import REFERENCES
from torch._functorch import config as functorch

from normgen.launching.launch import Launch, LaunchPlan
from normgen.runtime.norm import Norm
from normgen.runtime.planning.choose import plan_launches

Tensor = torch.Tensor
# Modes of torch.compile by provider.
MODES = {"compile": None, "autotune": "max-autotune-no-cudagraphs"}
PROVIDERS = ("normgen", "torch", *MODES, *PEERS)
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f8e4m3": torch.float8_e4m3fn}
# Modules without which a provider is absent.
_NEEDED = {"liger": ("liger_kernel.ops.rms_norm",), "quack": ("quack.rmsnorm", "quack.softmax")}
Call = Callable[[int], tuple[Any, ...]]
# The backward is repeated on one forward: its memory must not be handed on.
functorch.donated_buffer = False


def absent(provider: str) -> str:
    """Why a provider is not there, or nothing."""
    for module in _NEEDED.get(provider, ()):
        try:
            import_module(module)
        except Exception as fault:  # some raise more than ImportError where there is no GPU
            return f"{type(fault).__name__}: {fault}".partition("\n")[0]
    return ""


def has(provider: str, problem: Problem, direction: str) -> bool:
    """Whether a provider knows the op, in this direction and layout."""
    if provider not in PEERS:
        return True
    return peer(provider, problem.op, direction, problem.layout) is not None


class Sets:
    """`count` sets of tensors of a problem. Params are shared; what is like x, dy and states are each set's
    own."""

    def __init__(self, problem: Problem, count: int, device: str) -> None:
        self.problem, self.count, self.device = problem, count, device
        self._random = torch.Generator(device).manual_seed(7)
        op = OPS[problem.op]
        self._params = [None if o.of == "x" else self._operand(o) for o in op.operands]
        self._x = [self._like_x(op.x_dtype or problem.dtype) for _ in range(count)]
        self._beside = [
            [self._like_x(problem.dtype_of(o)) if o.of == "x" else None for o in op.operands]
            for _ in range(count)
        ]
        self.dy = [] if op.quantised else [self._like_x(problem.dtype) for _ in range(count)]

    def operands(self, i: int) -> list[Tensor]:
        """x and the other operands of set `i`, as leaves of their own; states are new copies."""
        mine = []
        for o, shared, own in zip(OPS[self.problem.op].operands, self._params, self._beside[i], strict=True):
            t = own if own is not None else shared
            assert t is not None
            mine.append(t.clone() if o.state else t.detach())
        return [self._x[i].detach(), *mine]

    def all_operands(self) -> list[list[Tensor]]:
        """Those of every set."""
        return [self.operands(i) for i in range(self.count)]

    def _operand(self, operand: Operand) -> Tensor:
        shape: tuple[int, ...] = (self.problem.channels,)
        if operand.of == "groups":
            shape = (*self.problem.shape[:-1], self.problem.shape[-1] // GROUP)
        noise = torch.randn(shape, generator=self._random, device=self.device)
        return (operand.start + 0.1 * noise).to(DTYPES[self.problem.dtype_of(operand)])

    def _like_x(self, dtype: str) -> Tensor:
        x = torch.randn(self.problem.shape, generator=self._random, device=self.device) + 0.5
        x = x.to(DTYPES[dtype])
        return x.contiguous(memory_format=torch.channels_last) if self.problem.layout == "nhwc" else x


def calls(provider: str, sets: Sets, direction: str) -> Call:
    """The i-th call queues one `direction` of the problem on the next set of buffers, and returns its
    results: the outputs of the op, or the gradients of x and of the params.
    """
    call = _without_gradients(_make(provider, sets, direction), direction)
    kept: list[object] = [None] * sets.count

    def rotating(i: int) -> tuple[Any, ...]:
        kept[i % sets.count] = made = call(i % sets.count)
        return made

    return rotating


def _without_gradients(call: Call, direction: str) -> Call:
    """A forward as inference runs it: nothing is kept for a backward."""
    return torch.no_grad()(call) if direction == "forward" else call


def _make(provider: str, sets: Sets, direction: str) -> Call:
    if provider in PEERS:
        make = peer(provider, sets.problem.op, direction, sets.problem.layout)
        assert make is not None
        return make(sets.all_operands(), sets.dy)
    if provider == "torch" or provider in MODES:
        return _torch_calls(provider, sets, direction)
    return _normgen_calls(provider, sets, direction)


# ------------------------------------------------------------------------------------------------ PyTorch


def _torch_calls(provider: str, sets: Sets, direction: str) -> Call:
    function = REFERENCES[sets.problem.op]
    if provider in MODES:
        function = torch.compile(function, dynamic=False, mode=MODES[provider])
    operands = sets.all_operands()
    if direction == "forward":
        return lambda i: function(*operands[i])
    leaves = [_leaves(sets.problem, row) for row in operands]
    results = [function(*row)[0] for row in operands]
    return lambda i: torch.autograd.grad(results[i], leaves[i], sets.dy[i], retain_graph=True)


def _leaves(problem: Problem, row: list[Tensor]) -> list[Tensor]:
    """What is differentiated, made to require it."""
    others = zip(row[1:], OPS[problem.op].operands, strict=True)
    return [t.requires_grad_() for t in (row[0], *(t for t, o in others if not o.state))]


def forget_compiled() -> None:
    """Drop what torch.compile has made, so that no problem is compiled for shapes of another."""
    torch._dynamo.reset()


# ------------------------------------------------------------------------------------------------ normgen


def _normgen_calls(provider: str, sets: Sets, direction: str) -> Call:
    problem, op = sets.problem, OPS[sets.problem.op]
    planner = Planner(provider.partition(":")[2])
    plans[provider] = planner
    norm = Norm(norm_of(problem).package, planner=planner)
    numbers = {a.name: op.numbers[a.name] for a in norm.package.attrs if a.name in op.numbers}
    names = [op.x, *(o.name for o in op.operands)]
    inputs: list[dict[str, Any]] = []
    for operands in sets.all_operands():
        row = dict(zip(names, operands, strict=True))
        inputs.append({k: _last(v, problem) if v.shape == problem.shape else v for k, v in row.items()})
    if direction == "backward":
        return _normgen_backward(norm, sets, inputs, numbers)
    if problem.layout == "given":
        for row in inputs:
            row["out"] = norm.forward(**row, **numbers)._asdict()

    def forward(i: int) -> tuple[Any, ...]:
        made = norm.forward(**inputs[i], **numbers)
        return (*(_first(getattr(made, name), problem) for name in op.outputs), made)

    return forward


def _normgen_backward(
    norm: Norm, sets: Sets, inputs: list[dict[str, Any]], numbers: dict[str, float]
) -> Call:
    problem = sets.problem
    params = [o.name for o in OPS[problem.op].operands if not o.state]  # a gradient takes its param's type
    given = []
    for i in range(sets.count):
        values = inputs[i] | norm.forward(**inputs[i], **numbers)._asdict()
        values["dy"] = _last(sets.dy[i], problem)
        given.append({k: values[k] for k in {*norm.backward_args, *params}})

    def backward(i: int) -> tuple[Any, ...]:
        dx, *rest = norm.backward(**given[i], **numbers)
        return (_first(dx, problem), *rest)

    return backward


class Planner:
    """Plans launches as the runtime does, or those of a named strategy, and remembers what came of it."""

    def __init__(self, strategy: str) -> None:
        self._strategy = strategy or None
        self._plan: LaunchPlan | None = None

    def __call__(self, record: Any, binding: Any, device: Any) -> LaunchPlan:
        self._plan = plan_launches(record, binding, device, self._strategy)
        return self._plan  # of a backward last: the forward that it needs was planned before

    @property
    def launches(self) -> tuple[Launch, ...]:
        """Those of the last plan."""
        return self._plan.repeated if self._plan else ()

    def told(self, executor: Any) -> list[str]:
        """A line for each launch: its entry, grid, block, shared memory, registers and spills; the notes."""
        lines = list(self._plan.notes) if self._plan else []
        for x in self.launches:
            report = executor.function(x.source, x.entry, x.shared).report
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


def truth(sets: Sets, direction: str) -> list[Tensor]:
    """What the first set should give, in float64.

    Of contiguous copies, so that what PyTorch does about other layouts is judged and not believed: its
    instance norm has wrong gradients of a single image in channels-last memory.
    """
    op = OPS[sets.problem.op]
    operands = [t.detach().double().contiguous() for t in sets.operands(0)]
    function = REFERENCES[sets.problem.op]
    if direction == "forward":
        return list(function(*operands)[: len(op.outputs)])
    leaves = _leaves(sets.problem, operands)
    return list(torch.autograd.grad(function(*operands)[0], leaves, sets.dy[0].double().contiguous()))


def error(made: tuple[Any, ...], wanted: list[Tensor]) -> float:
    """The relative l2 error of results, that of the worst. AssertionError where some are missing or of
    another shape."""
    if len(made) < len(wanted):
        raise AssertionError(f"{len(made)} results in place of {len(wanted)}")
    return max(_error(got, want) for got, want in zip(made, wanted, strict=False))


def wrong(problem: Problem, found: float) -> bool:
    """Whether an error is more than rounding."""
    return not found <= WRONG["f8e4m3" if OPS[problem.op].quantised else problem.dtype]


def _error(got: Any, wanted: Tensor) -> float:
    if not isinstance(got, Tensor) or got.shape != wanted.shape:
        raise AssertionError(f"got {getattr(got, 'shape', got)}, not {tuple(wanted.shape)}")
    held = wanted.to(got.dtype).double()  # infinite where the type holds no such number
    found = got.detach().double()
    apart = torch.where(held.isinf() & (found == held), 0.0, found - wanted)
    return float(apart.norm() / wanted.norm())
