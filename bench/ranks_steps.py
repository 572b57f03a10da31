"""What is timed of a provider in `ranks.py`, what its results are to be, and the tensors of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from by_hand import own
from together import Step
from torch import Tensor

from normgen.torch.ranks.partial import sum_over_ranks

Function = Callable[..., Any]
Results = tuple[Tensor, ...]


@dataclass(frozen=True)
class Steps:
    """What is timed of a provider: a forward without gradients, and both directions, which return outputs,
    and outputs and gradients. `seen`: these as they are compared with what is wanted; None where they are
    something else."""

    forward: Step | None = None
    both: Step | None = None
    seen: Callable[[Results], Results] | None = lambda made: made
    note: str = ""

    def passes(self) -> dict[str, Step]:
        """By the name of the pass, what there is."""
        found = {"forward": self.forward, "forward+backward": self.both}
        return {name: step for name, step in found.items() if step is not None}


@dataclass(frozen=True)
class Case:
    """A call that is ready: its providers, each made when its turn comes, and what this rank's results are to
    be: outputs and then gradients, in float64."""

    providers: Mapping[str, Callable[[], Steps]]
    wanted: Sequence[Tensor]


def drawn(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """The same on every rank."""
    made = torch.randn(tuple(shape), device=device).to(dtype)
    dist.broadcast(made, 0)
    return made.requires_grad_()


def own_leaf(tensor: Tensor) -> Tensor:
    """This rank's run along the last axis."""
    return own(tensor.detach()).clone(memory_format=torch.contiguous_format).requires_grad_()


def steps_of(
    function: Function,
    operands: Sequence[Tensor],
    cotangents: Sequence[Tensor],
    seen: Callable[[Results], Results] | None = lambda made: made,
) -> Steps:
    """The passes of a function; gradients are by the operands that require them."""
    leaves = [each for each in operands if each.requires_grad]

    def forward() -> Results:
        with torch.no_grad():
            return _listed(function(*operands))

    def both() -> Results:
        made = _listed(function(*operands))
        return (*made, *torch.autograd.grad(made, leaves, cotangents))

    return Steps(forward, both, seen)


def all_reduce_alone(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Steps:
    """The exchange alone, of zeros, which stay zeros."""
    buffer = torch.zeros(tuple(shape), dtype=dtype, device=device)

    def step() -> Results:
        dist.all_reduce(buffer)
        return (buffer,)

    return Steps(step, seen=None)


def sum_alone(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Steps:
    """The sum of parts of zeros alone, by what a norm of sums has exchange them."""
    buffer = torch.zeros(tuple(shape), dtype=dtype, device=device)
    group = dist.group.WORLD.group_name
    return Steps(lambda: (sum_over_ranks(buffer, group),), seen=None)


def truth(function: Function, operands: Sequence[Tensor], cotangents: Sequence[Tensor]) -> list[Tensor]:
    """Outputs and gradients in float64, by one process with all."""
    wide = [each.detach().double().requires_grad_(each.requires_grad) for each in operands]
    both = steps_of(function, wide, [each.double() for each in cotangents]).both
    assert both is not None
    return [each.detach() for each in both()]


def _listed(made: Any) -> Results:
    return tuple(made) if isinstance(made, tuple) else (made,)
