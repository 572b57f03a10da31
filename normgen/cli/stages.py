"""How commands begin: check SPEC, and print its warnings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from normgen.cli.console import say, show_diagnostics
from normgen.cli.options import STDIN

if TYPE_CHECKING:
    from normgen.codegen.compilation import Compilation
    from normgen.diagnostics import Source


def checked(source: Source, attrs: dict[str, object]) -> Compilation:
    """The compilation of a spec with what `--attr` gives; its warnings go to stderr."""
    from normgen.codegen.compilation import Compilation
    from normgen.dsl import load_definition

    definition = load_definition(source, attrs)
    show_diagnostics(definition.warnings, definition.source)
    if source.name == STDIN:
        # The output is the same as from a file with the name of the norm.
        named = replace(definition.source, name=f"{definition.program.name}.norm")
        definition = replace(definition, source=named)
    return Compilation(definition)


@contextmanager
def verifying() -> Iterator[None]:
    """For code that compiles kernels on the host, so that no broken text is written: needs no compiler."""
    from normgen.errors import ToolchainMissing

    try:
        yield
    except ToolchainMissing as missing:
        say(f"the kernels are written without being compiled first: {missing}")
