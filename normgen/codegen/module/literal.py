"""Plain data as Python source, in lines that are filled."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

WIDTH = 110
_STEP = "  "  # what an inner line is indented by
# A word of a long text with what stands behind it: texts are cut before words.
_WORD = re.compile(r"\S+\s*|\s+")


def literal(value: Any, names: Mapping[str, str] | None = None, prefix: str = "") -> str:
    """Dicts, tuples, text and numbers as source; texts in `names` are written as those names.

    On one line where it fits, behind `prefix`; else short parts share lines, and a long one has its own.
    """
    return "\n".join(_lines(value, names or {}, prefix, "", ""))


def _lines(value: Any, names: Mapping[str, str], prefix: str, suffix: str, margin: str) -> list[str]:
    """The lines of a value. `suffix`: what follows it on the last one."""
    flat = margin + prefix + _flat(value, names) + suffix
    if len(flat) <= WIDTH:
        return [flat]
    if isinstance(value, str) and value not in names:
        return _text_lines(value, prefix, suffix, margin)
    if not isinstance(value, (dict, tuple)) or not value:
        return [flat]
    if isinstance(value, tuple) and len(value) == 1 and isinstance(value[0], dict):
        return _lines(value[0], names, f"{prefix}(", f",){suffix}", margin)
    if not prefix and isinstance(value, dict) and not any(isinstance(each, tuple) for each in value.values()):
        first, *rest = _inside(value, names, margin + " ")
        closed = [margin + "{" + first.strip(), *rest]
        closed[-1] = closed[-1].removesuffix(",") + "}" + suffix
        if len(closed[-1]) <= WIDTH:
            return closed
    opening, closing = ("{", "}") if isinstance(value, dict) else ("(", ")")
    return [margin + prefix + opening, *_inside(value, names, margin + _STEP), margin + closing + suffix]


def _inside(value: Any, names: Mapping[str, str], margin: str) -> Iterator[str]:
    """The parts of a dict or a tuple: as many on a line as fit, if none of them takes several; every dict has
    a line."""
    line = ""
    for name, part in _parts(value):
        lines = _lines(part, names, name, ",", margin)
        alone = len(lines) > 1 or isinstance(part, dict)
        if line and (alone or len(line) + len(lines[0]) - len(margin) >= WIDTH):
            yield line
            line = ""
        if alone:
            yield from lines
        else:
            line = f"{line} {lines[0].strip()}" if line else lines[0]
    if line:
        yield line


def _text_lines(text: str, prefix: str, suffix: str, margin: str) -> list[str]:
    """A long text as literals that Python joins, cut between words; in brackets, but for a dict's value."""
    bare, inner = bool(prefix) and prefix[-1] == " ", margin + _STEP
    out = [] if bare else [margin + prefix + "("]
    line, start = "", margin + prefix if bare else inner
    for word in _WORD.findall(text):
        if line and len(start + quoted(line + word) + suffix) > WIDTH:
            out.append(start + quoted(line))
            line, start = "", inner
        line += word
    return (
        [*out, start + quoted(line) + suffix] if bare else [*out, start + quoted(line), margin + ")" + suffix]
    )


def _flat(value: Any, names: Mapping[str, str]) -> str:
    if isinstance(value, str):
        return names[value] if "\n" in value and value in names else quoted(value)
    if not isinstance(value, (dict, tuple)):
        return repr(value)
    inside = ", ".join(name + _flat(part, names) for name, part in _parts(value))
    if isinstance(value, dict):
        return f"{{{inside}}}"
    return f"({inside},)" if len(value) == 1 else f"({inside})"


def _parts(value: Any) -> Iterable[tuple[str, Any]]:
    """The parts of a dict, each with its key as source, or of a tuple."""
    if isinstance(value, dict):
        return [(f"{quoted(name)}: ", part) for name, part in value.items()]
    return [("", part) for part in value]


def quoted(text: str) -> str:
    """A string literal with double quotes, as a formatter would choose."""
    plain = repr(text)
    if plain.startswith("'") and '"' not in plain:
        return f'"{plain[1:-1]}"'
    return plain
