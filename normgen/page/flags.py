"""Templates without flags that have one value on a page: `Vector<T, N>` for `Vector<T, N, false>`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from tree_sitter import Node

from normgen.page.declarations import Declaration
from normgen.page.syntax import IDENTIFIERS, TEMPLATES, Edits, field, parts, text_of, walk
from normgen.page.templates import Templates

Flags = Mapping[Declaration, Mapping[str, bool]]


def without_flags(text: str, root: Node, every: Sequence[Declaration], templates: Templates) -> str:
    """A text without the parameters of templates that are true wherever it uses them, or false."""
    flags = _single(every, templates)
    edits = Edits(text)
    places: dict[str, set[int]] = {}
    plain: set[str] = set()
    for each, own in flags.items():
        found = [k for k, parameter in enumerate(each.parameters) if parameter.name in own]
        places.setdefault(each.name, set()).update(found)
        if each.kind == "function" or len(own) == len(each.parameters):
            plain.add(each.name)
        _undeclare(each, own, found, edits)
        _substitute(each.inner, own, edits)
    for node in walk(root):
        given = field(node, "arguments") if node.type in TEMPLATES else None
        name = text_of(field(node, "name"))
        if given is not None and name in places:
            _drop(given, places[name], name in plain, edits)
    return edits.applied()


def _single(every: Sequence[Declaration], templates: Templates) -> Flags:
    special = {each.name for each in every if each.given is not None and each.kind == "class"}
    found: dict[Declaration, Mapping[str, bool]] = {}
    for each in every:
        if each.kind in ("class", "function") and each.name not in special:
            values = templates.values(each)
            found[each] = {
                parameter.name: value
                for place, parameter in enumerate(each.parameters)
                if isinstance(value := values[parameter.name], bool)
                and templates.always_given(each.name, place, value)
            }
    return {each: own for each, own in found.items() if own}


def _drop(given: Node, dropped: Collection[int], whole: bool, edits: Edits) -> None:
    """Arguments without those at some places."""
    arguments = parts(given)
    if whole and set(range(len(arguments))) <= set(dropped):
        edits.put(given.start_byte, given.end_byte)
        return
    for place, argument in enumerate(arguments):
        if place in dropped and set(range(place)) <= set(dropped):
            following = arguments[place + 1].start_byte if place + 1 < len(arguments) else argument.end_byte
            edits.put(argument.start_byte, following)
        elif place in dropped:
            edits.put(arguments[place - 1].end_byte, argument.end_byte)


def _undeclare(each: Declaration, own: Collection[str], places: Collection[int], edits: Edits) -> None:
    """A template's declaration without its flags, and without what is said of these."""
    given = field(each.node, "parameters")
    assert given is not None
    if len(places) == len(each.parameters):
        edits.put(each.node.start_byte, each.inner.start_byte)
    else:
        _drop(given, places, False, edits)
    above = re.compile(r"(?:^ *//.*\n)*\Z", re.MULTILINE)
    line = edits.text.rfind("\n", 0, each.node.start_byte) + 1
    found = above.search(edits.text, 0, line)
    if found is not None:
        edits.put(found.start(), found.end(), _commented(found[0], own))


def _commented(lead: str, own: Collection[str]) -> str:
    """Comments without the sentences about flags."""
    for name in own:
        lead = re.sub(rf"(?m)^ *// {name}: .*\n(?: *// (?![A-Z]+: ).*\n)*(?: *//\n(?= *// ))?", "", lead)
    return re.sub(r"(?m)^ *//\n(?! *//)", "", lead)


def _substitute(node: Node, known: Mapping[str, bool], edits: Edits) -> None:
    """Values in place of flags, but in what has parameters of their names itself."""
    own = field(node, "parameters") if node.type == "template_declaration" else None
    hidden = {text_of(each) for each in walk(own)} if own is not None else set()
    left = {name: value for name, value in known.items() if name not in hidden}
    if node.type in IDENTIFIERS and text_of(node) in left:
        edits.put(node.start_byte, node.end_byte, str(left[text_of(node)]).lower())
    for each in parts(node):
        _substitute(each, left, edits)
