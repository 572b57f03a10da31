"""Locks that are open in a forked child: a thread that held one does not exist there to release it."""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _thread import RLock
    from functools import cached_property as cached_property

_MADE: weakref.WeakSet[Any] = weakref.WeakSet()


def new_lock() -> threading.Lock:
    """A lock."""
    made = threading.Lock()
    _MADE.add(made)
    return made


def new_reentrant_lock() -> RLock:
    """A lock that its owner may take again."""
    made = threading.RLock()
    _MADE.add(made)
    return made


if not TYPE_CHECKING:

    class cached_property(functools.cached_property):
        """That of functools, which holds a lock before Python 3.12."""

        def __init__(self, make: Callable[[Any], Any]) -> None:
            super().__init__(make)
            if sys.version_info < (3, 12):
                _MADE.add(self.lock)


def _open() -> None:
    for each in list(_MADE):
        each._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_open)
