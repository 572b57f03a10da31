"""What kernel texts begin with: the device functions that they call, and the constants that they read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from normgen.kernel.headers import needed, outermost
from normgen.package.constants import CONSTANTS, listed, meaning
from normgen.package.device_functions import includes
from normgen.package.operands import FormRecord, OperandRecord, axis_name

_NO_CODE = re.compile(r'"(?:\\.|[^"\\\n])*"|//.*')
_DECLARED = re.compile(r"\b(?:constexpr \w+|,) (\w+) = ")


def headed(form: FormRecord, operands: Iterable[OperandRecord], types: Mapping[str, str]) -> FormRecord:
    """A form whose text begins with the device functions that it calls, and the constants that it reads.
    `types`: what texts call the types of tensors' elements that the kernel does not touch."""
    words = set(re.findall(r"\w+", _NO_CODE.sub("", form.source)))
    named = tuple((name, tensor) for name, tensor in types.items() if name in words)
    constants = _constants(form, words, operands, [name for name, _ in named])
    head = f"{includes(outermost(needed(form.source)))}\n{listed(constants)}\n"
    return replace(form, source=head + form.source, types=named)


def _constants(
    form: FormRecord, words: set[str], operands: Iterable[OperandRecord], types: Iterable[str]
) -> list[str]:
    """The constants that a text reads: not those that it declares itself, nor its parameters."""
    text = _NO_CODE.sub("", form.source)
    own = {f"size_{axis_name(p.axis)}" for p in form.parameters if p.kind == "size"}
    read = words - own - set(_DECLARED.findall(text))
    lengths = sorted(word for word in read if word.startswith("size_") and "ꞏ" not in word)
    known = (*CONSTANTS, *lengths, *(name for operand in operands for name in operand.given), *types)
    said = {name: meaning(name, read) for name in known if name in read}
    # (so that what means the same stands together, in the order of the first of each)
    places = list(dict.fromkeys(said.values()))
    return sorted(said, key=lambda name: places.index(said[name]))
