"""Statements on one line each: what is left of a long one may be short."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tree_sitter import Node

from normgen.page.syntax import Edits, parse, walk

_STATEMENTS = frozenset(
    {"expression_statement", "declaration", "alias_declaration", "return_statement", "condition_clause"}
)
# What keeps its lines.
_BETWEEN = frozenset(
    {"compound_statement", "comment", "preproc_call", "gnu_asm_expression", "initializer_list"}
)


def joined(text: str) -> str:
    """A text whose statements do not go on in another line, but around comments and blocks."""
    edits = Edits(text)
    for node in walk(parse(text)):
        if node.type in _STATEMENTS:
            for before, after in pairwise(_leaves(node)):
                gap = text[before.end_byte : after.start_byte]
                if "\n" in gap and not _BETWEEN & {before.type, after.type}:
                    tight = before.type in ("(", "<", "::") or after.type == ")"
                    edits.put(before.end_byte, after.start_byte, "" if tight else " ")
    return edits.applied()


def _leaves(node: Node) -> Iterator[Node]:
    if node.type in _BETWEEN or not node.child_count:
        yield node
        return
    for each in node.children:
        yield from _leaves(each)
