"""A whole text without what a call has no use for.

It begins at the kernels. What they name is reached, what that names too, and so on. On the way the
parameters of every template are found that have one value wherever it is used; a body is folded with those,
so that it names less. As this changes what is reached, all is done again until nothing changes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from normgen.page.expression import Facts, Known, Scope, Value
from normgen.page.facts import facts_of, returned
from normgen.page.fold import FOLDER, declared, fold_body, parameters
from normgen.page.templates import UNKNOWN, Signature, Use, Worth, bound, joined, match, signature
from normgen.page.tokens import Group, Items, Token, is_op, names_of, split, tokens
from normgen.page.tree import Declaration, declarations, parameters_of

# The element types of CUDA's headers: what is written for one is needed where that one is.
_ELEMENT = re.compile(r"__half|__nv_bfloat16|__nv_fp8_e4m3|__nv_fp8_e5m2")
_ALWAYS = ("operator",)
_SIZES = {
    "char": 1, "short": 2, "int": 4, "float": 4, "double": 8, "uint2": 8, "uint4": 16, "arrival_t": 8,
    "__half": 2, "__nv_bfloat16": 2, "__nv_fp8_e4m3": 1, "__nv_fp8_e5m2": 1,
}  # fmt: skip


@dataclass(eq=False)
class Node:
    """A declaration of the text, with its members where it is a class. `unit`: which kernel's constants it
    sees, None of what stands before all of them."""

    declaration: Declaration
    owner: Node | None
    unit: int | None
    members: list[Node] = field(default_factory=list)
    signature: Signature = field(default_factory=Signature)

    @property
    def name(self) -> str:
        """What it declares."""
        return self.declaration.name

    @property
    def element_types(self) -> set[str]:
        """The element types that a specialisation or an overload is for."""
        if self.declaration.kind not in ("class", "function") or self.owner is not None:
            return set()
        return {name for name in names_of(self.declaration.head) if _ELEMENT.fullmatch(name)}


def nodes_of(items: Items, unit: int | None, owner: Node | None = None) -> list[Node]:
    """The declarations of a text as nodes."""
    found = []
    for each in declarations(items):
        node = Node(each, owner, unit, signature=signature(each))
        if each.kind == "class" and each.body is not None:
            node.members = nodes_of(each.body.items, unit, node)
        found.append(node)
    return found


@dataclass
class _Round:
    """What one pass over all that is reached finds."""

    folded: dict[Node, Declaration] = field(default_factory=dict)
    scopes: dict[Node, Scope] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)  # that stand in what is reached
    # Of those, by the kernel where they stand, what may be of the file, and not of a class alone.
    plain: dict[int | None, set[str]] = field(default_factory=dict)
    uses: list[tuple[Use, Scope]] = field(default_factory=list)

    def is_read(self, node: Node) -> bool:
        """Whether its name stands where it is seen: a kernel's constants are seen by that kernel alone, and
        templates may have parameters of their names."""
        if node.owner is not None:
            return node.name in self.names
        if node.unit is not None:
            return node.name in self.plain.get(node.unit, ())
        return any(node.name in names for names in self.plain.values())


class Program:
    """The declarations before all kernels, and those of each kernel: its constants and itself."""

    def __init__(self, before: Items, units: Sequence[Items]) -> None:
        self.before = nodes_of(before, None)
        self.units = [nodes_of(items, k) for k, items in enumerate(units)]
        self._by_name: dict[str, list[Node]] = {}
        for node in self._all():
            self._by_name.setdefault(node.name, []).append(node)
        self._worth: dict[tuple[Node, str], Worth] = {}
        self._classes: dict[tuple[str, int], Worth] = {}
        made = {n.name for n in self._all() if n.owner is not None and n.name == n.owner.name}
        self._facts = Facts(made=frozenset(made))
        self._uses: list[Use] = []
        self._assumed: dict[tuple[Node, str], Worth] = {}
        # What declarations become where so much is known, and what they use: most stay the same for rounds.
        self._kept: dict[tuple[Node, frozenset[str], Known], tuple[Declaration, list[Use]]] = {}

    def _all(self) -> Iterator[Node]:
        stack = [*self.before, *(node for unit in self.units for node in unit)]
        while stack:
            node = stack.pop()
            yield node
            stack += node.members

    # ---------------------------------------------------------------------------------------------- rounds

    def folded(self) -> dict[Node, Declaration]:
        """Every declaration that is reached, folded."""
        while True:
            found = self._settled()
            functions = [
                (node.name, {p.name for p in node.signature.parameters}, each)
                for node, each in found.folded.items()
                if each.kind == "function" and each.body is not None
            ]
            free = [(n, f) for n, f in found.folded.items() if n.owner is None and f.kind == "function"]
            known, self._facts = self._facts, facts_of(functions, _short(free), self._facts)
            if self._facts != known:
                self._kept.clear()
            elif self._found() == self._assumed:
                self._uses = [use for use, _ in found.uses if use.explicit]
                return found.folded

    def _found(self) -> dict[tuple[Node, str], Worth]:
        """The parameters with one value."""
        return {key: worth for key, worth in self._worth.items() if worth != UNKNOWN}

    def worth(self, node: Node, parameter: str) -> Worth | None:
        """What a parameter of a template is worth wherever it is used, once all is folded."""
        return self._worth.get((node, parameter))

    def always_given(self, name: str, place: int, value: Value) -> bool:
        """Whether all that names templates with arguments gives them this one, or leaves it out."""
        given = (use.values[place] for use in self._uses if use.name == name and place < len(use.values))
        return all(each is value for each in given)

    def _settled(self) -> _Round:
        """The last of the rounds that it takes to find what the parameters of templates are worth. It begins
        with what is known: until a parameter's worth is found, more is reached than needs to be."""
        self._assumed, self._worth, self._classes = self._found(), {}, {}
        while True:
            known = dict(self._worth), dict(self._classes)
            found = self._round()
            self._learn(found)
            if known == (self._worth, self._classes):
                return found

    def _round(self) -> _Round:
        found = _Round()
        top = Scope(sizes=_SIZES, facts=self._facts)
        for node in self.before:
            self._constant(node, top)
        scopes = []
        for unit in self.units:
            inner = top.inner()
            inner.sizes = dict(_SIZES)
            for node in unit:
                self._constant(node, inner)
            scopes.append(inner)
        kernels = [n for unit in self.units for n in unit if n.declaration.kind == "function"]
        left = list(kernels)
        while left:
            for node in left:
                scope = top if node.unit is None else scopes[node.unit]
                self._fold(node, found.scopes[node.owner] if node.owner else scope, found)
            left = [
                node for node in self._all() if node not in found.folded and self._is_reached(node, found)
            ]
        return found

    def _constant(self, node: Node, scope: Scope) -> None:
        """Put what a constant is worth, or the size of a type, into a scope."""
        each = node.declaration
        if each.kind == "constant":
            for name, value in declared(FOLDER.items(each.head, scope), scope):
                scope.values[name] = value
        if each.kind == "alias" and len(each.head) == 5 and isinstance(scope.sizes, dict):
            of = each.head[3]
            if isinstance(of, Token) and of.text in scope.sizes:
                scope.sizes[node.name] = scope.sizes[of.text]

    def _is_reached(self, node: Node, found: _Round) -> bool:
        each = node.declaration
        if node.owner is not None:
            if node.owner not in found.folded:
                return False
            if self._is_always(node):
                return True
        elif each.kind == "other":
            return False
        if not (found.is_read(node) and node.element_types <= found.names):
            return False
        if node.signature.given is not None:
            return self._may_be_used(node, found)
        return True

    def _is_always(self, node: Node) -> bool:
        """Members that a class cannot be without: those that make up an object, and what has no name."""
        each, owner = node.declaration, node.owner
        assert owner is not None
        if each.kind == "constant":
            return not any(is_op(item, "static") for item in each.head[:2])
        return each.kind == "other" or node.name in (*_ALWAYS, owner.name)

    def _may_be_used(self, node: Node, found: _Round) -> bool:
        """Whether some use may be of a specialisation."""
        given, primary = node.signature.given, self._primary(node)
        if given is None or primary is None:
            return True
        uses = [(use, scope) for use, scope in found.uses if use.name == node.name and use.explicit]
        if node.declaration.kind == "function" and any(
            u.name == node.name and not u.explicit for u, _ in found.uses
        ):
            return True
        own, general = node.signature.parameters, primary.signature.parameters
        return any(match(given, own, general, use, scope)[0] for use, scope in uses)

    def _primary(self, node: Node) -> Node | None:
        return next(
            (n for n in self._by_name[node.name] if n.signature.given is None and n.owner is node.owner), None
        )

    # ---------------------------------------------------------------------------------------------- folding

    def _parameters(self, node: Node) -> tuple[dict[str, Value], set[str]]:
        """The parameters of a node's template with their values where these are known, and those without
        any yet."""
        values: dict[str, Value] = {}
        pending = set()
        for parameter in node.signature.parameters:
            key = node, parameter.name
            worth = self._worth.get(key, self._assumed.get(key))
            values[parameter.name] = None if isinstance(worth, str) else worth
            if worth is None:
                pending.add(parameter.name)
        return values, pending

    def _fold(self, node: Node, outer: Scope, found: _Round) -> None:
        scope, pending = self._scope(node, outer)
        key = node, pending, scope.known()
        known = self._kept.get(key) if node.declaration.kind != "class" else None
        if known is None:
            folded = self._folded(node, scope)
            known = self._kept[key] = folded, self._used(node, folded, scope, pending)
        folded, uses = known
        found.folded[node], found.scopes[node] = folded, scope
        found.uses += [(use, outer) for use in uses]
        parts = folded.head if folded.kind == "class" else folded.items
        found.names |= names_of(parts)
        members = {member.name for member in node.owner.members} if node.owner else set()
        found.plain.setdefault(node.unit, set()).update(_plain(parts, members))

    def _scope(self, node: Node, outer: Scope) -> tuple[Scope, frozenset[str]]:
        """The scope of a node's parameters, and the parameters of templates around it without any value
        yet."""
        values, pending = self._parameters(node)
        owner = node.owner
        while owner is not None:
            pending |= self._parameters(owner)[1]
            owner = owner.owner
        scope = outer.inner(values)
        if node.declaration.kind == "function":
            place = parameters_of(node.declaration.head)
            taken = node.declaration.head[place] if place is not None else None
            if isinstance(taken, Group):
                scope.values |= dict.fromkeys(parameters(taken))
        return scope, frozenset(pending)

    def _used(self, node: Node, folded: Declaration, scope: Scope, pending: frozenset[str]) -> list[Use]:
        """What a folded node uses: what has gone names nothing."""
        uses: list[Use] = []
        bound_names: set[str] = set()

        def seen(name: str, angles: Group | None, where: Scope) -> None:
            if name not in self._by_name:
                return
            if angles is None:
                uses.append(Use(name, (), explicit=False))
                return
            arguments = _arguments(angles)
            worths = tuple(FOLDER.value(argument, where) for argument in arguments)
            waiting = tuple(
                _only(argument) in bound_names or (worth is None and bool(names_of(argument) & pending))
                for argument, worth in zip(arguments, worths, strict=True)
            )
            uses.append(Use(name, worths, waiting))

        place = parameters_of(folded.head) if folded.kind == "function" else None
        FOLDER.seen = seen
        for k, item in enumerate(folded.head):
            if isinstance(item, Group) and not _is_own(folded.head, k):
                bound_names = {p.name for p in node.signature.parameters} if k == place else set()
                FOLDER.items(item.items, scope)
                before = folded.head[k - 1]
                if item.kind == "<" and isinstance(before, Token) and before.text != node.name:
                    seen(before.text, item, scope)
        bound_names = set()
        if folded.body is not None and folded.kind == "function":
            fold_body(folded.body, scope)
        FOLDER.seen = None
        return uses

    def _folded(self, node: Node, scope: Scope) -> Declaration:
        each = node.declaration
        if each.kind not in ("class", "function"):
            return replace(each, head=FOLDER.items(each.head, scope))
        head = tuple(
            Group(item.open, FOLDER.items(item.items, scope), item.close)
            if isinstance(item, Group) and not _is_own(each.head, k)
            else item
            for k, item in enumerate(each.head)
        )
        if each.kind == "class":
            for member in node.members:
                self._constant(member, scope)
            return replace(each, head=head)
        return replace(each, head=head, body=fold_body(each.body, scope) if each.body is not None else None)

    # ---------------------------------------------------------------------------------------------- learning

    def _learn(self, found: _Round) -> None:
        """Take over what a round has found: values of parameters, and functions that need not be called."""
        for use, scope in found.uses:
            for node in self._by_name.get(use.name, ()):
                self._learn_use(node, use, scope)
        for node in found.folded:
            for name, sources in (node.signature.deduced or {}).items():
                for template, place in sources:
                    if any(n.declaration.kind == "class" for n in self._by_name.get(template, ())):
                        worth = self._classes.get((template, place))
                        if worth is not None:
                            self._join(node, name, worth)
                        break
                else:
                    self._join(node, name, UNKNOWN)

    def _learn_use(self, node: Node, use: Use, scope: Scope) -> None:
        kind, own = node.declaration.kind, node.signature
        if not own.parameters and own.given is None:
            return
        if kind == "class":
            if use.explicit:
                self._learn_class(node, use, scope)
            return
        deduced = own.deduced or {}
        found = bound(own.parameters, use, scope)
        for place, parameter in enumerate(own.parameters):
            if place < len(use.values) or (parameter.name not in deduced and parameter.name in found):
                worth = found.get(parameter.name, UNKNOWN)
                if worth is not None:
                    self._join(node, parameter.name, worth)
            elif parameter.name not in deduced:
                self._join(node, parameter.name, UNKNOWN)

    def _learn_class(self, node: Node, use: Use, scope: Scope) -> None:
        primary = node if node.signature.given is None else self._primary(node)
        if primary is None:
            return
        general = primary.signature.parameters
        if node.signature.given is not None:
            may, _, made = match(node.signature.given, node.signature.parameters, general, use, scope)
            for name, worth in made.items() if may else ():
                if worth is not None:
                    self._join(node, name, worth)
            return
        found = bound(general, use, scope)
        for place, parameter in enumerate(general):
            worth = found.get(parameter.name, UNKNOWN)
            if worth is not None:
                key = (node.name, place)
                self._classes[key] = joined(self._classes.get(key), worth)
        if not self._is_special(node, use, scope):
            for parameter in general:
                worth = found.get(parameter.name, UNKNOWN)
                if worth is not None:
                    self._join(node, parameter.name, worth)

    def _is_special(self, primary: Node, use: Use, scope: Scope) -> bool:
        """Whether a use is of some specialisation for certain."""
        special = [n for n in self._by_name[primary.name] if n.signature.given is not None]
        general = primary.signature.parameters
        return any(
            match(n.signature.given or (), n.signature.parameters, general, use, scope)[1] for n in special
        )

    def _join(self, node: Node, name: str, worth: Worth) -> None:
        key = (node, name)
        self._worth[key] = joined(self._worth.get(key), worth)


