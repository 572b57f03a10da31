"""Constant expressions: what is known of a value, and expressions without what that decides.

Values are whole numbers and truths. Arithmetic of constants stays as it is written, since names say more than
numbers; `&&`, `||` and `?:` that are decided go.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from normgen.page.tokens import (
    Group,
    Item,
    Items,
    Token,
    is_group,
    is_name,
    is_op,
    leading,
    led,
    names_of,
    split,
)

Value = int | None  # True and False are truths
Known = tuple[frozenset[object], ...]
_NUMBER = re.compile(r"(0[xX][0-9a-fA-F]+|[0-9]+)[uUlL]*")
_LEVELS = (
    ("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", ">", "<=", ">="), ("<<", ">>"), ("+", "-"),
    ("*", "/", "%"),
)  # fmt: skip
_LEVEL = {operator: level for level, operators in enumerate(_LEVELS) for operator in operators}
_LOGICAL, _SHIFT = ("||", "&&"), _LEVEL[">>"]
_TERNARY, _UNARY, _ATOM = -1, len(_LEVELS), len(_LEVELS) + 1
_TRUTHS = ("==", "!=", "<", ">", "<=", ">=", "&&", "||")
ASSIGNING = ("=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>=")
_TYPES = frozenset({"int", "bool", "unsigned", "char", "index_t", "offset_t", "float", "long", "short"})
_CASTS = ("static_cast", "reinterpret_cast", "const_cast")
_LIMIT = 2**31


@dataclass(frozen=True)
class Facts:
    """What is known of functions by name: constant, empty and pure ones.

    `made`: classes with a constructor. `short`: functions without arguments that return an expression, as the
    parameters of their templates and that.
    """

    results: Mapping[str, Value] = field(default_factory=dict)
    empty: frozenset[str] = frozenset()
    pure: frozenset[str] = frozenset()
    made: frozenset[str] = frozenset()
    short: Mapping[str, tuple[tuple[str, ...], Items]] = field(default_factory=dict)


@dataclass
class Scope:
    """What names are worth here: `values` of constants, None of what hides one; `sizes` of types."""

    values: dict[str, Value] = field(default_factory=dict)
    outer: Scope | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    facts: Facts = Facts()

    def value(self, name: str) -> Value:
        """The value of a name where it is known."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.outer
        return None

    def fact(self, given: Sequence[Item]) -> str:
        """The name of what is called as facts of functions have it: nothing where something here hides the
        function."""
        name = called(given)
        if len(given) > 1 and is_op(given[-2], "::"):  # of a class, which no local hides
            return name
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return ""
            scope = scope.outer
        return name

    def known(self) -> Known:
        """All that folding depends on beside facts, to be compared."""
        outer = self.outer.known() if self.outer else ()
        values = frozenset((name, type(value), value) for name, value in self.values.items())
        return (*outer, values, frozenset(self.sizes.items()))

    def inner(self, values: Mapping[str, Value] | None = None) -> Scope:
        """A scope within this one."""
        return Scope(dict(values or {}), self, self.sizes, self.facts)


@dataclass(frozen=True, slots=True)
class Found:
    """An expression: its text, what is known of its value, how tightly it binds, whether to evaluate it does
    nothing else, and whether it is a truth."""

    items: Items
    value: Value = None
    level: int = _ATOM
    pure: bool = True
    truth: bool = False


Body = Callable[[Group, Sequence[Item], Scope], Group]  # folds the body of a lambda
Seen = Callable[[str, "Group | None", Scope], None]


