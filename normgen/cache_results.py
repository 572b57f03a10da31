"""Results of the compiler's steps, kept in the cache: templates as code, packages, modules.

All of them are quickly computed again, so a cache that cannot be used is not reported.
"""

from __future__ import annotations

import hashlib
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from normgen.cache import digest, usual_cache

if TYPE_CHECKING:
    from importlib.abc import Traversable

    from normgen.diagnostics import Source

# Types of attr values that their text says all of.
_PLAIN = (bool, int, float, str)


def kept(kind: str, parts: tuple[str, ...], build: Callable[[], bytes]) -> bytes:
    """The result of `build()`, computed once for all processes of this user that share a cache.

    `kind`: the kind of result, which is the suffix of its file. `parts`: everything that it depends on,
    except the version of Python.
    """
    found = usual_cache()
    if found is None:
        return build()
    return found.get_or_build_bytes(digest(kind, sys.version, *parts), build, f".{kind}")


def result_of(
    kind: str, source: Source, attrs: Mapping[str, object], parts: tuple[str, ...], make: Callable[[], Any]
) -> Any:
    """A result of the compiler for a spec. `kind`: a word for it; `parts`: what it depends on besides."""
    if any(type(value) not in _PLAIN for value in attrs.values()):
        return make()
    given = (source.name, source.text, repr(sorted(attrs.items())), *parts)
    # As safe as kernels are, which lie in the same folder: nobody else may write there.
    return pickle.loads(kept(kind, (sources(), *given), lambda: pickle.dumps(make())))


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
