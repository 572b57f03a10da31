"""What a function takes, and how a call says it: operands by position or name, attrs by name."""

from __future__ import annotations

from typing import Any

import torch

from normgen.counting import counted
from normgen.package.records import AttrRecord, Package
from normgen.runtime.calls.arguments import number, unknown
from normgen.torch.calls import Numbers, Tensors
from normgen.torch.steps import Step


class Signature:
    """The operands and the float attrs of a function, in order. A call that does not suit it is a TypeError,
    an attr out of its range a ValueError."""

    def __init__(self, package: Package, step: Step) -> None:
        self._name = package.name
        self._operands = step.operands
        self._attrs: dict[str, AttrRecord] = {attr.name: attr for attr in step.attrs}
        self._defaults = {attr.name: attr.default for attr in step.attrs}
        self._fixed = dict(package.folded)
        self._required = tuple(name for name in step.operands if name in step.direction.required)
        self._states = tuple(name for name in step.operands if step.direction.operands[name].role == "state")
        self.defaults: tuple[Any, ...] = tuple(self._defaults.values())
        # The fewest operands that a call must give by position; None where it needs a number too.
        count = 1 + max((step.operands.index(name) for name in self._required), default=-1)
        self.least = None if None in self.defaults else count

    def bind(self, operands: Tensors, named: dict[str, Any]) -> tuple[Tensors, Numbers]:
        """Operands and numbers in order."""
        if len(operands) > len(self._operands):
            count, names = len(self._operands), ", ".join(self._operands)
            raise TypeError(
                f"{self._name}() takes {counted(count, 'tensor')} ({names}) but got {len(operands)}"
            )
        given = dict(zip(self._operands, operands, strict=False))
        numbers: dict[str, Any] = dict(self._defaults)
        for name, value in named.items():
            if name in numbers:
                numbers[name] = value if type(value) is float else self._number(name, value)
            elif name in given:
                raise TypeError(f"{self._name}() got {name} twice, by position and by name")
            elif name in self._operands:
                given[name] = value
            else:
                self._refuse(name)
        for name in self._required:
            if given.get(name) is None:
                raise TypeError(f"{self._name}() needs {name}")
        for name, value in numbers.items():
            if value is None:
                raise TypeError(f"{self._name}() needs {name}, which has no default")
        for name in self._states:
            if getattr(given.get(name), "requires_grad", False):
                raise RuntimeError(
                    f"{name} is a state of {self._name} and cannot require grad: pass {name}.detach()"
                )
        return tuple([given.get(name) for name in self._operands]), tuple(numbers.values())

    def _number(self, name: str, value: Any) -> float:
        """The number that an attr is given: one element of a tensor too, as in PyTorch's own functions."""
        if isinstance(value, torch.Tensor) and value.ndim == 0 and not value.requires_grad:
            value = value.item()
        return number(self._attrs[name], value)

    def _refuse(self, name: str) -> None:
        if name in self._fixed:
            raise TypeError(
                f"{name} was fixed to {self._fixed[name]!r} when {self._name} was loaded: load it again"
            )
        raise unknown(f"{self._name}()", name, [*self._operands, *self._defaults])
