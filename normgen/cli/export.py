"""`normgen tune --export`: add the schedules found to a table like those that ship with normgen."""

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
    """The lines of a table in a file; none if the file does not exist. Refuses a file that is not a table."""
    from normgen.launching.table import parsed

    if path.is_dir():
        raise click.BadParameter(
            f"{path} is a directory: name a file in it, such as sm_90.jsonl", param_hint=_OPTION
        )
    if not path.parent.is_dir():
        raise click.BadParameter(f"there is no directory {path.parent}: create it first", param_hint=_OPTION)
    try:
        return parsed(path.read_text(encoding="utf-8")) if path.exists() else []
    except OSError as fault:
        raise files.Refused(f"cannot read {path}: {fault.strerror}") from fault
    except ValueError as fault:
        why = "it is not text" if isinstance(fault, UnicodeDecodeError) else fault
        message = f"{path} is not a table of schedules ({why}): name another file"
        raise click.BadParameter(message, param_hint=_OPTION) from fault


def require_architecture(path: Path, arch: str) -> None:
    """Refuse a file named after another architecture than the GPU's."""
    own = arch.rstrip("af")
    if _ARCH.fullmatch(path.stem) and path.stem != own:
        raise click.BadParameter(
            f"{path} is named after another architecture: for this GPU, name it {own}.jsonl",
            param_hint=_OPTION,
        )


def export(path: Path, norm: str, device: Machine, found: Sequence[Outcome]) -> None:
    """Add the schedules found to the table in a file."""
    from normgen.launching.table import written
    from normgen.measure.lines import lines, with_line

    table = table_in(path)
    for outcome in found:
        for each, line in lines(outcome, norm, device.name):
            table = with_line(table, each.kernel, line)
    if not table:
        say(f"nothing to write to {path}: tables have no lines for the kernels of this norm")
        return
    files.write((files.Output(path.name, written(table).encode()),), path.parent, force=True)
