"""CUDA text as a syntax tree."""

from __future__ import annotations

import re
from collections.abc import Iterator

import tree_sitter_cuda
from tree_sitter import Language, Node, Parser

_PARSER = Parser(Language(tree_sitter_cuda.language()))
# What the grammar does not know.
_UNKNOWN = re.compile(r"__cluster_dims__\([^)]*\)|__align__\(\d+\)|= \{\}(?=[,)])")
LOOPS = frozenset({"for_statement", "while_statement", "do_statement"})


def parse(text: str) -> Node:
    """The tree of a text, whose places are those of characters."""
    plain = _UNKNOWN.sub(lambda found: " " * len(found[0]), text)
    return _PARSER.parse(plain.encode("ascii", "replace")).root_node


def text_of(node: Node | None) -> str:
    """The text of a node; nothing where there is none."""
    return (node.text or b"").decode() if node is not None else ""


def parts(node: Node) -> list[Node]:
    """What a node consists of, without punctuation and comments."""
    return [each for each in node.named_children if each.type != "comment"]


def field(node: Node, name: str) -> Node | None:
    """A part by its name in the grammar."""
    return node.child_by_field_name(name)


def walk(node: Node) -> Iterator[Node]:
    """A node and all within it."""
    yield node
    for each in node.named_children:
        yield from walk(each)
