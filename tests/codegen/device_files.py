"""Device functions as other files have them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from normgen.package import device_functions


def read_anew(monkeypatch: pytest.MonkeyPatch, file_text: Callable[[str], str]) -> None:
    """Have the texts of files be those that `file_text` gives for their names."""
    monkeypatch.setattr(device_functions, "file_text", file_text)
    monkeypatch.setattr(device_functions, "declarations", cache(device_functions.declarations.__wrapped__))
