"""CUDA text as a syntax tree, and changes to a text: what is cut out of it, and what is put in its place."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

import tree_sitter_cuda
from tree_sitter import Language, Node, Parser

_PARSER = Parser(Language(tree_sitter_cuda.language()))
# What the grammar does not know, and no constant decides.
_UNKNOWN = re.compile(r"__cluster_dims__\([^)]*\)|__align__\(\d+\)|= \{\}(?=[,)])")
_TITLE = "// ----"
IDENTIFIERS = frozenset({"identifier", "type_identifier", "field_identifier", "namespace_identifier"})
TEMPLATES = frozenset({"template_function", "template_type", "template_method"})
_NAMED = TEMPLATES | {"dependent_name", "qualified_identifier"}
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


def names(node: Node) -> Iterator[str]:
    """Every identifier, as often as it stands there: those of pragmas too."""
    for each in walk(node):
        if each.type in IDENTIFIERS:
            yield text_of(each)
        elif each.type == "preproc_arg":
            yield from re.findall(r"[A-Za-z_]\w*", text_of(each))


def names_of_file(node: Node, members: Collection[str], scope: str | None = None) -> Iterator[str]:
    """The names that may be of the file: not what is asked of a class or an object, nor of the class whose
    members these are. `scope`: what stands before `::` or a dot, where there is one of these."""
    if node.type in IDENTIFIERS:
        name = text_of(node)
        if scope == "" or (scope is None and name not in members):
            yield name
    elif node.type == "preproc_arg":
        yield from names(node)
    for each in parts(node):
        asked = scope if node.type in _NAMED and each.type != "template_argument_list" else None
        if node.type == "qualified_identifier" and each == field(node, "name"):
            asked = text_of(field(node, "scope"))
        elif node.type == "field_expression" and each == field(node, "field"):
            asked = "."
        yield from names_of_file(each, members, asked)


def declared_name(node: Node | None) -> str:
    """The name within a declarator."""
    while node is not None and node.type not in IDENTIFIERS:
        if node.type == "operator_name":
            return "operator"
        inner = field(node, "declarator") or field(node, "name")
        node = inner or next(reversed(parts(node)), None)
    return text_of(node)


class Edits:
    """Changes to a text. What lies within a change that is made is lost with it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._made: list[tuple[int, int, str]] = []

    def put(self, start: int, end: int, text: str = "") -> None:
        """Have a text between two places, or none."""
        self._made.append((start, end, text))

    def applied(self) -> str:
        """The text with all changes."""
        out: list[str] = []
        at = 0
        for start, end, text in sorted(self._made, key=lambda made: (made[0], -made[1])):
            if start >= at:
                out += (self.text[at:start], text)
            at = max(at, end)
        return "".join((*out, self.text[at:]))

    def remove(self, node: Node, keeps_comment: bool = False, declared: bool = False) -> None:
        """Cut out a statement or a declaration: with its lines, comments and pragmas, if it is alone there.
        `declared`: with all comments behind the declaration before, but for the title of a section."""
        text, start, end = self.text, node.start_byte, node.end_byte
        end += text.startswith(";", end)
        line = text.rfind("\n", 0, start) + 1
        rest = re.compile(r" *(?://.*)?(?:\n|\Z)").match(text, end)
        if text[line:start].strip() or rest is None:
            before = text[:start]
            self.put(len(before.rstrip()) if before[line:].strip() else start, end)
            return
        found = ""
        while line:
            above = text.rfind("\n", 0, line - 1) + 1
            found = text[above:line].strip()
            is_comment = found.startswith("//") and not (keeps_comment or found.startswith(_TITLE))
            is_pragma = found.startswith("#pragma") and node.type in LOOPS
            if not (is_comment or is_pragma or (declared and not found)):
                break
            line = above
        self.put(line, rest.end(), "\n" if found.startswith(_TITLE) else "")

    def replace(self, node: Node, by: Node) -> None:
        """Have a part of a node in place of the whole."""
        self.put(node.start_byte, by.start_byte)
        self.put(by.end_byte, node.end_byte)
