"""A package -> the text of a Python module that holds it: self-contained but for `normgen.runtime`.

Deterministic, and laid out as `ruff format` would. Python prints values, the template owns the page.
Whatever a user wrote (docs, the spec) enters as a string literal, an escaped docstring or a comment,
and so means nothing.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from normgen.runtime.binding import Direction, directions
from normgen.runtime.layout import dims_text
from normgen.runtime.norm import result_type_name
from normgen.runtime.records import AttrRecord, Package, TensorRecord

if TYPE_CHECKING:
    import jinja2

WIDTH = 110

# Quotes that could end a triple-quoted string: three in a row, or the last ones.
_CLOSING_QUOTES = re.compile(r'"{3,}|"+(?=\s*\Z)')


@dataclass(frozen=True, slots=True)
class _Constant:
    """A long text of the package, by the name it has in the module."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class _Function:
    """`forward` or `backward` of the module: all that its text needs."""

    name: str
    signature: str
    docstring: str
    result: str
    fields: tuple[tuple[str, str], ...]
    call: str
    reads: str


def module_text(package: Package, mathematics: Sequence[tuple[str, str]], version: str) -> str:
    """The module. `mathematics`: titled texts of the forward and the derived backward, shown as comments."""
    constants = tuple(_constants(package))
    names = {constant.text: constant.name for constant in constants}
    functions = [_function(package, each) for each in directions(package) if each is not None]
    command = f"normgen compile {package.name}.norm"
    command += "".join(f" --attr {name}={_attr_text(value)}" for name, value in package.folded)
    abstract = ["Iterable", "Mapping"] if package.backward is not None else ["Mapping"]
    exported = sorted(name for each in functions for name in (each.name, f"{each.name}_args"))
    results = ", ".join(each.result for each in functions) + ("" if package.backward else ", None")
    return (
        _environment()
        .get_template("module.py.jinja")
        .render(
            package=package,
            version=version,
            digest=sha256(package.spec.encode()).hexdigest(),
            command=command,
            quoted_command=_quoted(command),
            doc=_prose(package.doc or f"The norm {package.name}.", 0),
            abstract=f"from collections.abc import {', '.join(abstract)}",
            imports=_imports(sorted(set(_record_names(package)))),
            exported=_wrapped("__all__ = [", [_quoted(name) for name in exported], "]", 0),
            functions=functions,
            mathematics=[(title, _comment(text)) for title, text in mathematics],
            constants=[(constant.name, _block(constant.text)) for constant in constants],
            literal=literal(package, names, prefix="PACKAGE = "),
            norm=_wrapped("NORM = Norm(", ["PACKAGE", f"results=({results})"], ")", 0),
        )
    )


def literal(value: Any, names: Mapping[str, str] | None = None, prefix: str = "", indent: int = 0) -> str:
    """A record as Python source, on one line where it fits; texts in `names` are written as those names.

    `prefix` stands before the value on its first line.
    """
    names = names or {}
    flat = prefix + _flat(value, names)
    if len(flat) + indent + (1 if indent else 0) <= WIDTH or not _parts(value):
        return flat
    opening, closing = _brackets(value)
    inner = indent + 4
    lines = [
        " " * inner + literal(part, names, f"{name}=" if name else "", inner) + ","
        for name, part in _parts(value)
    ]
    return "\n".join([prefix + opening, *lines, " " * indent + closing])


def _flat(value: Any, names: Mapping[str, str]) -> str:
    if isinstance(value, str):
        return names[value] if "\n" in value and value in names else _quoted(value)
    parts = _parts(value)
    if not parts and not isinstance(value, tuple) and not is_dataclass(value):
        return repr(value)
    inside = ", ".join((f"{name}=" if name else "") + _flat(part, names) for name, part in parts)
    if isinstance(value, tuple) and len(parts) == 1:
        inside += ","
    opening, closing = _brackets(value)
    return opening + inside + closing


def _parts(value: Any) -> list[tuple[str, Any]]:
    """The fields of a record that differ from their defaults, or the elements of a tuple."""
    if isinstance(value, tuple):
        return [("", element) for element in value]
    if not is_dataclass(value):
        return []
    return [
        (field.name, getattr(value, field.name))
        for field in fields(value)
        if field.default is MISSING or getattr(value, field.name) != field.default or field.name == "abi"
    ]


def _brackets(value: Any) -> tuple[str, str]:
    return ("(", ")") if isinstance(value, tuple) else (f"{type(value).__name__}(", ")")


