"""Numbers with their nouns, in messages and in what commands print."""

from __future__ import annotations

_IRREGULAR = {"axis": "axes", "entry": "entries", "strategy": "strategies"}


def counted(number: int, noun: str) -> str:
    """`1 row`, `2 rows`: a number with its noun in the right form."""
    return f"{number} {noun if number == 1 else _IRREGULAR.get(noun, noun + 's')}"


def bytes_text(count: int) -> str:
    """`268 MB`, `8.2 KB`, `12 B`: a number of bytes in the unit that suits it."""
    for unit, size in (("MB", 1e6), ("KB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}" if count < 100 * size else f"{count / size:.0f} {unit}"
    return f"{count} B"
