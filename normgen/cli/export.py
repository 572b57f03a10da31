"""`normgen tune --export`: what was found, as lines of a table such as normgen comes with."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from normgen.cli import files
from normgen.cli.console import say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from normgen.launching.machine import Machine
    from normgen.launching.table import Line
    from normgen.measure.trials import Outcome

_OPTION = "--export"
_ARCH = re.compile(r"sm_\d+")


def table_in(path: Path) -> list[Line]:
    """The lines of a table that a file holds; none where there is no file. Refuses what is no table."""
    from normgen.launching.table import parsed

    if path.is_dir():
        raise click.BadParameter(
            f"{path} is a folder: name a file in it, such as sm_90.jsonl", param_hint=_OPTION
        )
    if not path.parent.is_dir():
        raise click.BadParameter(f"there is no folder {path.parent}: make it first", param_hint=_OPTION)
    try:
        return parsed(path.read_text(encoding="utf-8")) if path.exists() else []
    except OSError as fault:
        raise files.Refused(f"cannot read {path}: {fault.strerror}") from fault
    except ValueError as fault:
        why = "it is no text" if isinstance(fault, UnicodeDecodeError) else fault
        message = f"{path} is no table of schedules: {why}; name another file, or a new one"
        raise click.BadParameter(message, param_hint=_OPTION) from fault


def require_architecture(path: Path, arch: str) -> None:
    """Refuse a file that is named after another architecture than that of the GPU."""
    own = arch.rstrip("af")
    if _ARCH.fullmatch(path.stem) and path.stem != own:
        raise click.BadParameter(
            f"{path} is named after another GPU than this one: name a file {own}.jsonl", param_hint=_OPTION
        )


def export(path: Path, norm: str, device: Machine, found: Sequence[Outcome]) -> None:
    """Put what was found into the table in a file. What that cannot take is said."""
    from normgen.launching.table import written
    from normgen.measure.lines import OtherBits, lines, with_line

    table = table_in(path)
    for outcome in found:
        for each, line in lines(outcome, norm, device.name):
            try:
                table = with_line(table, each.kernel, line)
            except OtherBits as fault:
                say(f"{each.kernel.name} is not added to {path}: {fault}; remove that line to replace it")
    if not table:
        say(f"nothing to write to {path}: kernels of this norm have no lines in tables")
        return
    files.write((files.Output(path.name, written(table).encode()),), path.parent, force=True)