def _plain(items: Items, members: set[str]) -> set[str]:
    """The names that may be of the file: not what is asked of a class or an object, nor a class's own."""
    found = set()
    every = list(tokens(items))
    for k, token in enumerate(every):
        if token.kind != "name":
            found |= names_of((token,))
            continue
        before, earlier = every[k - 1] if k else None, every[k - 2] if k > 1 else None
        of_file = is_op(before, "::") and (earlier is None or not _is_scope(earlier))
        if of_file or not (is_op(before, "::", ".", "->") or token.text in members):
            found.add(token.text)
    return found


def _is_own(head: Items, place: int) -> bool:
    """Whether brackets are those of the parameters of the declaration's own template."""
    return place == 1 and is_op(head[0], "template")


def _is_scope(token: Token) -> bool:
    """Whether `::` after it is within something."""
    return token.text == ">" or (token.kind == "name" and token.text not in ("return", "else", "const"))


def _arguments(angles: Group) -> list[Items]:
    return split(angles.items)


def _only(items: Items) -> str:
    return items[0].text if len(items) == 1 and isinstance(items[0], Token) else ""


def _short(functions: Sequence[tuple[Node, Declaration]]) -> dict[str, tuple[tuple[str, ...], Items]]:
    """The functions that a page has in one version, without arguments, which return an expression."""
    count = Counter(node.name for node, _ in functions)
    found = {}
    for node, each in functions:
        text = returned(each)
        if text and count[node.name] == 1:
            found[node.name] = tuple(p.name for p in node.signature.parameters), text
    return found
