"""Which device functions a text calls, by the names that its words are: what it has to include."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources

from normgen.package.device_functions import file_text, included, without_includes

_NO_CODE = re.compile(r'"(?:\\.|[^"\\\n])*"|//.*|^#.*(?:\\\n.*)*', re.MULTILINE)
# Not what belongs to something else: `moments.mean`, `Layout::column`.
_WORD = re.compile(r"(?<![\w.])(?<!->)(?<!::)[A-Za-z_]\w*")
# A declaration outside of all braces and parentheses: a type, a constant, a function.
_DECLARED = re.compile(r"\b(?:struct|using|constexpr(?: \w+)+?|enum) (\w+)(?= *[={:;])|\b(\w+)(?=\(\))")
_NESTED = re.compile(r"\([^()]*\)|\{[^{}]*\}")
_NOT_FUNCTIONS = frozenset(("static_assert", "__launch_bounds__", "__align__", "alignas", "asm", "int"))
# What the first file includes of CUDA's own headers.
_PROLOGUE = "prologue.cuh"
_OF_CUDA = ("__half", "__nv_bfloat16", "__nv_fp8_e4m3", "__nv_fp8_e5m2")


def needed(text: str) -> tuple[str, ...]:
    """The files that declare what a text calls, in alphabetical order."""
    where = _where_declared()
    return tuple(sorted({where[word] for word in _WORD.findall(_NO_CODE.sub("", text)) if word in where}))


def outermost(names: Iterable[str]) -> tuple[str, ...]:
    """Those files that no other of them includes."""
    found = tuple(names)
    below = {other for name in found for other in _included(name) - {name}}
    return tuple(name for name in found if name not in below)


def declared(text: str) -> frozenset[str]:
    """The names that a file of device functions declares."""
    code, nested = _NO_CODE.sub("", without_includes(text)), 1
    while nested:
        # (a function keeps its parentheses, empty; all that is inside of others goes)
        code, nested = _NESTED.subn(lambda found: "\0" if found[0][0] == "(" else ";", code)
    found = _DECLARED.findall(code.replace("\0", "()"))
    return frozenset(a or b for a, b in found) - _NOT_FUNCTIONS


@cache
def files() -> tuple[str, ...]:
    """All files of device functions."""
    folder = resources.files("normgen") / "templates" / "device"
    own = [each.name for each in folder.iterdir() if each.name.endswith(".cuh")]
    inner = [
        f"{room.name}/{each.name}"
        for room in folder.iterdir()
        if room.is_dir()
        for each in room.iterdir()
        if each.name.endswith(".cuh")
    ]
    return tuple(sorted((*own, *inner)))


@cache
def _where_declared() -> Mapping[str, str]:
    """The file of each name; of a function that a later file has for other types too, the earlier one: that
    file has a type of its own, which such a call names."""
    found = dict.fromkeys(_OF_CUDA, _PROLOGUE)
    for file in files():
        for name in declared(file_text(file)):
            if name not in found or file in _included(found[name]):
                found[name] = file
    return found


@cache
def _included(file: str) -> frozenset[str]:
    """A file and all that it includes."""
    return frozenset((file,)).union(*(_included(other) for other in included(file_text(file))))