def _record_names(value: Any) -> Iterator[str]:
    if is_dataclass(value):
        yield type(value).__name__
    for _, part in _parts(value):
        yield from _record_names(part)


def _constants(package: Package) -> Iterator[_Constant]:
    """The long texts: the spec, the device functions, and every kernel text."""
    yield _Constant("SPEC", package.spec)
    if package.header:
        yield _Constant("DEVICE_FUNCTIONS", package.header)
    for direction, record in (("FORWARD", package.forward), ("BACKWARD", package.backward)):
        for number, kernel in enumerate(record.kernels if record is not None else (), 1):
            stem = direction if record is None or len(record.kernels) == 1 else f"{direction}_{number}"
            for form in kernel.forms:
                yield _Constant(f"{stem}_{form.form.upper()}", form.source)


def _function(package: Package, direction: Direction) -> _Function:
    forward = direction.name == "forward"
    parameters = [*_positional(direction), "*", *_keywords(package, direction)]
    result = result_type_name(package.name, direction.name)
    arguments = [*direction.reads]
    arguments += [f"{name}={name}" for name in direction.operands if name not in direction.reads]
    arguments += [f"{name}={name}" for name, _ in _floats(package)]
    arguments += [f"{name}={name}" for name in _options(forward)]
    return _Function(
        name=direction.name,
        signature=_wrapped(f"def {direction.name}(", parameters, f") -> {result}:", 0),
        docstring=_docstring(package, direction),
        result=result,
        fields=tuple(
            (tensor.name, _one_line(_tensor_text(tensor), WIDTH - 15 - len(tensor.name)))
            for tensor in direction.results.values()
        ),
        call=_wrapped(f"result: {result} = NORM.{direction.name}(", arguments, ")", 4),
        reads=literal(direction.reads, prefix=f"{direction.name}_args = "),
    )


def _positional(direction: Direction) -> Iterator[str]:
    """Operands in order; from the first that may be left out on, all have a default, as Python demands."""
    optional = False
    for name in direction.reads:
        needed = name in direction.required
        optional = optional or not (needed or name in direction.mentioned)
        kind = "Array" if needed else "Array | None"
        yield f"{name}: {'Array | None = None' if optional else kind}"


def _keywords(package: Package, direction: Direction) -> Iterator[str]:
    forward = direction.name == "forward"
    for name in direction.operands:
        if name not in direction.reads:
            yield f"{name}: Array | None = None"
    for name, default in _floats(package):
        yield f"{name}: float" + (f" = {default!r}" if default is not None else "")
    yield from _options(forward).values()


def _floats(package: Package) -> list[tuple[str, float | None]]:
    """Float attrs with their defaults; the folded ones too, which a call may only repeat."""
    folded = [(name, value) for name, value in package.folded if type(value) is float]
    return [*((attr.name, attr.default) for attr in package.attrs), *folded]


def _options(forward: bool) -> dict[str, str]:
    out = "out: Mapping[str, Array] | None = None"
    shared = {"stream": "stream: object = None", "workspace": "workspace: Mapping[str, Array] | None = None"}
    if forward:
        return {"save": "save: bool = True", "out": out, **shared}
    wrt = "wrt: str | Iterable[str] | None = None"
    return {"wrt": wrt, "accumulate": "accumulate: bool = False", "out": out, **shared}


def _wrapped(opening: str, parts: Sequence[str], closing: str, indent: int) -> str:
    """A call or a signature: on one line where it fits, else a part a line, as formatters do."""
    line = opening + ", ".join(parts) + closing
    if len(line) + indent <= WIDTH:
        return line
    margin = " " * indent
    return "\n".join([opening, *(f"{margin}    {part}," for part in parts), margin + closing])


