"""How the commands begin: SPEC is read and checked, and the warnings of a spec are said on the way."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from normgen.cli.console import show_diagnostics
from normgen.cli.options import read_spec

if TYPE_CHECKING:
    from normgen.codegen.compilation import Compilation


def checked(spec: str, attrs: dict[str, object]) -> Compilation:
    """The compilation of the definition that SPEC and `--attr` name; its warnings go to stderr."""
    from normgen.codegen.compilation import Compilation
    from normgen.dsl import load_definition

    definition = load_definition(read_spec(spec), attrs)
    show_diagnostics(definition.warnings, definition.source)
    if spec == "-":
        # The text that comes out is the same as from a file of the norm's name.
        named = replace(definition.source, name=f"{definition.program.name}.norm")
        definition = replace(definition, source=named)
    return Compilation(definition)
