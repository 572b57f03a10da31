"""The constants and types that a launch sets in a kernel's text: what a schedule and the text agree on.

A text begins with a list of those that it reads, each with what it means:

    // A launch sets:
    //   THREADS, x_t, y_t

and a launch has definitions in place of that list, of those names and no others, each beside what it means.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import groupby
from types import MappingProxyType
from typing import NamedTuple

CONSTANTS: Mapping[str, str] = MappingProxyType(
    {
        # threads
        "THREADS": "threads of a block",
        "MIN_BLOCKS": "blocks per multiprocessor that registers are to be there for",
        "CLUSTER_DIMS": "the attribute of a kernel whose blocks come in clusters, or nothing",
        "TEAM": "threads of a thread group",
        "TEAMS": "thread groups of a block",
        "LANES": "threads of a block along neighbouring columns",
        "MEMBERS": "blocks that share a row or a segment",
        # what a thread has
        "VEC": "elements of a vector",
        "ITEMS": "vectors of a thread",
        "BATCH": "rows or vectors that a thread has under way together",
        "DEPTH": "rows that a thread group asks for together",
        "PATCH": "rows of a thread's patch of a tile",
        # lengths
        "LENGTH": "elements of a row",
        "RUN": "elements of a part of a row that accumulators keep",
        "RUNS": "partials of each part of a row",
        "ROWS": "rows of a tile",
        "COLUMNS": "columns of a tile",
        "PATCHES": "patches of a tile",
        "TILE": "columns of a tile of the kernel that combines partials",
        "SHARES": "warps that share such a tile",
        "PLANE": "places of an image that a block has at once",
        "PART": "places that a thread group walks ahead together",
        "CHUNK": "steps of a range between two meetings",
        # windows
        "HALO": "places that a window reaches to either side of a block's own",
        "GHOSTS": "threads that only load what windows reach",
        "DRIFT": "places by which a window leads",
        # shared memory
        "STAGES": "stages of a multistage pipeline",
        "SLOTS": "vectors that shared memory holds for each thread, or steps for a block",
        "SPARE": "bytes between the operands of a pipeline",
        "AGAIN": "rows that are read a second time",
        # how
        "UNTAGGED": "blocks or rows whose reads half of the second-level cache holds; 0: no hints",
        "AHEAD": "whether, or how far, what comes next is loaded ahead",
        "HELD": "whether sums over rows stay in registers",
        "REALIGNED": "whether rows begin anywhere in a word of memory",
        "BACKWARDS": "whether the last rows or tiles come first",
        "RELOAD": "whether a row is read again from the pipeline",
        "LATE": "whether what rows share is loaded after what they do not",
        "BULK": "whether rows arrive by bulk copies",
        "REFILLED": "whether the pipeline is refilled by vector",
        "LAUNCH": "the level that a launch passes over, where blocks share a row; after the last: none",
        "STAGED": "whether later passes read a copy in shared memory",
        "COVERS": "whether the threads of a group have all elements of a column",
        "WHOLE": "whether every thread has as many rows as the others",
        "ACCUMULATE": "whether gradients of parameters are added to what is there",
        "PROGRAMMATIC": "whether the kernel starts before the one ahead of it ends, and waits by itself",
        # types, beside those of the elements of operands
        "index_t": "types of row numbers and strides, and of where rows begin",
        "offset_t": "types of row numbers and strides, and of where rows begin",
    }
)
# Where rows lie side by side in memory, a thread group has a column in place of a row.
_OF_COLUMNS = {
    "ITEMS": "elements along a column of a thread",
    "LENGTH": "elements along a column",
}


# Of an operand, and of an axis.
_BY_PREFIX = {
    "HAS_": "whether the call has this operand",
    "WANT_": "whether the call wants this result",
    "ONE_": "whether a vector needs one element of this operand",
    "VEC_": "rows that one access moves of this operand",
    "size_": "length of {}",
}
_ELEMENT = "type of this operand's elements"


def meanings(names: Collection[str]) -> Mapping[str, str]:
    """What constants mean in a text that has these."""
    return {**CONSTANTS, **_OF_COLUMNS} if "LANES" in names else CONSTANTS


def meaning(name: str, names: Collection[str]) -> str:
    """What a constant or a type means in a text that has these."""
    known = meanings(names).get(name)
    if known is not None:
        return known
    for prefix, said in _BY_PREFIX.items():
        if name.startswith(prefix):
            return said.format(name.removeprefix(prefix))
    return _ELEMENT


def glossary(texts: Iterable[Collection[str]]) -> tuple[tuple[tuple[str, ...], str], ...]:
    """All constants of texts, of which each is given by the names that it has: those that share a meaning,
    with that meaning."""
    found: dict[str, dict[str, None]] = {}
    for names in texts:
        for name in names:
            found.setdefault(meaning(name, names), {})[name] = None
    places = {said: place for place, said in enumerate((*CONSTANTS.values(), *_OF_COLUMNS.values()))}
    order = sorted(found, key=lambda said: places.get(said, len(places)))
    return tuple((tuple(found[said]), said) for said in order)


_TITLE = "// A launch sets:\n"
_LIST = re.compile(rf"^{_TITLE}((?://   .*\n)*)", re.MULTILINE)
_NAME = re.compile(r"[^\s,/]+")


class Listing(NamedTuple):
    """A text in its parts: the list of constants, and what is around it."""

    before: str
    names: tuple[str, ...]
    groups: tuple[tuple[str, tuple[str, ...]], ...]  # of them, neighbours that mean the same, beside that
    after: str

    def filled(self, define: Callable[[str], str]) -> str:
        """The text with definitions in place of the list, each beside what it means."""
        return self.before + "".join(self._defined(define)) + self.after

    def _defined(self, define: Callable[[str], str]) -> Iterator[str]:
        for said, names in self.groups:
            if len(names) > 1:
                yield f"// {said}\n"
            yield from (define(name) + (f"  // {said}\n" if len(names) == 1 else "\n") for name in names)


def listed(names: Iterable[str]) -> str:
    """The list of these constants."""
    return f"{_TITLE}//   {', '.join(names)}\n"


@lru_cache(maxsize=4096)
def listing(text: str) -> Listing:
    """The list of a text; of a text without one an empty one, before all of it."""
    found = _LIST.search(text)
    if found is None:
        return Listing("", (), (), text)
    names = tuple(_NAME.findall(found[1]))
    groups = ((said, tuple(group)) for said, group in groupby(names, lambda name: meaning(name, names)))
    return Listing(text[: found.start()], names, tuple(groups), text[found.end() :])
