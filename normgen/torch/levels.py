"""From a norm to its steps, and to those of its derivatives of any order, compiled when first asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING

from normgen import bundled
from normgen.diagnostics import Source, SpecError
from normgen.locks import cached_property, new_reentrant_lock
from normgen.package.direction import Direction, directions
from normgen.package.records import Package
from normgen.runtime.norm import Norm
from normgen.torch.local import LocalStep
from normgen.torch.operators import attach
from normgen.torch.steps import Derivative, Outline, Step

if TYPE_CHECKING:
    from normgen.codegen.compilation import Compilation
    from normgen.ir.program import Program


def first_step(norm: Norm) -> LocalStep:
    """The forward of a norm."""
    package = norm.package
    found = _LocalLevel(operator_name(package), 1, norm, lambda: compilation_of(package)).first
    assert isinstance(found, LocalStep)
    return found


def compilation_of(package: Package) -> Compilation:
    """The stages of the compilation that a package came from, anew from its text."""
    from normgen.codegen.compilation import Compilation
    from normgen.dsl import load_definition

    source = Source(f"{package.name}.norm", package.spec)
    return Compilation(load_definition(source, dict(package.folded)))


class Level:
    """A norm, or the derivatives of one as a norm, whose backward is the derivative of `below`.

    `order`: of that derivative. A lock keeps threads that ask at once from compiling, and registering, twice.
    """

    def __init__(
        self, name: str, order: int, package: Package, compilation: Callable[[], Compilation]
    ) -> None:
        self.name = name
        self.order = order
        self.package = package
        self._compile = compilation
        self._forward, self._backward = directions(package)
        self._lock = new_reentrant_lock()

    @cached_property
    def compilation(self) -> Compilation:
        """The stages of its compilation, anew from its text: a package has no expressions."""
        with self._lock:
            return self._compile()

    @cached_property
    def first(self) -> Step:
        """The forward, which a level of derivatives has no kernels for."""

        def program() -> Program:
            return self.compilation.definition.program

        return self._step(f"{self.name}_forward", self._forward, program, self._first_derivative)

    def _first_derivative(self) -> Derivative | None:
        forward, backward = self._forward, self._backward
        # A spec may differentiate what it does not return: then not every gradient can come in.
        if backward is None or not all(
            backward.operands[name].source in forward.results for name in backward.mentioned
        ):
            return None
        results = {name: name for name in forward.results}
        return self.derivative(self.first, results, {})

    def derivative(
        self, below: Step, results: Mapping[str, str], operands: Mapping[str, str]
    ) -> Derivative | None:
        """The backward as the derivative of the step below. `results`, `operands`: what that calls them."""
        direction = self._backward
        if direction is None:
            return None

        def program() -> Program:
            derived = self.compilation.derived
            assert derived is not None
            return derived

        suffix = "" if self.order == 1 else f"_{self.order}"
        step = self._step(
            f"{self.name}_backward{suffix}", direction, program, lambda: self._above(step), self._extra()
        )
        attach(step)
        taken = []
        for name in step.operands:
            record = direction.operands[name]
            if record.role == "cotangent" and record.source:
                taken.append(("cotangent", results[record.source]))
            else:
                own = operands.get(name, name)
                taken.append(("operand" if own in below.operands else "result", own))
        gradients = {operands.get(r.source, r.source): name for name, r in direction.results.items()}
        return Derivative(step, tuple(taken), gradients)

    def _above(self, step: Step) -> Derivative | None:
        """The derivative of the backward."""
        made = self.compilation.differentiated
        if made is None:
            return None
        assert made.level is not None
        above = self._level_of(made)
        return above.derivative(step, made.level.gradients, made.level.cotangents)

    def _extra(self) -> tuple[str, ...]:
        """What the backward does not read and its derivative may: a save counts there as the function of
        operands that it is."""
        assert self._backward is not None
        records, read = self._backward.operands, self._backward.reads
        unread = tuple(name for name, record in records.items() if record.role == "save" and name not in read)
        made_of = self._backward.record.made_of
        return (*(name for name in records if name in made_of and name not in read), *unread)

    def _step(
        self,
        name: str,
        direction: Direction,
        program: Callable[[], Program],
        derive: Callable[[], Derivative | None],
        extra: tuple[str, ...] = (),
    ) -> Step:
        derived: list[Derivative | None] = []

        def derive_once() -> Derivative | None:
            with self._lock:
                if not derived:
                    derived.append(derive())
                return derived[0]

        return self._made(Outline(name, self.package, direction, program, derive_once, extra))

    def _made(self, outline: Outline) -> Step:
        """The step of a direction of this level."""
        raise NotImplementedError

    def _level_of(self, made: Compilation) -> Level:
        """The level above."""
        raise NotImplementedError


class _LocalLevel(Level):
    """A level that kernels compute of a rank's own tensors."""

    def __init__(self, name: str, order: int, norm: Norm, compilation: Callable[[], Compilation]) -> None:
        super().__init__(name, order, norm.package, compilation)
        self.norm = norm

    def _made(self, outline: Outline) -> LocalStep:
        return LocalStep(outline, self.norm, self.channels_last)

    def _level_of(self, made: Compilation) -> Level:
        return _LocalLevel(self.name, self.order + 1, Norm(made.package), lambda: made)

    def channels_last(self) -> Norm | None:
        """The same for tensors whose channels lie innermost; None where it has no channels, or no kernels for
        that."""
        from normgen.codegen.compilation import Compilation
        from normgen.ir.channels_last import channels_last

        made = self.compilation
        definition = channels_last(made.definition)
        if definition is None:
            return None
        try:
            return Norm(Compilation(definition, made.level).package)
        except SpecError:
            return None


def operator_name(package: Package) -> str:
    """The name of a norm's operators: its own, and the choices that it was compiled for; that of a spec which
    does not ship with normgen tells its text too, since others may have its name."""
    parts = [package.name]
    for name, value in package.folded:
        parts += [name, str(value).replace(".", "p").replace("-", "m")]
    shipped = bundled.read(package.name)
    if shipped is None or shipped.text != package.spec:
        parts.append(blake2b(package.spec.encode(), digest_size=4).hexdigest())
    return "_".join(parts)
