"""Statements and expressions without what constants decide, and without the locals that nothing reads.

Arithmetic of constants stays as it is written, since names say more than numbers; branches, `&&`, `||` and
`?:` that are decided go.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

from tree_sitter import Node

from normgen.page.locals import DECLARING, clashes, declared, hidden, is_headed, is_unread, names_without
from normgen.page.syntax import IDENTIFIERS, LOOPS, TEMPLATES, Edits, field, parts, text_of
from normgen.page.values import TRUTHS, Known

Seen = Callable[[Node, str, list[Node], Known], None]
_BLOCKS = ("compound_statement", "case_statement")
_LEAVING = ("return_statement", "continue_statement", "break_statement")
_ATOMS = IDENTIFIERS | {"number_literal", "true", "false"}
_WORD = re.compile(r"[A-Za-z_]\w*")
_ALONE = ("init_declarator", "return_statement", "argument_list", "assignment_expression", "condition_clause")


class Folder:
    """Notes what may be cut out of nodes. `seen`: is told of every name of a template, with its arguments."""

    def __init__(self, edits: Edits, seen: Seen) -> None:
        self._edits = edits
        self._seen = seen
        self._levels: Counter[int] = Counter()  # that lines have been moved out, by where they begin

    def fold(self, node: Node, known: Known, truth: bool = False) -> None:
        """Any node. `truth`: nothing counts but whether it is true. What it declares is added to what is
        known."""
        handler = _HANDLERS.get(node.type)
        if handler is not None:
            handler(self, node, known, truth)
        else:
            self._parts(node, known)

    def _parts(self, node: Node, known: Known) -> None:
        if node.type in TEMPLATES:
            given = field(node, "arguments")
            self._seen(node, text_of(field(node, "name")), parts(given) if given else [], known)
        elif node.type in IDENTIFIERS and (node.parent is None or node.parent.type not in TEMPLATES):
            self._seen(node, text_of(node), [], known)
        for each in parts(node):
            self.fold(each, known)

    # ------------------------------------------------------------------------------------------- statements

    def _block(self, node: Node, known: Known, truth: bool) -> None:
        inner = known.inner()
        count = Counter(name for each in parts(node) for name in names_without(each))
        left = gone = False
        for each in parts(node):
            left = left and each.type != "case_statement"
            if left:
                self._edits.remove(each)
                continue
            left = _leaves(each)
            if each.type == "compound_statement" and node.type == each.type and not clashes(each, node):
                self._unbrace(each)
            if each.type in DECLARING and is_unread(each, count, inner):
                self._edits.remove(each, not gone and is_headed(each))
                gone = True
                continue
            gone = False
            self.fold(each, inner)

    def _unbrace(self, block: Node) -> None:
        inner = block.children[1:-1]
        if not inner:
            self._edits.remove(block)
            return
        first, last = inner[0], inner[-1]
        self._edits.put(block.start_byte, first.start_byte)
        self._edits.put(last.end_byte, block.end_byte)
        self._dedent(first, last)

    def _dedent(self, first: Node, last: Node) -> None:
        """Move lines that begin between two nodes one level out, or one more where that is done already."""
        for found in re.compile(r"\n(?= )").finditer(self._edits.text, first.start_byte, last.end_byte):
            at = found.end() + 4 * self._levels[found.end()]
            if self._edits.text.startswith("    ", at):
                self._edits.put(at, at + 4)
                self._levels[found.end()] += 1

    def _gone(self, node: Node) -> None:
        """Remove a statement: what must be one is an empty block then."""
        parent = node.parent
        if _is_in_block(node):
            self._edits.remove(node)
        elif parent is not None and parent.type == "else_clause" and _is_in_block(parent.parent):
            self._edits.put(_end_before(parent), parent.end_byte)
        else:
            self._edits.put(node.start_byte, node.end_byte, "{}")

    def _if(self, node: Node, known: Known, truth: bool) -> None:
        asked, then, other = (field(node, name) for name in ("condition", "consequence", "alternative"))
        assert asked is not None and then is not None
        value = known.value(asked)
        if value is not None:
            taken = then if value else (parts(other)[-1] if other is not None else None)
            if taken is None:
                self._gone(node)
                return
            self._edits.replace(node, taken)
            if taken.type != "compound_statement" and taken.start_point[0] > node.start_point[0]:
                self._dedent(taken, taken)
            self.fold(taken, known.inner())
            return
        self.fold(asked, known, True)
        self.fold(then, known.inner())
        if other is not None:
            self.fold(other, known.inner())
            if _is_empty(parts(other)[-1]) and _is_in_block(node):
                self._edits.put(then.end_byte, other.end_byte)
        elif _is_empty(then) and known.is_pure(asked):
            self._gone(node)

    def _loop(self, node: Node, known: Known, truth: bool) -> None:
        inner = known.inner()
        self._parts(node, inner)
        body, asked = field(node, "body"), field(node, "condition")
        if node.type == "for_statement" and _is_empty(body) and asked is not None and inner.is_pure(asked):
            self._gone(node)

    def _assertion(self, node: Node, known: Known, truth: bool) -> None:
        if known.value(field(node, "condition")):
            self._edits.remove(node)

    def _statement(self, node: Node, known: Known, truth: bool) -> None:
        inner = parts(node)
        if len(inner) == 1 and inner[0].type == "call_expression":
            given = field(inner[0], "arguments")
            if known.called(inner[0]) in known.facts.empty and given is not None and known.is_pure(given):
                self._gone(node)
                return
        self._parts(node, known)

    def _declaration(self, node: Node, known: Known, truth: bool) -> None:
        is_truth = text_of(field(node, "type")) == "bool"
        for each in parts(node):
            if each.type == "init_declarator":
                for part in parts(each):
                    self.fold(part, known, is_truth)
            else:
                self.fold(each, known)
        known.scope.update(declared(node, known))

    def _lambda(self, node: Node, known: Known, truth: bool) -> None:
        head = field(node, "declarator")
        self._parts(node, known.inner(hidden(head) if head is not None else None))

    # ------------------------------------------------------------------------------------------ expressions

    def _logical(self, node: Node, known: Known, truth: bool) -> None:
        left, right = field(node, "left"), field(node, "right")
        assert left is not None and right is not None
        word = text_of(field(node, "operator"))
        a, b = known.value(left), known.value(right)
        if word in ("&&", "||"):
            neutral = word == "&&"
            value = known.value(node)
            if value is not None:
                self._edits.put(node.start_byte, node.end_byte, "true" if value else "false")
                return
            truth = truth or _is_truth(left if a is None else right)
            if truth and a is not None:
                self._edits.replace(node, right)
            if truth and b is not None and bool(b) == neutral:
                self._edits.replace(node, left)
            self.fold(left, known, True)
            self.fold(right, known, True)
            return
        if word == "*" and isinstance(a, bool):  # what is there or not, times what it takes
            if a and right.type != "binary_expression":
                self._edits.replace(node, right)
            if not a and known.is_pure(right):
                self._edits.put(node.start_byte, node.end_byte, "0")
                return
        self._parts(node, known)

    def _conditional(self, node: Node, known: Known, truth: bool) -> None:
        asked, first, second = (field(node, name) for name in ("condition", "consequence", "alternative"))
        assert asked is not None and first is not None and second is not None
        value = known.value(asked)
        if value is not None:
            self._edits.replace(node, first if value else second)
            self.fold(first if value else second, known, truth)
            return
        self.fold(asked, known, True)
        self.fold(first, known, truth)
        self.fold(second, known, truth)

    def _brackets(self, node: Node, known: Known, truth: bool) -> None:
        inner = parts(node)
        outer = node.parent
        is_needed = outer is not None and (outer.type in LOOPS or outer.type == "sizeof_expression")
        if len(inner) == 1 and inner[0].type in _ATOMS and not is_needed:
            self._edits.replace(node, inner[0])
        for each in inner:
            self.fold(each, known, truth)

    def _not(self, node: Node, known: Known, truth: bool) -> None:
        for each in parts(node):
            self.fold(each, known, text_of(field(node, "operator")) == "!")

    def _call(self, node: Node, known: Known, truth: bool) -> None:
        text = _short(node, known)
        if text:
            self._edits.put(node.start_byte, node.end_byte, text)
        else:
            self._parts(node, known)

    def _condition(self, node: Node, known: Known, truth: bool) -> None:
        for each in parts(node):
            self.fold(each, known, True)


_HANDLERS: dict[str, Callable[[Folder, Node, Known, bool], None]] = {
    "compound_statement": Folder._block,
    "case_statement": Folder._block,
    "if_statement": Folder._if,
    "static_assert_declaration": Folder._assertion,
    "expression_statement": Folder._statement,
    "lambda_expression": Folder._lambda,
    "binary_expression": Folder._logical,
    "conditional_expression": Folder._conditional,
    "parenthesized_expression": Folder._brackets,
    "condition_clause": Folder._condition,
    "unary_expression": Folder._not,
    "call_expression": Folder._call,
    **dict.fromkeys(DECLARING, Folder._declaration),
    **dict.fromkeys(LOOPS, Folder._loop),
}


# -------------------------------------------------------------------------------------------------- questions


def _short(node: Node, known: Known) -> str:
    """What a function without arguments returns, in place of its call: if that is one operand, or the call is
    all there is."""
    function, given, outer = field(node, "function"), field(node, "arguments"), node.parent
    if function is None or given is None or parts(given):
        return ""
    if function.type not in ("identifier", "template_function"):
        return ""
    short = known.facts.short.get(known.called(node))
    alone = outer is not None and outer.type in _ALONE
    if short is None or not (alone or short.is_operand):
        return ""
    angles = field(function, "arguments")
    arguments = [text_of(each) for each in parts(angles)] if angles is not None else []
    values = dict(zip(short.parameters, arguments, strict=False))
    missing = set(_WORD.findall(short.text)) & set(short.parameters) - values.keys()
    if missing or not all(re.fullmatch(r"\w+", each) for each in values.values()):
        return ""
    return _WORD.sub(lambda found: values.get(found[0], found[0]), short.text)


def _is_truth(node: Node) -> bool:
    """Whether an expression is true or false, and no number."""
    if node.type == "parenthesized_expression":
        return _is_truth(parts(node)[0])
    return node.type in ("true", "false") or text_of(field(node, "operator")) in TRUTHS


def _leaves(node: Node) -> bool:
    """Whether nothing after a statement is run."""
    inner = parts(node)
    return node.type in _LEAVING or (node.type == "compound_statement" and bool(inner) and _leaves(inner[-1]))


def _is_in_block(node: Node | None) -> bool:
    """Whether a statement is one of several, and no branch or body of another."""
    return node is not None and node.parent is not None and node.parent.type in _BLOCKS


def _is_empty(node: Node | None) -> bool:
    return node is not None and node.type == "compound_statement" and not parts(node)


def _end_before(node: Node) -> int:
    """Where what stands before a node ends."""
    before = node.prev_sibling
    return before.end_byte if before is not None else node.start_byte
