"""Constant expressions: what is known of a value, and whether to evaluate something does nothing else.

Values are whole numbers and truths, None where nothing is known.
"""

from __future__ import annotations

import operator
import re
from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tree_sitter import Node

from normgen.page import syntax
from normgen.page.syntax import IDENTIFIERS, parts, text_of

Value = int | None  # True and False are truths
# What names are worth here: None of what hides a constant. The size of a type is under `sizeof(type)`.
Scope = ChainMap[str, Value]
Operation = Callable[[int, int], int]

_NUMBER = re.compile(r"([-+]?(?:0[xX])?[0-9a-fA-F]+)[uUlL]*")
_LIMIT = 2**31
_WRAPPERS = ("parenthesized_expression", "condition_clause", "type_descriptor")
_ACTIONS = frozenset({"assignment_expression", "update_expression", "gnu_asm_expression", "new_expression"})
_IMPURE = _ACTIONS | {"delete_expression", "ERROR"}
CONVERSIONS = frozenset(
    {"int", "float", "bool", "unsigned", "unsigned int", "long", "char", "short", "index_t", "offset_t",
     "static_cast", "reinterpret_cast", "const_cast"}
)  # fmt: skip


def _divided(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


_BINARY: dict[str, Operation] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt, "<=": operator.le,
    ">=": operator.ge, "+": operator.add, "-": operator.sub, "*": operator.mul, "|": operator.or_,
    "^": operator.xor, "&": operator.and_, "<<": operator.lshift, ">>": operator.rshift,
    "/": _divided, "%": lambda a, b: a - b * _divided(a, b),
}  # fmt: skip
TRUTHS = frozenset({"==", "!=", "<", ">", "<=", ">=", "&&", "||", "!"})


@dataclass(frozen=True)
class Short:
    """What a function returns, by the names of its template's `parameters`. `is_operand`: it binds as tightly
    as a call does."""

    parameters: tuple[str, ...]
    text: str
    is_operand: bool


@dataclass(frozen=True)
class Facts:
    """What is known of functions by name: constant (with their `results`), empty and pure ones.

    `made`: classes with a constructor. `short`: functions without arguments that return an expression.
    """

    results: Mapping[str, Value] = field(default_factory=dict)
    empty: frozenset[str] = frozenset()
    pure: frozenset[str] = frozenset()
    made: frozenset[str] = frozenset()
    short: Mapping[str, Short] = field(default_factory=dict)


class Known:
    """What is known at a place of a text: the values of names, and facts of functions."""

    def __init__(self, facts: Facts, scope: Scope) -> None:
        self.facts, self.scope = facts, scope

    def inner(self, values: Mapping[str, Value] | None = None) -> Known:
        """What is known further in."""
        return Known(self.facts, self.scope.new_child(dict(values or {})))

    def called(self, node: Node) -> str:
        """The name of the function that is called: nothing where something here hides it."""
        function = syntax.field(node, "function")
        name = called_name(function)
        return "" if name in self.scope and function is not None and not is_qualified(function) else name

    def value(self, node: Node | None) -> Value:
        """What an expression is worth, where that is known."""
        if node is None:
            return None
        text = text_of(node)
        if node.type in IDENTIFIERS:
            return self.scope.get(text)
        if node.type in ("true", "false"):
            return node.type == "true"
        if node.type == "number_literal":
            whole = _NUMBER.fullmatch(text)
            return int(whole[1], 16 if "x" in text.lower() else 10) if whole else None
        if node.type in _WRAPPERS:
            inner = parts(node)
            return self.value(inner[0]) if len(inner) == 1 else None
        if node.type == "sizeof_expression":
            return self.scope.get(text)
        handler = _VALUES.get(node.type)
        return handler(self, node) if handler else None

    def _unary(self, node: Node) -> Value:
        value = self.value(syntax.field(node, "argument"))
        word = text_of(syntax.field(node, "operator"))
        return None if value is None else {"!": not value, "-": -value, "+": value}.get(word)

    def _binary(self, node: Node) -> Value:
        left, right = syntax.field(node, "left"), syntax.field(node, "right")
        a, b, word = self.value(left), self.value(right), text_of(syntax.field(node, "operator"))
        if word in ("&&", "||"):
            return self._logical(left, a, b, word == "&&")
        if a is None or b is None or word not in _BINARY or (word in ("/", "%") and not b):
            return None
        found = _BINARY[word](a, b)
        return found if -_LIMIT <= found < _LIMIT else None

    def _logical(self, left: Node | None, a: Value, b: Value, neutral: bool) -> Value:
        if a is not None and bool(a) != neutral:
            return not neutral
        if b is not None and bool(b) != neutral and left is not None and self.is_pure(left):
            return not neutral
        return neutral if a is not None and b is not None else None

    def _conditional(self, node: Node) -> Value:
        asked = self.value(syntax.field(node, "condition"))
        first, second = (self.value(syntax.field(node, name)) for name in ("consequence", "alternative"))
        if asked is None:
            return first if first == second else None
        return first if asked else second

    def _call(self, node: Node) -> Value:
        name = self.called(node)
        given = syntax.field(node, "arguments")
        if given is None or not self.is_pure(given):
            return None
        if name in ("int", "index_t", "bool") and len(parts(given)) == 1:
            value = self.value(parts(given)[0])
            return value if value is None or name != "bool" else bool(value)
        return self.facts.results.get(name)

    def is_pure(self, node: Node) -> bool:
        """Whether to evaluate expressions does nothing else."""
        if node.type in _IMPURE or (node.type == "call_expression" and not self._is_harmless(node)):
            return False
        return node.type == "lambda_expression" or all(map(self.is_pure, parts(node)))

    def _is_harmless(self, node: Node) -> bool:
        to = called_name(syntax.field(node, "function"))
        return to in CONVERSIONS or self.called(node) in self.facts.pure


_VALUES: dict[str, Callable[[Known, Node], Value]] = {
    "unary_expression": Known._unary,
    "binary_expression": Known._binary,
    "conditional_expression": Known._conditional,
    "call_expression": Known._call,
}


def called_name(function: Node | None) -> str:
    """The last name of what is called, without the arguments of its template."""
    while function is not None and function.type not in IDENTIFIERS:
        inner = [each for each in parts(function) if each.type != "template_argument_list"]
        if not inner:
            return text_of(function)  # a type of the language
        function = inner[-1]
    return text_of(function)


def is_qualified(function: Node) -> bool:
    """Whether a function is named by its class, which no local hides."""
    return function.type == "qualified_identifier"


def is_action(node: Node) -> bool:
    """Whether a node changes something."""
    return node.type in _ACTIONS
