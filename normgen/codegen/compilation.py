"""What becomes of a checked spec, stage by stage: what `api` and the commands ask the compiler for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from normgen.codegen.package import package
from normgen.codegen.strategies.cut import strategies
from normgen.codegen.strategies.registry import family_of
from normgen.ir.grad import backward
from normgen.ir.levels import Level, differentiated
from normgen.ir.program import Definition, Program
from normgen.ir.show import show_results
from normgen.locks import cached_property
from normgen.package.records import Package


class Compilation:
    """The stages of one compilation. Each is made when it is first asked for, and once.

    A stage raises `SpecError` where it takes too many steps (see `ir.limit`), or where a direction has no
    kernel yet.
    """

    def __init__(self, definition: Definition, level: Level | None = None) -> None:
        """`level`: what the definition is of, where it is one of derivatives."""
        self.definition = definition
        self.level = level

    @cached_property
    def derived(self) -> Program | None:
        """The backward, or None where nothing is differentiated."""
        return backward(self.definition) if self.definition.of else None

    @cached_property
    def differentiated(self) -> Compilation | None:
        """The level above, whose backward is the derivative of this one's: its package has kernels of that
        alone. None where there is nothing to differentiate."""
        above = differentiated(self.definition)
        return Compilation(above.definition, above) if above is not None else None

    @cached_property
    def programs(self) -> tuple[tuple[str, Program], ...]:
        """The directions that are run, by name."""
        forward = self.definition.program if self.level is None else None
        found = (("forward", forward), ("backward", self.derived))
        return tuple((name, program) for name, program in found if program is not None)

    @cached_property
    def package(self) -> Package:
        """The kernels of both directions; of a level those of its backward."""
        return package(self.definition, self.derived, forward=self.level is None)

    def plans(self) -> str:
        """Every strategy of each direction with its kernels in launch order, for `explain --emit plan`."""
        parts: list[str] = []
        for name, program in self.programs:
            found = strategies(program, self.definition, f"{program.name}_{name}")
            for strategy in found:
                if len(found) > 1:
                    parts.append(f"strategy {strategy.name}\n")
                parts += [family_of(plan).show(plan) for plan in strategy.plans]
        return "\n".join(parts)

    def module(self, version: str, forms: Sequence[str], texts: Mapping[str, tuple[str, str]]) -> str:
        """The text of the Python module. `version`: normgen's; `forms`: the lines that say which form of a
        kernel runs when; `texts`: those of such forms (see `ahead.forms.texts_taken`)."""
        from normgen.codegen.module.text import module_text

        mathematics = [(name, show_results(program)) for name, program in self.programs]
        return module_text(self.package, mathematics, version, forms, texts, self.definition.source.file)

    @property
    def command(self) -> str:
        """The command that writes the module."""
        from normgen.codegen.module.text import command_of

        return command_of(self.package)

    def one_shape(self, made: Package, version: str, options: str) -> str:
        """The text of the Python module of one shape. `made`: the package for that; `options`: what the
        command has for it."""
        from normgen.codegen.module.text import one_shape_text

        return one_shape_text(made, version, options)
