"""Norms of sums over ranks: each rank has a part of an operand, and parts are summed before the norm."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch

from normgen.runtime.ranks.agreement import Message, agree, message
from normgen.runtime.ranks.group import RankCall, run_alone
from normgen.torch.autograd import watched
from normgen.torch.function import NormFunction
from normgen.torch.operators import NAMESPACE, has_batch, recorded
from normgen.torch.ranks.group import ProcessRanks, ranks_by_name
from normgen.torch.ranks.order import stand_in_line

# Bytes of what all ranks have together, up to which each adds that up by itself, in float32 and in the order
# of ranks, so that all have the same bits. Above, ranks share the work, and add in the type of the tensor.
# (Peer memory, which add up in the same way, have a limit of their own.)
_GATHERED = 1 << 20
_KEPT = 1024  # shapes and types


def _sum(part: torch.Tensor, group: str) -> torch.Tensor:
    """The sum of the tensors of all ranks of a group, on each rank."""
    ranks = ranks_by_name(group)
    ranks.meet("a sum of parts")
    told = _message(tuple(part.shape), part.dtype)
    made: torch.Tensor = run_alone(_summed(part.detach(), ranks, told), ranks)
    return made


@lru_cache(maxsize=_KEPT)
def _message(shape: tuple[int, ...], dtype: torch.dtype) -> Message:
    return message({"shape": f"adds up {shape}", "type": f"adds up {dtype}"})


def _summed(part: torch.Tensor, ranks: ProcessRanks, told: Message) -> RankCall:
    yield from agree("a sum", told)
    found = ranks.summed(part.contiguous())
    if found is not None:
        return found
    if part.numel() * part.element_size() * ranks.size > _GATHERED:
        return ranks.added(part)
    wide = torch.promote_types(part.dtype, torch.float32)
    parts = ranks.gather(part.contiguous())
    total = parts[0].to(wide)
    for each in parts[1:]:
        total = total + each
    return total.to(part.dtype)


def _imagined(part: torch.Tensor, group: str) -> torch.Tensor:
    return torch.empty_like(part, memory_format=torch.contiguous_format)


def _gradient(ctx: Any, cotangent: torch.Tensor) -> tuple[torch.Tensor, None]:
    return cotangent, None  # every rank has the whole one already


_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")
_LIBRARY.define("sum_over_ranks(Tensor part, str group) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
_LIBRARY.impl("sum_over_ranks", _sum, "CompositeExplicitAutograd")
_NAME = f"{NAMESPACE}::sum_over_ranks"
torch.library.register_fake(_NAME, _imagined, lib=_LIBRARY)
torch.library.register_autograd(_NAME, _gradient, lib=_LIBRARY)
sum_over_ranks: Any = torch.ops.normgen.sum_over_ranks.default
stand_in_line(sum_over_ranks, _LIBRARY, lambda part, group: group)


class _Recorded(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(_: Any, part: torch.Tensor, group: str) -> torch.Tensor:
        return _sum(part, group)

    @staticmethod
    def backward(ctx: Any, cotangent: Any) -> tuple[Any, None]:
        return _gradient(ctx, cotangent)


def _added(part: torch.Tensor, group: str) -> torch.Tensor:
    """The sum of what the ranks of a group have: by the operator where somebody looks."""
    if torch.compiler.is_compiling() or watched((part,)) or has_batch((part,)):
        return sum_over_ranks(part, group)
    return _Recorded.apply(part, group) if recorded((part,)) else _sum(part, group)


class SummedFunction:
    """A norm of sums over ranks: each rank of a group passes its part of the named operands. The gradient of
    such an operand is whole, the same on all ranks. Everything else is the same as for `function`."""

    def __init__(self, function: NormFunction, groups: Mapping[str, str]) -> None:
        """`groups`: the names of the operands, and of the group of each."""
        self.function = function
        self.groups = dict(groups)
        self.__name__, self.__doc__ = function.__name__, function.__doc__
        self.__signature__ = function.__signature__
        self._operands = function.step.operands
        for name in groups:
            if name not in self._operands:
                known = ", ".join(self._operands)
                raise ValueError(f"partial: {function.__name__} has no operand {name!r}; it has {known}")

    @property
    def backend(self) -> dict[str, str]:
        """For each operand that ranks have parts of, how they exchange these on GPUs, in the terms of
        `SpreadFunction.backend`."""
        return {name: ranks_by_name(group).backend for name, group in self.groups.items()}

    def __call__(self, *operands: torch.Tensor | None, **named: Any) -> Any:
        """The output, or a named tuple of outputs."""
        names = (*self._operands, *[""] * len(operands))  # too many, of which the function complains
        placed = [self._whole(name, each) for name, each in zip(names, operands, strict=False)]
        return self.function(*placed, **{name: self._whole(name, each) for name, each in named.items()})

    def _whole(self, name: str, value: Any) -> Any:
        group = self.groups.get(name)
        return value if group is None or value is None else _added(value, group)

    def __reduce__(self) -> Any:
        return SummedFunction, (self.function, self.groups)

    def __repr__(self) -> str:
        how = ", ".join(f"{name} by {backend}" for name, backend in self.backend.items())
        return f"<{self.function!r} of sums over ranks: {how}>"
