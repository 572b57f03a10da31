"""The device functions that kernel texts include: the `.cuh` files of `templates/device`.

A text names what it includes, `#include "normgen/team.cuh"`, and `inlined` puts the files in place of these
lines. Whoever compiles a text does that first: so nvcc, NVRTC and the host's compiler need no folder to look
in, and the key of a binary, which is of the whole text, covers what was included.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import resources

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
    return (resources.files("normgen") / "templates" / "device" / name).read_text(encoding="utf-8")


def _in_order(name: str, done: set[str]) -> Iterator[str]:
    if name in done:
        return
    done.add(name)
    text = file_text(name)
    for other in included(text):
        yield from _in_order(other, done)
    yield without_includes(text).removeprefix(_ONCE).strip("\n") + "\n"
