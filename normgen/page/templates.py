"""What the parameters of templates are worth: which have one value wherever a text uses the template."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from normgen.page.declarations import Declaration
from normgen.page.syntax import text_of
from normgen.page.values import Known, Value


@dataclass(frozen=True)
class Bound:
    """A parameter of an enclosing template, as an argument: by the name of the template and its place."""

    name: str
    place: int
    deduced: tuple[str, int] | None


Argument = Value | Bound
# By the name of a template the arguments that stand after it, somewhere.
Uses = dict[str, set[tuple[Argument, ...]]]
Worths = frozenset[Value]
_UNKNOWN: Worths = frozenset({None})


class Templates:
    """The worth of parameters, by the uses that a text has of its templates."""

    def __init__(self, every: Sequence[Declaration], uses: Uses | None, known: Known) -> None:
        self.uses = uses
        self._uses = uses or {}
        self._known = known
        self._by_name: dict[str, list[Declaration]] = {}
        for each in every:
            self._by_name.setdefault(each.name, []).append(each)
        self._worths: dict[tuple[Declaration, str], Worths] = {}
        self._rows: dict[str, list[list[Worths]]] = {}
        asked = [(each, p.name) for each in every for p in each.parameters if p.is_value and not p.pack]
        # A parameter that gets its values from itself has no more of them: it begins with none.
        before = self._worths if self.uses is None else None
        while before != self._worths:
            before = dict(self._worths)
            self._rows = {name: list(self._filled(name)) for name in self._uses}
            for key in asked:
                self._worths[key] = frozenset().union(*self._of_uses(*key))

    def values(self, each: Declaration) -> dict[str, Value]:
        """The parameters of a declaration's template, with their values where there is one."""
        worths = ((p.name, self._worths.get((each, p.name), frozenset())) for p in each.parameters)
        return {name: _only(found) for name, found in worths}

    def may_be_used(self, each: Declaration) -> bool:
        """Whether some use may be of a specialisation."""
        if each.given is None or each.kind == "function" or self.uses is None:
            return True
        return any(self._matches(each, row)[0] for row in self._rows.get(each.name, ()))

    def always_given(self, name: str, place: int, value: Value) -> bool:
        """Whether all that names templates with arguments gives them this one, or leaves it out."""
        rows = self._uses.get(name, ())
        return all(self._argument(row[place]) == {value} for row in rows if place < len(row))

    def _primary(self, name: str) -> Declaration | None:
        return next((d for d in self._by_name.get(name, ()) if d.kind == "class" and d.given is None), None)

    def _of_uses(self, each: Declaration, name: str) -> Iterator[Worths]:
        """What uses make of a parameter of a template."""
        place = next(k for k, parameter in enumerate(each.parameters) if parameter.name == name)
        if each.kind == "class":
            yield from self._of_class(each, name, place)
            return
        source = each.deduced().get(name)
        if source is not None:
            yield self._placed(*source)
        for arguments in self._uses.get(each.name, ()):
            if place < len(arguments):
                yield self._argument(arguments[place])
            elif source is None:
                yield frozenset({self._known.value(each.parameters[place].default)})

    def _of_class(self, each: Declaration, name: str, place: int) -> Iterator[Worths]:
        special = [d for d in self._by_name[each.name] if d.given is not None]
        for row in self._rows.get(each.name, ()):
            if each.given is not None:
                places = [k for k, given in enumerate(each.given) if text_of(given) == name]
                if places and self._matches(each, row)[0]:
                    yield row[places[0]]
            elif not any(self._matches(other, row)[1] for other in special):
                yield row[place]

    def _placed(self, name: str, place: int) -> Worths:
        """What stands at a place among the arguments of a class."""
        if self._primary(name) is None:
            return _UNKNOWN
        rows = self._rows.get(name, ())
        return frozenset().union(*(row[place] if place < len(row) else _UNKNOWN for row in rows))

    def _filled(self, name: str) -> Iterator[list[Worths]]:
        """The arguments of each use of a class, defaults included."""
        primary = self._primary(name)
        if primary is None:
            return
        for arguments in self._uses[name]:
            row = [self._argument(argument) for argument in arguments]
            values = {p.name: _only(found) for p, found in zip(primary.parameters, row, strict=False)}
            for parameter in primary.parameters[len(row) :]:
                values[parameter.name] = self._known.inner(values).value(parameter.default)
                row.append(frozenset({values[parameter.name]}))
            yield row

    def _argument(self, argument: Argument) -> Worths:
        if not isinstance(argument, Bound):
            return frozenset({argument})
        if argument.deduced is not None and argument.deduced[0] in self._by_name:
            return self._placed(*argument.deduced)
        same = self._by_name.get(argument.name, ())
        found = ((d, d.parameters[argument.place].name) for d in same if argument.place < len(d.parameters))
        return frozenset().union(*(self._worths.get(key, frozenset()) for key in found))

    def _matches(self, special: Declaration, row: Sequence[Worths]) -> tuple[bool, bool]:
        """Whether a use may be of a specialisation, and whether it must be."""
        own = {parameter.name for parameter in special.parameters}
        may = must = True
        for given, worths in zip(special.given or (), row, strict=False):
            asked = self._known.value(given)
            if text_of(given) in own:
                continue
            if asked is None or None in worths:
                must = False
            elif worths != {asked}:
                must = False
                may = may and asked in worths
        return may, must


def _only(worths: Worths) -> Value:
    return next(iter(worths)) if len(worths) == 1 else None
