"""A whole text without what a call has no use for.

It begins at the kernels. What they name is reached, what that names too, and so on; the rest goes. In what is
reached, what constants decide goes, so that it names less: all is done again until nothing changes. What one
round finds of the uses of templates and of functions is known in the next.
"""

from __future__ import annotations

from collections import ChainMap
from dataclasses import replace

from tree_sitter import Node

from normgen.page.declarations import Declaration, declarations, every
from normgen.page.facts import constructed, facts_of
from normgen.page.flags import without_flags
from normgen.page.fold import Folder, Seen
from normgen.page.locals import declared, hidden
from normgen.page.syntax import TEMPLATES, Edits, names, names_of_file, parse, parts, text_of
from normgen.page.templates import Argument, Bound, Templates, Uses
from normgen.page.values import Facts, Known

_SIZES = {
    "char": 1, "short": 2, "int": 4, "float": 4, "double": 8, "uint2": 8, "uint4": 16, "arrival_t": 8,
    "__half": 2, "__nv_bfloat16": 2, "__nv_fp8_e4m3": 1, "__nv_fp8_e5m2": 1,
}  # fmt: skip


def reduced(text: str) -> str:
    """A text of declarations and of kernels, each in a namespace with its constants, without what these have
    no use for, and without flags of templates that have one value."""
    last = settled(text)
    return settled(without_flags(last.text, last.root, last.all, last.templates)).text


def settled(text: str) -> Round:
    """The last of the rounds that it takes until nothing changes."""
    one = Round(text, None, Facts())
    while True:
        found = one.reduced()
        following = Round(found, one.uses, one.facts())
        if found == one.text and (one.uses, following.known_facts) == (one.templates.uses, one.known_facts):
            return one
        one = following


class Round:
    """One pass over all that is reached. `uses`: of templates, as far as an earlier round has found them."""

    def __init__(self, text: str, uses: Uses | None, facts: Facts) -> None:
        self.text, self.known_facts = text, facts
        self.root = parse(text)
        assert not self.root.has_error, "a text that the grammar takes for another"
        self.before = declarations(self.root)
        self.all = list(every(self.before))
        self.uses: Uses = {}
        facts = replace(facts, made=constructed(self.all))
        self.top = Known(facts, ChainMap({f"sizeof({name})": size for name, size in _SIZES.items()}))
        self.templates = Templates(self.all, uses, self.top)
        self._units: dict[Node | None, Known] = {None: self.top}
        for each in self.before:
            known = self._units.setdefault(each.unit, self.top.inner())
            if each.kind in ("constant", "alias") and not each.parameters:
                known.scope.update(declared(each.inner, known))
        self._functions = {each.name for each in self.all if each.kind == "function" and each.parameters}
        self._classes = {each.name for each in self.all if each.kind != "function"}
        self._reached: dict[Declaration, Known] = {}
        self._names: set[str] = set()
        # Of these, by the kernel where they stand, what may be of the file, and not of a class alone.
        self._plain: dict[Node | None, set[str]] = {}
        self._edits = Edits(text)

    def reduced(self) -> str:
        """The text without what is known to have no use."""
        left = [each for each in self.before if each.unit is not None and each.kind == "function"]
        while left:
            for each in left:
                self._fold(each)
            left = [each for each in self.all if each not in self._reached and self._is_reached(each)]
        for each in self.all:
            if each not in self._reached and (each.owner is None or each.owner in self._reached):
                self._edits.remove(each.node, declared=True)
        return self._edits.applied()

    def facts(self) -> Facts:
        """What is known of the functions that are reached."""
        return facts_of(list(self._reached))

    def _is_reached(self, each: Declaration) -> bool:
        if each.owner is not None:
            if each.owner not in self._reached:
                return False
            if each.is_always():
                return True
        elif not each.kind:
            return False
        if not (self._is_read(each) and each.element_types <= self._names):
            return False
        return self.templates.may_be_used(each)

    def _is_read(self, each: Declaration) -> bool:
        """Whether its name stands where it is seen: a kernel's constants are seen by that kernel alone, and
        templates may have parameters of their names."""
        if each.owner is not None:
            return each.name in self._names
        if each.unit is not None:
            return each.name in self._plain.get(each.unit, ())
        return any(each.name in found for found in self._plain.values())

    def _fold(self, each: Declaration) -> None:
        outer = self._reached[each.owner] if each.owner is not None else self._units[each.unit]
        known = outer.inner(self.templates.values(each))
        self._reached[each] = known
        self._note_names(each)
        body = each.body
        if each.kind == "class":
            for member in each.members:
                if member.kind == "constant":
                    known.scope.update(declared(member.inner, known))
        elif each.kind != "function":
            Folder(self._edits, self._seen_in(each, False)).fold(each.inner, known)
            return
        for part in each.head:
            known.scope.update(hidden(part) if each.kind == "function" else {})
        run = [part for part in each.head if part.type == "field_initializer_list"]
        run += [body] if body is not None and each.kind == "function" else []
        for part in each.head:
            if part not in run:
                Folder(self._edits, self._seen_in(each, True)).fold(part, known)
        for part in run:
            Folder(self._edits, self._seen_in(each, False)).fold(part, known)

    def _seen_in(self, each: Declaration, in_head: bool) -> Seen:
        """Notes uses of templates in a declaration. What a function takes is made elsewhere: with parameters
        of its own template it says nothing new."""
        bound = _bound(each)

        def seen(node: Node, name: str, arguments: list[Node], known: Known) -> None:
            is_explicit = node.type in TEMPLATES
            if name not in (self._functions | self._classes if is_explicit else self._functions):
                return
            if in_head and any(text_of(argument) in bound for argument in arguments):
                return
            row = tuple(_argument(argument, known, bound) for argument in arguments)
            self.uses.setdefault(name, set()).add(row)

        return seen

    def _note_names(self, each: Declaration) -> None:
        skipped = each.body if each.kind == "class" else None
        found = [part for part in parts(each.node) if part != each.inner and each.node != each.inner]
        found += [part for part in parts(each.inner) if part != skipped]
        self._names.update(name for part in found for name in names(part))
        own = {member.name for member in each.owner.members} if each.owner else set()
        plain = (name for part in found for name in names_of_file(part, own))
        self._plain.setdefault(each.unit, set()).update(plain)


def _bound(each: Declaration) -> dict[str, Bound]:
    """The parameters of templates around a place in a declaration."""
    outer = _bound(each.owner) if each.owner is not None else {}
    deduced = each.deduced()
    return outer | {
        parameter.name: Bound(each.name, place, deduced.get(parameter.name))
        for place, parameter in enumerate(each.parameters)
    }


def _argument(node: Node, known: Known, bound: dict[str, Bound]) -> Argument:
    value = known.value(node)
    name = text_of(node)
    return bound[name] if value is None and name in bound else value
