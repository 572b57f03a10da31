"""Where text goes: data to stdout, everything said about it to stderr. Colour only on a terminal."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, TextIO

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from normgen.diagnostics import Diagnostic, Source


def colored(stream: TextIO) -> bool:
    """Whether `stream` takes colour: NO_COLOR and TERM=dumb say no, FORCE_COLOR yes, else a terminal."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(os.environ.get("FORCE_COLOR")) or stream.isatty()


def console(stream: TextIO) -> Console:
    """A rich console on `stream`. Text from specs is printed as it is: no markup, no emoji."""
    from rich.console import Console

    # In a file or a pipe a table is as wide as it needs: there is no terminal to break its lines for.
    width = None if stream.isatty() else 200
    return Console(
        file=stream, no_color=not colored(stream), markup=False, highlight=False, emoji=False, width=width
    )


def say(text: str) -> None:
    """One line about what happened, to stderr."""
    click.echo(text, err=True)


def show_diagnostics(diagnostics: Sequence[Diagnostic], source: Source) -> None:
    """Print diagnostics to stderr."""
    from normgen.diagnostics import render_all

    if diagnostics:
        say(render_all(diagnostics, source, colored(sys.stderr)))
