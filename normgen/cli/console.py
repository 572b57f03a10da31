"""Where text goes: data to stdout, messages to stderr. Color only on a terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

import click

from normgen.cli.wrap import wrapped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from normgen.diagnostics import Diagnostic, Source


SECONDS_BETWEEN_LINES = 10


def colored(stream: TextIO) -> bool:
    """Whether to write color to `stream`: NO_COLOR and TERM=dumb turn it off, FORCE_COLOR on, else a
    terminal has it."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(os.environ.get("FORCE_COLOR")) or stream.isatty()


def console(stream: TextIO) -> Console:
    """A rich console on `stream`. Text from specs is printed verbatim: no markup, no emoji."""
    from rich.console import Console

    # In a file or a pipe no terminal limits the width of a table.
    width = None if stream.isatty() else 200
    return Console(
        file=stream, no_color=not colored(stream), markup=False, highlight=False, emoji=False, width=width
    )


def progress_lines(clock: Callable[[], float] = time.monotonic) -> Callable[[int, int, str], None]:
    """`advance(done, total, text)` prints a line every few seconds, the first one after some."""
    last = clock()

    def advance(done: int, total: int, text: str) -> None:
        nonlocal last
        if clock() - last >= SECONDS_BETWEEN_LINES:
            last = clock()
            say(f"{done} of {total}: {text}")

    return advance


@contextmanager
def progress_bar() -> Iterator[Callable[[int, int, str], None]]:
    """`advance(done, total, text)` moves a bar on stderr; if that is not a terminal, it prints lines."""
    if not sys.stderr.isatty():
        yield progress_lines()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=console(sys.stderr), transient=True) as progress:
        task = progress.add_task("", total=None)

        def advance(done: int, total: int, text: str) -> None:
            progress.update(task, completed=done, total=total, description=text)

        yield advance


def say(text: str) -> None:
    """Print one line to stderr; on a terminal it is wrapped."""
    click.echo(wrapped(text) if sys.stderr.isatty() else text, err=True)


def ask_for_a_report() -> None:
    """Print to stderr that there is a bug in normgen, and what a report of it needs."""
    import platform

    from normgen import __version__

    here = f"normgen {__version__}, Python {platform.python_version()}, {platform.platform()}"
    say("internal error: this is a bug in normgen, not in your spec")
    say(f"please report it with the lines above, your command and your spec ({here})")


def show_diagnostics(diagnostics: Sequence[Diagnostic], source: Source) -> None:
    """Print diagnostics to stderr."""
    from normgen.diagnostics import render_all

    if diagnostics:
        click.echo(render_all(diagnostics, source, colored(sys.stderr)), err=True)
