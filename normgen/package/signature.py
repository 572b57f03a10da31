"""The docstring and the signature of a direction's calls, for generated modules and for `Norm`."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from normgen.package.direction import Direction, Option
from normgen.package.records import AttrRecord, Package, TensorRecord, dims_text

WIDTH = 90  # of a docstring, in characters
REQUIRED = inspect.Parameter.empty
_OF_ONE_SHAPE = ("out", "stream")  # options of a pass that was compiled for one shape
_TYPES = {"float": float, "bool": bool}  # annotations that read well in a signature
_RAISES = (
    ("TypeError", "an argument is missing, unknown or not an array, or its element type does not fit"),
    ("ValueError", "shapes, devices or attr values do not fit, or a written array overlaps another"),
)


class Argument(NamedTuple):
    """An argument of a call. `type`: as a signature writes it."""

    name: str
    type: str
    doc: str
    default: object = REQUIRED
    positional: bool = False


Sections = dict[str, list[tuple[str, str]]]


def arguments(package: Package, direction: Direction) -> list[Argument]:
    """Operands by position, then keyword-only arguments: operands that are accepted but not read, float
    attrs, options. From the first optional operand on, all have a default, as Python requires."""
    found = []
    for name, tensor in direction.operands.items():
        positional = name in direction.reads
        needed = positional and name not in direction.defaulted
        kind = "Array" if name in direction.required and needed else "Array | None"
        default = REQUIRED if needed else None
        found.append(Argument(name, kind, operand_text(direction, tensor), default, positional))
    found += numbers(package)
    made = direction.record.made is not None
    options = [each for each in direction.options if not made or each.name in _OF_ONE_SHAPE]
    return [*found, *map(_option, options)]


def numbers(package: Package) -> Iterator[Argument]:
    """Float attrs, including folded ones: a call may repeat them."""
    for attr in package.attrs:
        yield Argument(
            attr.name, "float", float_text(attr), REQUIRED if attr.default is None else attr.default
        )
    for name, value in package.folded:
        if type(value) is float:
            yield Argument(name, "float", f"folded to {value!r}; a call may not change it", value)


def _option(option: Option) -> Argument:
    return Argument(option.name, option.type, option.doc, option.default)


def sections(package: Package, direction: Direction) -> Sections:
    """The parts of a docstring: arguments, results and exceptions."""
    return {
        "Args": [(each.name, each.doc) for each in arguments(package, direction)],
        "Returns": [(name, describe(tensor)) for name, tensor in direction.results.items()],
        "Raises": list(_RAISES),
    }


def heading(package: Package, direction: Direction) -> str:
    """A sentence that says what a call computes."""
    if direction.name == "forward":
        return package.doc or f"The norm {package.name}."
    return f"The gradients of `{package.name}`."


def documented(head: str, found: Sections) -> str:
    """A docstring."""
    lines = textwrap.wrap(head, WIDTH)
    for title, entries in found.items():
        lines += ["", f"{title}:"]
        for name, text in entries:
            lines += textwrap.wrap(
                f"{name}: {text}", WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 8
            )
    return "\n".join(lines)


def signature(taken: Iterable[Argument], before: Sequence[str] = ()) -> inspect.Signature:
    """The signature of a call. `before`: parameters that Python fills in, such as `self`."""
    ordered = sorted(taken, key=lambda each: not each.positional)
    kinds = {True: inspect.Parameter.POSITIONAL_OR_KEYWORD, False: inspect.Parameter.KEYWORD_ONLY}
    first = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in before]
    rest = [
        inspect.Parameter(
            each.name,
            kinds[each.positional],
            default=each.default,
            annotation=_TYPES.get(each.type, inspect.Parameter.empty),
        )
        for each in ordered
    ]
    return inspect.Signature([*first, *rest])


def operand_text(direction: Direction, tensor: TensorRecord) -> str:
    """A line about an operand, and about a call without it."""
    text = describe(tensor)
    if tensor.name not in direction.reads:
        has_gradient = any(result.source == tensor.name for result in direction.results.values())
        return f"{text}; not read here" + (", but it sets the type of its gradient" if has_gradient else "")
    if tensor.role == "cotangent":
        return f"{text}; None means zero"
    if tensor.name not in direction.required:
        omitted = f"{tensor.default:g} if omitted" if tensor.default is not None else "optional"
        return f"{text}; {omitted}"
    if tensor.name in direction.defaulted:
        return f"{text}; needed: it has a default only because an earlier argument has one"
    return text


def describe(tensor: TensorRecord) -> str:
    """A line about a tensor."""
    kind = tensor.dtype or (f"of the type of {tensor.like}" if tensor.like else "")
    role = f"gradient of {tensor.source}" if tensor.role == "gradient" and tensor.source else tensor.role
    if tensor.role == "cotangent" and tensor.source:
        role = f"cotangent of {tensor.source}"
    text = f"{role} [{dims_text(tensor.dims)}]" + (f", {kind}" if kind else "")
    return f"{text}: {tensor.doc}" if tensor.doc else text


def float_text(attr: AttrRecord) -> str:
    """A line about an attr."""
    bound = "" if attr.low is None else f" {'>' if attr.strict else '>='} {attr.low:g}"
    return f"float{bound}" + (f": {attr.doc}" if attr.doc else "")