class Folder:
    """Folds expressions. `body`: folds what is between the braces of a lambda. `seen`: is told of every name,
    and of the angle brackets after it."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self.seen: Seen | None = None

    def items(self, items: Sequence[Item], scope: Scope, truth: bool = False) -> Items:
        """Any run of expressions. `truth`: of each nothing counts but whether it is true."""
        return self.run(items, scope, truth).items

    def value(self, items: Sequence[Item], scope: Scope) -> Value:
        """What an expression is worth, where that is known. Nobody is told of its names."""
        return self._quietly(items, scope, True).value

    def pure(self, items: Sequence[Item], scope: Scope) -> bool:
        """Whether to evaluate expressions does nothing else. Nobody is told of their names."""
        return self._quietly(items, scope, False).pure

    def _quietly(self, items: Sequence[Item], scope: Scope, truth: bool) -> Found:
        seen, self.seen = self.seen, None
        try:
            return self.run(items, scope, truth)
        finally:
            self.seen = seen

    def run(self, items: Sequence[Item], scope: Scope, truth: bool) -> Found:
        """A run of expressions; it has a value if it is one."""
        out: list[Item] = []
        region: list[Item] = []
        asked = 0
        pure = single = True
        for item in items:
            if (isinstance(item, Token) and item.kind == "op") or is_op(item, "return", "case"):
                asked += is_op(item, "?")
                if is_op(item, ":") and asked:
                    asked -= 1
                elif is_op(item, ",", ";", ":", "return", "case", *ASSIGNING):
                    found = self._region(region, scope, truth)
                    out += (*found.items, item)
                    pure = pure and found.pure and not is_op(item, *ASSIGNING)
                    single, region = False, []
                    continue
            region.append(item)
        found = self._region(region, scope, truth)
        if single:
            return found
        return Found((*out, *found.items), pure=pure and found.pure)

    def _region(self, items: Sequence[Item], scope: Scope, truth: bool) -> Found:
        return _Parser(self, tuple(items), scope).whole(truth) if items else Found(())

    def brackets(self, group: Group, before: Sequence[Item], scope: Scope) -> tuple[Group, Found]:
        """What is between brackets. `before`: what stands before them in the same operand."""
        if group.kind == "{" and _is_lambda(before):
            return self._body(group, before, scope), Found(())
        found = self.run(group.items, scope, False)
        return Group(group.open, found.items, group.close), found


def _is_lambda(before: Sequence[Item]) -> bool:
    return any(
        is_group(item, "[") and (k == 0 or not _is_value(before[k - 1])) for k, item in enumerate(before)
    )


def _is_value(item: Item) -> bool:
    return is_name(item) or isinstance(item, Group)


class _Parser:
    """One expression, by precedence."""

    def __init__(self, folder: Folder, items: Items, scope: Scope) -> None:
        self._folder, self._items, self._scope, self._at = folder, items, scope, 0

    def whole(self, truth: bool) -> Found:
        found = self._ternary(truth)
        while self._at < len(self._items):  # what is no expression: a declaration, say
            item = self._items[self._at]
            self._at += 1
            rest = self._ternary(False) if self._at < len(self._items) else Found(())
            found = Found((*found.items, item, *rest.items), pure=False)
        return found

    def _peek(self) -> Item | None:
        return self._items[self._at] if self._at < len(self._items) else None

    def _ternary(self, truth: bool) -> Found:
        mark = next((i for i in self._items[self._at :] if is_op(i, "?", ":")), None)
        condition = self._binary(0, truth or is_op(mark, "?"))
        if not is_op(self._peek(), "?"):
            return condition
        question = self._items[self._at]
        self._at += 1
        first = self._ternary(truth)
        if not is_op(self._peek(), ":"):
            return Found((*condition.items, question, *first.items), pure=False)
        colon = self._items[self._at]
        self._at += 1
        second = self._ternary(truth)
        if condition.value is not None:
            taken = first if condition.value else second
            return replace(taken, items=led(taken.items, leading(condition.items)))
        items = (*condition.items, question, *first.items, colon, *second.items)
        same = first.value if first.value == second.value else None
        return Found(items, same, _TERNARY, condition.pure and first.pure and second.pure)

    def _binary(self, least: int, truth: bool) -> Found:
        """Operators of at least this level between their operands."""
        left = self._unary()
        while (level := self._level()) is not None and level >= least:
            count = 2 if self._is_shift() else 1
            operator = self._items[self._at : self._at + count]
            self._at += count
            logical = is_op(operator[0], *_LOGICAL)
            right = self._binary(level + 1, truth or logical)
            left = (
                _logical(left, operator, right, truth)
                if logical
                else _arithmetic(left, operator, right, level)
            )
        return left

    def _level(self) -> int | None:
        """How tightly the next operator binds, if there is one."""
        item = self._peek()
        if not isinstance(item, Token) or item.kind == "text":
            return None
        return _SHIFT if self._is_shift() else _LEVEL.get(item.text)

    def _is_shift(self) -> bool:
        """Whether two angle brackets, which may close two templates, are one operator here."""
        if not is_op(self._peek(), ">") or self._at + 1 >= len(self._items):
            return False
        after = self._items[self._at + 1]
        return is_op(after, ">") and isinstance(after, Token) and not after.lead

    def _unary(self) -> Found:
        item = self._peek()
        if is_op(item, "!", "-", "+", "~", "*", "&", "++", "--", "&&"):
            assert isinstance(item, Token)
            self._at += 1
            operand = self._unary()
            value = operand.value
            if value is not None:
                value = {"!": not value, "-": -value, "+": value}.get(item.text)
            pure = operand.pure and item.text not in ("++", "--")
            return Found((item, *operand.items), value, _UNARY, pure, item.text == "!")
        return self._operand()

    def _operand(self) -> Found:
        """Names, brackets and what binds them, up to the next operator."""
        start = self._at
        out: list[Item] = []
        value: Value = None
        truth = False
        pure = True
        while (item := self._peek()) is not None:
            if isinstance(item, Group):
                given = self._items[start : self._at]
                if not item.items and item.kind == "(" and (text := self._short(given)):
                    out, value = list(text), None
                    self._at += 1
                    continue
                found = self._brackets(item, given)
                pure = pure and found.pure
                if item.kind == "(" and given and not (_is_lambda(given) or self._is_pure(given)):
                    pure = False
                value = found.value if len(given) == 0 else self._of_call(given, found)
                truth = found.truth and not given
                out += found.items
            elif is_op(item, "::", ".", "->", "...") or item.kind in ("name", "number", "text", "line"):
                if item.kind == "name" and self._folder.seen is not None:
                    after = self._items[self._at + 1] if self._at + 1 < len(self._items) else None
                    angles = after if isinstance(after, Group) and after.kind == "<" else None
                    self._folder.seen(item.text, angles, self._scope)
                value = self._of_atom(item) if self._at == start else None
                truth = is_op(item, "true", "false")
                pure = pure and not is_op(item, "new", "asm", "delete")
                out.append(item)
            elif is_op(item, "++", "--"):
                pure = False
                out.append(item)
            else:
                break
            self._at += 1
        return Found(tuple(out), value, _ATOM, pure, truth)

    def _short(self, given: Items) -> Items | None:
        """What a function without arguments returns, in place of its call: if that is one operand, or the
        call is all there is."""
        name, *rest = given
        if not isinstance(name, Token) or len(rest) > 1 or not all(is_group(each, "<") for each in rest):
            return None
        parameters, text = self._scope.facts.short.get(self._scope.fact(given[:1]), ((), ()))
        arguments = split(rest[0].items) if rest and isinstance(rest[0], Group) else []
        known = dict(zip(parameters, arguments, strict=False))
        alone = len(given) + 1 == len(self._items)
        if not text or not (alone or is_operand(text)) or any(len(each) > 1 for each in known.values()):
            return None
        if not names_of(text) & set(parameters) <= known.keys():
            return None
        return led(substituted(text, known), name.lead)

    def _brackets(self, item: Group, given: Items) -> Found:
        group, inner = self._folder.brackets(item, given, self._scope)
        if item.kind == "(" and not given:
            if len(inner.items) == 1 and len(item.items) > 1:  # brackets around what has become one name
                return replace(inner, items=led(inner.items, item.open.lead))
            return Found((group,), inner.value, _ATOM, inner.pure, inner.truth)
        return Found((group,), inner.value, _ATOM, inner.pure)

    def _is_pure(self, given: Items) -> bool:
        """Whether brackets after this are of a conversion, or call what does nothing but return something."""
        plain = all(isinstance(item, Token) and item.text in (*_TYPES, "sizeof") for item in given)
        return plain or is_op(given[0], *_CASTS) or self._scope.fact(given) in self._scope.facts.pure

    def _of_call(self, given: Items, found: Found) -> Value:
        """The value of a conversion, of the size of a type, or of a function that always returns the same."""
        group = found.items[0]
        if not is_group(group, "("):
            return None
        assert isinstance(group, Group)
        if len(given) == 1 and is_op(given[0], "int", "index_t", "bool"):
            return found.value if found.value is None or not is_op(given[0], "bool") else bool(found.value)
        if len(given) == 1 and is_op(given[0], "sizeof"):
            only = group.items[0] if len(group.items) == 1 else None
            return self._scope.sizes.get(only.text) if isinstance(only, Token) else None
        return self._scope.facts.results.get(self._scope.fact(given)) if found.pure else None

    def _of_atom(self, token: Token) -> Value:
        if token.kind == "number":
            whole = _NUMBER.fullmatch(token.text)
            return int(whole[1], 0 if whole[1][:2] in ("0x", "0X") else 10) if whole else None
        if token.kind == "name":
            return {"true": True, "false": False}.get(token.text, self._scope.value(token.text))
        return None


def is_operand(items: Items) -> bool:
    """Whether an expression has no operators but those within brackets."""
    return all(isinstance(item, Group) or item.kind != "op" or is_op(item, "::", ".", "->") for item in items)


def substituted(items: Items, known: Mapping[str, Items]) -> Items:
    """An expression with others in place of names."""
    out: list[Item] = []
    for item in items:
        if isinstance(item, Group):
            out.append(Group(item.open, substituted(item.items, known), item.close))
        else:
            out += led(known[item.text], item.lead) if item.text in known else (item,)
    return tuple(out)


def called(given: Sequence[Item]) -> str:
    """The name of what is called: the last before its brackets."""
    names = [item.text for item in given if isinstance(item, Token) and item.kind == "name"]
    return names[-1] if names else ""


def _literal(value: bool, lead: str) -> Items:
    return (Token("name", str(value).lower(), lead),)


def _logical(left: Found, operator: Items, right: Found, truth: bool) -> Found:
    """`a && b` or `a || b` without what is decided of it."""
    neutral = is_op(operator[0], "&&")
    lead = leading(left.items)
    if left.value is not None:
        if bool(left.value) != neutral:
            return Found(_literal(not neutral, lead), not neutral, truth=True)
        if right.value is not None:
            return Found(_literal(bool(right.value), lead), bool(right.value), truth=True)
        if truth or right.truth:
            return replace(right, items=led(right.items, lead))
    elif right.value is not None:
        if bool(right.value) != neutral and left.pure:
            return Found(_literal(not neutral, lead), not neutral, truth=True)
        if bool(right.value) == neutral and (truth or left.truth):
            return left
    items = (*left.items, *operator, *right.items)
    return Found(items, None, 1 if neutral else 0, left.pure and right.pure, True)


def _arithmetic(left: Found, operator: Items, right: Found, level: int) -> Found:
    text = "".join(item.text for item in operator if isinstance(item, Token))
    value = _computed(left.value, text, right.value)
    if text == "*" and isinstance(left.value, bool):  # what is there or not, times what it takes
        if left.value and right.level >= _UNARY:
            return replace(right, items=led(right.items, leading(left.items)))
        if not left.value and right.pure:
            return Found((Token("number", "0", leading(left.items)),), 0)
    items = (*left.items, *operator, *right.items)
    return Found(items, value, level, left.pure and right.pure, text in _TRUTHS)


def _computed(a: Value, operator: str, b: Value) -> Value:
    if a is None or b is None or (operator in ("/", "%") and not b):
        return None
    comparisons: dict[str, bool] = {
        "==": a == b, "!=": a != b, "<": a < b, ">": a > b, "<=": a <= b, ">=": a >= b,
    }  # fmt: skip
    if operator in comparisons:
        return comparisons[operator]
    if operator in ("<<", ">>"):
        found = a << b if operator == "<<" else a >> b
    elif operator in ("/", "%"):
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        found = quotient if operator == "/" else a - quotient * b
    else:
        found = {"+": a + b, "-": a - b, "*": a * b, "|": a | b, "^": a ^ b, "&": a & b}[operator]
    return found if -_LIMIT <= found < _LIMIT else None
