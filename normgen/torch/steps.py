"""A direction of a norm as a function of tensors: what it takes and returns, and how it runs.

A norm's forward is a step, its backward another, and the derivative of each step is a step again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from normgen.package.direction import Direction
from normgen.runtime.norm import Norm
from normgen.torch.float64 import Interpreter

Tensors = Sequence["torch.Tensor | None"]
Numbers = tuple[float, ...]
Wanted = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Derivative:
    """A step's gradients as a step, and what its operands and results are to the one that it is of.

    `operands`: for each operand of `step`, whether it is a cotangent, an operand or a result of the other,
    and its name there. `gradients`: the result of `step` for each operand that has a gradient.
    """

    step: Step
    operands: tuple[tuple[str, str], ...]  # ("cotangent" | "operand" | "result", name)
    gradients: dict[str, str]


class Step:
    """One direction of a norm.

    Tensors come in the order of `operands`, None for those left out; numbers in that of `attrs`; results in
    that of `results`, outputs before saves, None for those that are not wanted. `updated`: operands that are
    written. `kept`: results that the derivative reads.
    """

    def __init__(
        self,
        name: str,
        norm: Norm,
        direction: Direction,
        interpreter: Callable[[], Interpreter],
        derive: Callable[[], Derivative | None],
    ) -> None:
        """`derive`: makes the derivative, None where there is none, when it is first asked for."""
        self.name = name
        self.norm = norm
        self.direction = direction
        self.attrs = norm.package.attrs
        self.operands = direction.reads
        self.results = tuple(direction.results)
        self.outputs = tuple(n for n, record in direction.results.items() if record.role != "save")
        self.updated = tuple(name for name in self.operands if name in direction.updated)
        self.operator: Any = None  # once it is registered
        self._interpreter = interpreter
        self._derive = derive

    def derive(self) -> Derivative | None:
        """The derivative by the operands; None where there is none."""
        return self._derivative

    @cached_property
    def _derivative(self) -> Derivative | None:
        return self._derive()

    @cached_property
    def kept(self) -> frozenset[str]:
        derivative = self._derivative
        operands = derivative.operands if derivative is not None else ()
        return frozenset(name for kind, name in operands if kind == "result")

    @cached_property
    def interpreter(self) -> Interpreter:
        """The same in float64."""
        return self._interpreter()

    def masked(self, mask: Sequence[bool]) -> Wanted:
        """The results that a mask names."""
        return tuple([name for name, wanted in zip(self.results, mask, strict=True) if wanted])

    def run(self, tensors: Tensors, numbers: Numbers, wanted: Wanted) -> tuple[Any, ...]:
        """The results, computed where the tensors are: by kernels, or in float64 by the program itself.
        Nothing is recorded."""
        given = [tensor if tensor is None else tensor.detach() for tensor in tensors]
        if any(tensor is not None and tensor.dtype is torch.float64 for tensor in given):
            return self._interpreted(given, numbers, wanted)
        named: dict[str, Any] = {attr.name: number for attr, number in zip(self.attrs, numbers, strict=True)}
        if self.direction.name == "forward":
            return tuple(self.norm.forward(*given, save=len(wanted) > len(self.outputs), **named))
        sources = [self.direction.results[name].source for name in wanted]
        return tuple(self.norm.backward(*given, wrt=sources, **named))

    def _interpreted(self, tensors: Tensors, numbers: Numbers, wanted: Wanted) -> tuple[Any, ...]:
        given = {
            name: tensor for name, tensor in zip(self.operands, tensors, strict=True) if tensor is not None
        }
        for name, tensor in given.items():
            if tensor.device.type != "cpu":
                raise TypeError(
                    f"{name} is on {tensor.device} in a call with float64 operands, which kernels do not "
                    f"take: cast them to torch.float32, or move all operands to the CPU"
                )
        scalars = {attr.name: number for attr, number in zip(self.attrs, numbers, strict=True)}
        return self.interpreter.run(given, scalars, wanted)
