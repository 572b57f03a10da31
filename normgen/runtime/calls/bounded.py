"""What is kept of calls."""

from __future__ import annotations

from typing import TypeVar

from normgen.locks import new_lock

K = TypeVar("K")
V = TypeVar("V")


class Bounded(dict[K, V]):
    """At most so many values, of which the oldest goes where there are more. Any number of threads may look
    and keep at once."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self._guard = new_lock()

    def keep(self, key: K, value: V) -> None:
        """Put a value in."""
        with self._guard:
            while len(self) >= self._most:
                del self[next(iter(self))]
            self[key] = value

    def forget(self) -> None:
        """Put all values out."""
        with self._guard:
            self.clear()
