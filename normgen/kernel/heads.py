"""What kernel texts begin with: the constants that they read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from normgen.package.constants import CONSTANTS, Constants, definitions, meaning
from normgen.package.operands import Parameter, axis_name, is_element_key

_NO_CODE = re.compile(r'"(?:\\.|[^"\\\n])*"|//.*')
_DECLARED = re.compile(r"\b(?:constexpr \w+|,|using) (\w+) = ")


def headed(source: str, parameters: Iterable[Parameter], keys: Mapping[str, str], given: Constants) -> str:
    """A text that begins with the constants that it reads. `keys`: by the names of constants that are about
    operands, those by which `given` has their values."""
    names = _constants(_NO_CODE.sub("", source), parameters, keys)
    head = definitions({name: _value(keys.get(name, name), given) for name in names})
    return f"{head}\n{source}"


def _value(key: str, given: Constants) -> int | bool | str:
    """A constant of a launch. (Of an operand that is not there any type will do.)"""
    return given.get(key, "float") if is_element_key(key) else given[key]


def _constants(text: str, parameters: Iterable[Parameter], given: Iterable[str]) -> list[str]:
    """The constants that a text reads: not those that it declares itself, nor its parameters."""
    own = {f"size_{axis_name(p.axis)}" for p in parameters if p.kind == "size"}
    read = set(re.findall(r"\w+", text)) - own - set(_DECLARED.findall(text))
    lengths = sorted(word for word in read if word.startswith("size_") and "ꞏ" not in word)
    said = {name: meaning(name, read) for name in (*CONSTANTS, *lengths, *given) if name in read}
    # (so that what means the same stands together, in the order of the first of each)
    places = list(dict.fromkeys(said.values()))
    return sorted(said, key=lambda name: places.index(said[name]))
