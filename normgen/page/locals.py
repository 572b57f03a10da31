"""What statements declare, and the locals that nothing reads."""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Iterator

from tree_sitter import Node

from normgen.page.syntax import declared_name, field, names, parts, text_of, walk
from normgen.page.values import Facts, Known, Value, called_name

DECLARING = ("declaration", "field_declaration", "alias_declaration")
_NOTHING = Known(Facts(), ChainMap())


def hidden(node: Node) -> dict[str, Value]:
    """The names of the parameters within a declarator, which hide what has them further out."""
    found = (each for each in walk(node) if each.type.endswith("parameter_declaration"))
    return dict.fromkeys(declared_name(field(each, "declarator")) for each in found)


def declared(node: Node, known: Known) -> Iterator[tuple[str, Value]]:
    """The names that a declaration declares, and what they are worth where that is known."""
    if node.type == "alias_declaration":
        name, meant = text_of(field(node, "name")), text_of(field(node, "type"))
        yield name, None
        yield f"sizeof({name})", known.scope.get(f"sizeof({meant})")
        return
    words = {text_of(each) for each in parts(node) if each.type == "type_qualifier"}
    constant = bool(words & {"const", "constexpr"}) and text_of(field(node, "type")) != "float"
    for each in node.children_by_field_name("declarator"):
        inner, value = field(each, "declarator"), field(each, "value") or field(node, "default_value")
        plain = each.type == "field_identifier" or (inner is not None and inner.type == "identifier")
        yield declared_name(each), known.value(value) if constant and plain else None


def _names_declared(node: Node) -> set[str]:
    return {name for name, _ in declared(node, _NOTHING)}


def _own_names(block: Node) -> set[str]:
    return {name for each in parts(block) if each.type in DECLARING for name in _names_declared(each)}


def clashes(block: Node, outer: Node) -> bool:
    """Whether what a block declares could be mistaken for something beside it."""
    own = _own_names(block)
    return any(own & set(names(each)) for each in parts(outer) if each != block)


def names_without(node: Node) -> Iterator[str]:
    """The names in a node, but for what a block in it has under names of its own."""
    if not node.named_child_count:
        yield from names(node)
    own: set[str] = set()
    for each in parts(node):
        if node.type == "compound_statement" and each.type in DECLARING:
            own |= _names_declared(each)
        yield from (name for name in names_without(each) if name not in own)


def is_unread(node: Node, count: Counter[str], known: Known) -> bool:
    """Whether nothing in its block, which has each name so often, reads what is declared, and to make it does
    nothing else."""
    words = {text_of(each) for each in parts(node)}
    if words & {"extern", "volatile"}:
        return False
    own = _names_declared(node)
    mine = Counter(names(node))
    if not own or any(count[name] != mine[name] for name in own):
        return False
    return node.type == "alias_declaration" or all(
        _makes_nothing(node, each, known) for each in node.children_by_field_name("declarator")
    )


def _makes_nothing(node: Node, declarator: Node, known: Known) -> bool:
    """Whether a declarator does no more than to name something."""
    value = field(declarator, "value")
    if value is not None and (value.type == "argument_list" or not known.is_pure(value)):
        return False
    if declarator.type == "function_declarator":
        return False
    is_plain = value is not None and value.type != "initializer_list"
    return is_plain or called_name(field(node, "type")) not in known.facts.made


def is_headed(node: Node) -> bool:
    """Whether a comment above a local is of what follows too, on the next line."""
    following = node.next_named_sibling
    is_function = any(each.type == "lambda_expression" for each in walk(node))
    if following is None or following.type == "comment" or is_function:
        return False
    return following.start_point[0] == node.end_point[0] + 1
