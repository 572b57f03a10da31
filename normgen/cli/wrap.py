"""Wrap lines to the terminal, between words only."""

from __future__ import annotations

import re
import shutil
import textwrap

NARROWEST, WIDEST = 40, 100

_TOGETHER = re.compile(r"\[[^\[\]]*\]")  # axes: the spaces in `[B, C, ...]` break no line
_JOINT = "\N{NO-BREAK SPACE}"


def width() -> int:
    """Columns of a line: those of the terminal or of COLUMNS, else 80; 100 at most."""
    return max(NARROWEST, min(WIDEST, shutil.get_terminal_size((80, 24)).columns))


def wrapped(text: str, columns: int | None = None, further: int = 4) -> str:
    """Every line of `text` wrapped to `columns`, by default the width of the terminal.

    Continuation lines are indented by `further` more. A word that is longer than a line stays whole.
    """
    columns = columns or width()
    return "".join(_wrapped(line, columns, further) for line in text.splitlines(keepends=True))


def _wrapped(line: str, columns: int, further: int) -> str:
    body = line.rstrip("\n")
    if len(body) <= columns:
        return line
    indent = body[: len(body) - len(body.lstrip())]
    joined = _TOGETHER.sub(lambda found: found[0].replace(" ", _JOINT), body.lstrip())
    broken = textwrap.wrap(
        joined,
        columns,
        initial_indent=indent,
        subsequent_indent=indent + " " * further,
        break_long_words=False,
        break_on_hyphens=False,
    )
    # textwrap takes only ASCII's white space for places to break.
    return "\n".join(broken).replace(_JOINT, " ") + line[len(body) :]
