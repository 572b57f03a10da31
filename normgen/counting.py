"""Numbers with their nouns, in messages and in what commands print."""

from __future__ import annotations

_IRREGULAR = {"axis": "axes", "entry": "entries", "strategy": "strategies"}


def counted(number: int, noun: str) -> str:
    """`1 row`, `2 rows`: a number with its noun in the right form."""
    return f"{number} {noun if number == 1 else _IRREGULAR.get(noun, noun + 's')}"
