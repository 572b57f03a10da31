"""What constants and types before a kernel's text are, in a comment each."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from normgen.kernel.folding import WIDTH
from normgen.package.constants import meanings

_OPERAND = {
    "ONE_": "whether a vector of the row needs one element of {}",
    "VEC_": "rows of {} that one access moves",
    "size_": "elements along {}",
}
# In the table these share a line.
_TYPES = {"index_t": "row numbers and strides", "offset_t": "offsets of rows"}
_WIDEST = 50  # of definitions whose comments stand below one another


def meaning(name: str, beside: Collection[str]) -> str:
    """What a constant or a type is, by its name and those beside it; nothing for one of a kernel's own."""
    known = _TYPES.get(name, meanings(beside).get(name))
    if known is not None:
        return known
    for prefix, said in _OPERAND.items():
        if name.startswith(prefix):
            found = name.removeprefix(prefix)
            return said.format(found if found != found.upper() or prefix == "size_" else found.lower())
    return f"elements of {name[:-2]}" if name.endswith("_t") else ""


def aligned(rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Definitions with what they are, below one another; above where there is no room."""
    width = min(max((len(text) for text, said in rows if said), default=0), _WIDEST)
    for text, said in rows:
        line = f"{text:{width}}  // {said}" if said else text
        yield line if len(line) <= WIDTH else f"// {said}\n{text}"
