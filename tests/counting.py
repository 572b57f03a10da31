"""Calls of functions, as a measure of host time that no busy machine disturbs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import normgen

_PACKAGE = str(Path(normgen.__file__).parent)


def entered(work: Callable[[], object]) -> int:
    """How many functions of the package are called."""
    count = 0

    def note(frame: Any, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call" and frame.f_code.co_filename.startswith(_PACKAGE)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count
