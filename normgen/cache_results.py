"""What the compiler's own steps make, kept in the cache: a parser's tables, templates as code, packages.

It is all made again in a moment, so that nobody is told where the cache cannot be used.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from normgen.cache import digest, usual_cache

if TYPE_CHECKING:
    from importlib.abc import Traversable


def kept(kind: str, parts: tuple[str, ...], build: Callable[[], bytes]) -> bytes:
    """What `build()` makes: made once for all processes of this user, where they have a cache in common.

    `kind`: a word for what it is, the suffix of its file. `parts`: all that it depends on, beside the version
    of Python.
    """
    found = usual_cache()
    if found is None:
        return build()
    return found.get_or_build_bytes(digest(kind, sys.version, *parts), build, f".{kind}")


@cache
def sources() -> str:
    """A digest of all that normgen is made of: its code, its templates, its grammar."""
    total = hashlib.sha256()
    for name, file in _files(resources.files("normgen"), ""):
        content = file.read_bytes()
        total.update(f"{name} {len(content)}\n".encode())
        total.update(content)
    return total.hexdigest()


def _files(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        name = f"{prefix}/{entry.name}"
        if entry.is_file():
            yield name, entry
        elif entry.name != "__pycache__":
            yield from _files(entry, name)
