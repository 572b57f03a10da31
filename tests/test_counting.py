"""Numbers with their nouns, and that messages have them from nowhere else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from normgen.counting import counted

PACKAGE = Path(__file__).parent.parent / "normgen"


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (1, "row", "1 row"),
        (0, "row", "0 rows"),
        (2, "row", "2 rows"),
        (1, "entry", "1 entry"),
        (3, "entry", "3 entries"),
    ],
)
def test_the_noun_agrees_with_its_number(number: int, noun: str, text: str) -> None:
    assert counted(number, noun) == text


def test_no_message_makes_a_plural_by_itself() -> None:
    plurals = re.compile(r"""\{['"]e?s['"] if """)
    for path in sorted(PACKAGE.rglob("*.py")):
        assert not plurals.search(path.read_text()), path
