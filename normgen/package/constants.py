"""The constants and types that a launch gives a kernel's text, which begins with those that it reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import groupby
from types import MappingProxyType

from normgen.cache import digest

CONSTANTS: Mapping[str, str] = MappingProxyType(
    {
        # threads
        "THREADS": "threads of a block",
        "MIN_BLOCKS": "blocks per multiprocessor that registers are to be there for",
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


class Constants(dict[str, int | bool | str]):
    """The constants and types that a launch gives a text, by key. They do not change."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    @property
    def digest(self) -> str:
        """A digest of them, the same in all processes."""
        return digest(repr(sorted(self.items())))[:16]


def definition(name: str, value: int | bool | str) -> str:
    """The line that defines a constant or a type in a text."""
    match value:
        case bool():
            return f"constexpr bool {name} = {str(value).lower()};"
        case str():
            return f"using {name} = {value};"
        case _:
            return f"constexpr {'int' if value < 2**31 else 'long long'} {name} = {value};"


def definitions(values: Mapping[str, int | bool | str]) -> str:
    """The lines that define all of these, each beside what it means: neighbours that mean the same are below
    one line."""
    lines: list[str] = []
    for said, group in groupby(values, lambda name: meaning(name, values.keys())):
        names = list(group)
        lines += [f"// {said}"] * (len(names) > 1)
        behind = "" if len(names) > 1 else f"  // {said}"
        lines += [definition(name, values[name]) + behind for name in names]
    return "".join(f"{line}\n" for line in lines)
