"""What `make lint` excepts from the limit of complexity was above it when the limit came, and is still."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXCEPTED = {"normgen/runtime/planning/made.py"}  # may shrink; nothing is added here
GRADE_C = 20  # branches of a function, and one


def test_exceptions_do_not_grow() -> None:
    visitors = pytest.importorskip("radon.complexity")
    line = re.search(r"^COMPLEX := (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    found = set(line[1].split(",")) if line else set()
    assert found <= EXCEPTED
    for path in found:
        blocks = visitors.cc_visit((ROOT / path).read_text(encoding="utf-8"))
        assert max(block.complexity for block in blocks) > GRADE_C, f"{path} needs no exception any more"
