"""The code of functions."""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType


def codes(code: CodeType) -> Iterator[CodeType]:
    """A code and those of the functions and classes within it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from codes(each)
