"""From a norm to its steps, and to those of its derivatives of any order."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from normgen.codegen.compilation import Compilation
from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.package.direction import Direction, directions
from normgen.package.records import Package
from normgen.runtime.norm import Norm
from normgen.torch.float64 import Interpreter
from normgen.torch.steps import Derivative, Step


def first_step(norm: Norm) -> Step:
    """The forward of a norm."""
    return _Spec(norm).forward


class _Spec:
    """A norm with the definition that it was compiled from, which its package holds as text."""

    def __init__(self, norm: Norm) -> None:
        self.norm = norm
        self.name = operator_name(norm.package)
        self._directions = directions(norm.package)

    @cached_property
    def compilation(self) -> Compilation:
        package = self.norm.package
        source = Source(f"{package.name}.norm", package.spec)
        return Compilation(load_definition(source, dict(package.folded)))

    @cached_property
    def forward(self) -> Step:
        return self._step(self._directions[0], self._backward)

    def _backward(self) -> Derivative | None:
        forward, direction = self._directions
        # A spec may differentiate what it does not return: then no gradient can come in.
        if direction is None or not any(
            direction.operands[name].source in forward.results for name in direction.mentioned
        ):
            return None
        return derivative_of(forward, self._step(direction, lambda: None))

    def _step(self, direction: Direction, derive: Callable[[], Derivative | None]) -> Step:
        def interpreter() -> Interpreter:
            made = self.compilation
            program = made.definition.program if direction.name == "forward" else made.derived
            assert program is not None
            return Interpreter(direction, program)

        return Step(f"{self.name}_{direction.name}", self.norm, direction, interpreter, derive)


def derivative_of(forward: Direction, step: Step) -> Derivative:
    """The backward of a norm as the derivative of its forward."""
    operands = []
    for name in step.operands:
        record = step.direction.operands[name]
        kind = {"cotangent": "cotangent", "saved": "result"}.get(record.role, "operand")
        operands.append((kind, record.source if kind == "cotangent" else name))
    gradients = {record.source: name for name, record in step.direction.results.items()}
    return Derivative(step, tuple(operands), gradients)


def operator_name(package: Package) -> str:
    """The name of a norm's operators: its own, and the choices that it was compiled for."""
    parts = [package.name]
    for name, value in package.folded:
        parts += [name, str(value).replace(".", "p").replace("-", "m")]
    return "_".join(parts)
