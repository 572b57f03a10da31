"""How much work the compilation of a spec may be: steps counted, not time, so that every machine refuses the
same specs.

A step is a node made, a factor of a product, a node visited. Whoever compiles opens a count, `counted`, and
everything below it spends from that; where none is open, nothing is limited.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

UNLIMITED = 1 << 62


class TooMuchWork(Exception):
    """A count has reached its limit."""


@dataclass(slots=True)
class Work:
    """A count of steps, and how many there may be."""

    limit: int = UNLIMITED
    done: int = 0

    def spend(self, steps: int) -> None:
        """Counts steps; raises `TooMuchWork` beyond the limit."""
        self.done += steps
        if self.done > self.limit:
            raise TooMuchWork(f"more than {self.limit} steps")


_CURRENT: ContextVar[Work] = ContextVar("work")


@contextmanager
def counted(limit: int = UNLIMITED) -> Iterator[Work]:
    """A count for what is done within; what it comes to counts for the count around it too."""
    outer = current()
    work = Work(limit)
    token = _CURRENT.set(work)
    try:
        yield work
    finally:
        _CURRENT.reset(token)
        outer.done += work.done


def current() -> Work:
    """The innermost open count; one of nobody's where there is none."""
    return _CURRENT.get(None) or Work()


def spend(steps: int) -> None:
    """Counts steps of the innermost open count."""
    if (work := _CURRENT.get(None)) is not None:
        work.spend(steps)
