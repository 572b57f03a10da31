"""The words of a generated module: docstrings, and a user's text made harmless for where it stands."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from normgen.codegen.module.literal import WIDTH
from normgen.package.direction import Direction
from normgen.package.records import AttrRecord, Package, TensorRecord, dims_text

# Quotes that could end a triple-quoted string: three in a row, or the last ones.
_CLOSING_QUOTES = re.compile(r'"{3,}|"+(?=\s*\Z)')

_ERRORS = [
    ("TypeError", "an argument is missing or unknown, is no array, or has an element type that does not fit"),
    ("ValueError", "shapes, devices or attr values do not fit, or arrays overlap that are written"),
]


def docstring(package: Package, direction: Direction, named: Sequence[tuple[str, str]]) -> str:
    """The docstring's text, escaped, with its margin of four spaces but without quotes. `named`: what goes by
    name beside operands, and what it is."""
    head = f"The gradients of `{package.name}`."
    if direction.name == "forward":
        head = package.doc or f"The norm {package.name}."
    operands = [(name, _operand_text(direction, tensor)) for name, tensor in direction.operands.items()]
    sections = {
        "Args": [*operands, *named],
        "Returns": [(name, describe(tensor)) for name, tensor in direction.results.items()],
        "Raises": _ERRORS,
    }
    lines = prose(head, 4).split("\n")
    for title, entries in sections.items():
        lines += ["", *_section(title, entries)]
    return "\n".join(lines).rstrip()


def _section(title: str, entries: Sequence[tuple[str, str]]) -> list[str]:
    lines = [f"    {title}:"]
    for name, text in entries:
        filled = textwrap.wrap(
            f"{name}: {escaped(text)}",
            width=WIDTH - 2,
            initial_indent=" " * 8,
            subsequent_indent=" " * 12,
            break_long_words=False,
            break_on_hyphens=False,
        )
        lines += filled
    return lines


def _operand_text(direction: Direction, tensor: TensorRecord) -> str:
    text = describe(tensor)
    if tensor.name not in direction.reads:
        has_gradient = any(result.source == tensor.name for result in direction.results.values())
        return f"{text}; not read here" + (", but its type is its gradient's" if has_gradient else "")
    if tensor.role == "cotangent":
        return f"{text}; None stands for zero"
    if tensor.name not in direction.required:
        left_out = f"{tensor.default:g} if left out" if tensor.default is not None else "may be left out"
        return f"{text}; {left_out}"
    if tensor.name in direction.defaulted:
        return f"{text}; needed: it has a default only because one before it has"
    return text


def describe(tensor: TensorRecord) -> str:
    """What a tensor is, in a line."""
    kind = tensor.dtype or (f"of the type of {tensor.like}" if tensor.like else "")
    role = f"gradient of {tensor.source}" if tensor.role == "gradient" and tensor.source else tensor.role
    if tensor.role == "cotangent" and tensor.source:
        role = f"cotangent of {tensor.source}"
    text = f"{role} [{dims_text(tensor.dims)}]" + (f", {kind}" if kind else "")
    return f"{text}: {tensor.doc}" if tensor.doc else text


def float_text(attr: AttrRecord) -> str:
    """What an attr is, in a line."""
    bound = "" if attr.low is None else f" {'>' if attr.strict else '>='} {attr.low:g}"
    return f"float{bound}" + (f": {attr.doc}" if attr.doc else "")


def attr_text(value: float | int | bool) -> str:
    """An attr's value as the command line takes it."""
    return str(value).lower() if isinstance(value, bool) else repr(value)


def prose(text: str, indent: int) -> str:
    """A doc as the beginning of a docstring: wrapped and escaped."""
    return textwrap.fill(
        escaped(text),
        width=WIDTH - 4,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def escaped(text: str) -> str:
    """Text for the inside of a triple-quoted string: no quote, backslash or hidden character acts."""
    doubled = text.replace("\\", "\\\\")
    quoted = _CLOSING_QUOTES.sub(lambda found: '\\"' * len(found.group()), doubled)
    if quoted.replace("\n", "").replace("\t", "").isprintable():
        return quoted
    return "".join(visible(character) for character in quoted)


def visible(character: str) -> str:
    """A character, or its escape if it would hide, act, or reorder what stands around it."""
    if character in "\n\t" or character.isprintable():
        return character
    return repr(character)[1:-1]
