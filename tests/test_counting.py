"""Numbers with their nouns, and that messages have them from nowhere else."""

from __future__ import annotations

import re
from pathlib import Path

from normgen.counting import counted

PACKAGE = Path(__file__).parent.parent / "normgen"


def test_the_noun_agrees_with_its_number() -> None:
    found = [counted(number, "entry") for number in range(3)] + [counted(2, "row")]
    assert found == ["0 entries", "1 entry", "2 entries", "2 rows"]


def test_no_message_makes_a_plural_by_itself() -> None:
    plurals = re.compile(r"""\{['"]e?s['"] if """)
    for path in sorted(PACKAGE.rglob("*.py")):
        assert not plurals.search(path.read_text()), path
