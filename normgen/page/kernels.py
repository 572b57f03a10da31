"""Kernels alone, with their constants known, to stand behind the device functions that they include."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from normgen.kernel.folding import WIDTH, folded
from normgen.package.device_functions import functions_of, included, includes, without_includes
from normgen.page.preprocess import preprocess
from normgen.page.program import Program
from normgen.page.tokens import nest, templates_of, text_of, tokenise


def kernels(sources: Sequence[str], macros: Mapping[str, int]) -> tuple[str, ...]:
    """Each text without what its constants decide. Names that it does not define stay as they are."""
    pieces = (functions_of(sources), *map(without_includes, sources))
    every = [tokenise(preprocess(text, macros).replace("[[maybe_unused]] ", "")) for text in pieces]
    templates = set().union(*map(templates_of, every))
    before, *units = (nest(each, templates) for each in every)
    program = Program(before, units)
    reached = program.folded()
    found = []
    for source, unit in zip(sources, program.units, strict=True):
        text = "".join(text_of(reached[node].items) for node in unit if node in reached)
        lines = re.sub(r"\n{3,}", "\n\n", re.sub(r" +\n", "\n", text)).strip("\n").split("\n")
        body = "\n".join(line if len(line) <= WIDTH else folded(line) for line in lines)
        found.append(f"{includes(included(source))}\n{body}\n")
    return tuple(found)
