"""The device functions that kernel texts include: the `.cuh` files of `templates/device`.

A text names what it includes, `#include "normgen/team.cuh"`, and `inlined` puts the files in place of these
lines. Whoever compiles a text does that first: so nvcc, NVRTC and the host's compiler need no folder to look
in, and the key of a binary, which is of the whole text, covers what was included.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterable, Iterator
from functools import cache

_FOLDER = "normgen/"
_INCLUDE = re.compile(rf'^#include "{_FOLDER}([^"]+)"\n', re.MULTILINE)
_ONCE = "#pragma once\n"


def inlined(text: str) -> str:
    """The text with device functions in place of the lines that include them: each file once, after all that
    it includes itself."""
    done: set[str] = set()

    def put(found: re.Match[str]) -> str:
        return "\n".join(_in_order(found[1], done))

    return _INCLUDE.sub(put, text)


def functions_of(texts: Iterable[str]) -> str:
    """All device functions that some of these texts include, each file once."""
    return inlined(includes(sorted({name for text in texts for name in included(text)})))


def included(text: str) -> tuple[str, ...]:
    """The files that a text itself includes."""
    return tuple(_INCLUDE.findall(text))


def without_includes(text: str) -> str:
    """The text alone."""
    return _INCLUDE.sub("", text)


def includes(names: Iterable[str]) -> str:
    """The lines that include files."""
    return "".join(f'#include "{_FOLDER}{name}"\n' for name in names)


@cache
def file_text(name: str) -> str:
    """What a file of device functions holds."""
    # (`importlib.resources` takes longer to begin with than all files take to read)
    found = pkgutil.get_data("normgen", f"templates/device/{name}")
    assert found is not None, "packages are files, in a folder or an archive"
    return found.decode()


def _in_order(name: str, done: set[str]) -> Iterator[str]:
    if name in done:
        return
    done.add(name)
    others, own = _parts(file_text(name))
    for other in others:
        yield from _in_order(other, done)
    yield own


@cache
def _parts(text: str) -> tuple[tuple[str, ...], str]:
    """What a file includes, and the rest of it."""
    return included(text), without_includes(text).removeprefix(_ONCE).strip("\n") + "\n"
