"""What kernel texts begin with: the device functions that they call, and the constants that they read."""

from __future__ import annotations

import re
from collections.abc import Iterable

from normgen.kernel.headers import needed, outermost
from normgen.package.constants import CONSTANTS, listed, meaning
from normgen.package.device_functions import includes
from normgen.package.operands import Parameter, axis_name

_NO_CODE = re.compile(r'"(?:\\.|[^"\\\n])*"|//.*')
_DECLARED = re.compile(r"\b(?:constexpr \w+|,|using) (\w+) = ")


def headed(source: str, parameters: Iterable[Parameter], given: Iterable[str]) -> str:
    """A text that begins with the device functions that it calls, and the constants that it reads. `given`:
    what it may call those that are about operands."""
    names = _constants(_NO_CODE.sub("", source), parameters, given)
    return f"{includes(outermost(needed(source)))}\n{listed(names)}\n{source}"


def _constants(text: str, parameters: Iterable[Parameter], given: Iterable[str]) -> list[str]:
    """The constants that a text reads: not those that it declares itself, nor its parameters."""
    own = {f"size_{axis_name(p.axis)}" for p in parameters if p.kind == "size"}
    read = set(re.findall(r"\w+", text)) - own - set(_DECLARED.findall(text))
    lengths = sorted(word for word in read if word.startswith("size_") and "ꞏ" not in word)
    said = {name: meaning(name, read) for name in (*CONSTANTS, *lengths, *given) if name in read}
    # (so that what means the same stands together, in the order of the first of each)
    places = list(dict.fromkeys(said.values()))
    return sorted(said, key=lambda name: places.index(said[name]))
