"""The compiler's stages as the commands call them, with the warnings of a spec said on the way."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from normgen.cli.console import show_diagnostics
from normgen.cli.options import read_spec

if TYPE_CHECKING:
    from normgen.ir.program import Definition, Program
    from normgen.package.records import Package


def checked(spec: str, attrs: dict[str, object]) -> Definition:
    """The checked definition that SPEC and `--attr` name; its warnings go to stderr."""
    from normgen.dsl import load_definition

    definition = load_definition(read_spec(spec), attrs)
    show_diagnostics(definition.warnings, definition.source)
    if spec == "-":
        # The text that comes out is the same as from a file of the norm's name.
        named = replace(definition.source, name=f"{definition.program.name}.norm")
        definition = replace(definition, source=named)
    return definition


def derivative(definition: Definition) -> Program | None:
    """The backward program, or None where nothing is differentiated."""
    from normgen.ir.grad import backward

    return backward(definition) if definition.of else None


def packaged(definition: Definition) -> Package:
    """The kernels of both directions; `SpecError` where there is no kernel family for them yet."""
    from normgen.codegen.package import package

    return package(definition)