def _docstring(package: Package, direction: Direction) -> str:
    """The docstring's text, escaped, with its margin of four spaces but without quotes."""
    forward = direction.name == "forward"
    if forward:
        head = package.doc or f"The norm {package.name}."
    else:
        head = f"The gradients of `{package.name}`."
    entries = [(name, _operand_text(direction, tensor)) for name, tensor in direction.operands.items()]
    entries += [(attr.name, _float_text(attr)) for attr in package.attrs]
    entries += [
        (name, f"folded to {value!r}; a call may not change it")
        for name, value in package.folded
        if type(value) is float
    ]
    if forward:
        entries.append(("save", "False leaves the saves out: they come back as None"))
    else:
        entries.append(("wrt", "the names to differentiate by, all by default; the other gradients are None"))
        entries.append(("accumulate", "add the gradients of params to those in `out`"))
    entries.append(("out", "arrays to write, by result name: contiguous, and apart from all others"))
    entries.append(
        ("stream", "for device arrays: a handle or stream object other than the caller's current one")
    )
    entries.append(("workspace", "scratch arrays as `NORM.workspace` tells; allocated and kept by default"))
    results = [(name, _tensor_text(tensor)) for name, tensor in direction.results.items()]
    lines = [*_prose(head, 4).split("\n"), "", *_section("Args", entries), "", *_section("Returns", results)]
    errors = [
        (
            "TypeError",
            "an argument is missing or unknown, is no array, or has an element type that does not fit",
        ),
        ("ValueError", "shapes, devices or attr values do not fit, or arrays overlap that are written"),
    ]
    lines += ["", *_section("Raises", errors)]
    return "\n".join(lines).rstrip()


def _section(title: str, entries: Sequence[tuple[str, str]]) -> list[str]:
    lines = [f"    {title}:"]
    for name, text in entries:
        filled = textwrap.wrap(
            f"{name}: {_escaped(text)}",
            width=WIDTH - 2,
            initial_indent=" " * 8,
            subsequent_indent=" " * 12,
            break_long_words=False,
            break_on_hyphens=False,
        )
        lines += filled
    return lines


def _operand_text(direction: Direction, tensor: TensorRecord) -> str:
    text = _tensor_text(tensor)
    if tensor.name not in direction.reads:
        has_gradient = any(result.source == tensor.name for result in direction.results.values())
        return f"{text}; not read here" + (", but its type is its gradient's" if has_gradient else "")
    if tensor.role == "cotangent":
        return f"{text}; None stands for zero"
    if tensor.name not in direction.required:
        left_out = f"{tensor.default:g} if left out" if tensor.default is not None else "may be left out"
        return f"{text}; {left_out}"
    return text


def _tensor_text(tensor: TensorRecord) -> str:
    kind = tensor.dtype or (f"of the type of {tensor.like}" if tensor.like else "")
    role = f"gradient of {tensor.source}" if tensor.role == "gradient" and tensor.source else tensor.role
    if tensor.role == "cotangent" and tensor.source:
        role = f"cotangent of {tensor.source}"
    text = f"{role} [{dims_text(tensor.dims)}]" + (f", {kind}" if kind else "")
    return f"{text}: {tensor.doc}" if tensor.doc else text


def _float_text(attr: AttrRecord) -> str:
    bound = "" if attr.low is None else f" {'>' if attr.strict else '>='} {attr.low:g}"
    return f"float{bound}" + (f": {attr.doc}" if attr.doc else "")


def _attr_text(value: float | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _prose(text: str, indent: int) -> str:
    """A doc as the beginning of a docstring: wrapped and escaped."""
    return textwrap.fill(
        _escaped(text),
        width=WIDTH - 4,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _escaped(text: str) -> str:
    """Text for the inside of a triple-quoted string: no quote, backslash or hidden character acts."""
    doubled = text.replace("\\", "\\\\")
    quoted = _CLOSING_QUOTES.sub(lambda found: '\\"' * len(found.group()), doubled)
    return "".join(_visible(character) for character in quoted)


def _visible(character: str) -> str:
    if character in "\n\t" or character.isprintable():
        return character
    return repr(character)[1:-1]


def _block(text: str) -> str:
    """A long text as a triple-quoted literal that starts on its own line."""
    return f'"""\\\n{_escaped(text)}"""'


def _imports(names: Sequence[str]) -> str:
    # Only now that the ABI is known to fit may the records be asked for.
    return "\n".join(
        ["from normgen.runtime.records import (  # noqa: E402", *(f"    {name}," for name in names), ")"]
    )


def _one_line(text: str, width: int) -> str:
    return textwrap.shorten("".join(_visible(c) for c in text.replace("\n", " ")), width, placeholder=" ...")


def _comment(text: str) -> str:
    lines = ("".join(_visible(c) for c in line) for line in text.rstrip("\n").split("\n"))
    return "\n".join(f"#     {line}".rstrip() for line in lines)


def _quoted(text: str) -> str:
    """A string literal with double quotes, as a formatter would choose."""
    plain = repr(text)
    if plain.startswith("'") and '"' not in plain:
        return f'"{plain[1:-1]}"'
    return plain


@cache
def _environment() -> jinja2.Environment:
    import jinja2

    return jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        loader=jinja2.PackageLoader("normgen", "templates"),
    )
