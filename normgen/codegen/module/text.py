"""A package -> the text of a Python module that holds it: self-contained but for `normgen.runtime`.

Deterministic, and laid out as `ruff format` would. Python prints values, the template owns the page.
Whatever a user wrote (docs, the spec) enters as a string literal, an escaped docstring or a comment,
and so means nothing.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from typing import TYPE_CHECKING

from normgen.codegen.module.literal import WIDTH, literal, quoted, record_types
from normgen.codegen.module.wording import attr_text, describe, docstring, escaped, prose, visible
from normgen.package.records import Package
from normgen.package.schema import schema
from normgen.runtime.calls.direction import Direction, directions
from normgen.runtime.norm import result_type_name

if TYPE_CHECKING:
    import jinja2


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
    command += "".join(f" --attr {name}={attr_text(value)}" for name, value in package.folded)
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
            check=_wrapped("check_abi(", [str(package.abi), quoted(command), quoted(schema())], ")", 0),
            doc=prose(package.doc or f"The norm {package.name}.", 0),
            abstract=f"from collections.abc import {', '.join(abstract)}",
            imports=_imports(set(record_types(package))),
            exported=_wrapped("__all__ = [", [quoted(name) for name in exported], "]", 0),
            functions=functions,
            mathematics=[(title, _comment(text)) for title, text in mathematics],
            constants=[(constant.name, _block(constant.text)) for constant in constants],
            literal=literal(package, names, prefix="PACKAGE = "),
            norm=_wrapped("NORM = Norm(", ["PACKAGE", f"results=({results})"], ")", 0),
        )
    )


def _constants(package: Package) -> Iterator[_Constant]:
    """The long texts: the spec, the device functions, and every kernel text."""
    yield _Constant("SPEC", package.spec)
    if package.header:
        yield _Constant("DEVICE_FUNCTIONS", package.header)
    for record in (package.forward, package.backward):
        for kernel in record.kernels if record is not None else ():
            stem = kernel.name.removeprefix(f"{package.name}_").upper()
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
        docstring=docstring(package, direction),
        result=result,
        fields=tuple(
            (tensor.name, _one_line(describe(tensor), WIDTH - 15 - len(tensor.name)))
            for tensor in direction.results.values()
        ),
        call=_wrapped(f"result: {result} = NORM.{direction.name}(", arguments, ")", 4),
        reads=literal(direction.reads, prefix=f"{direction.name}_args = "),
    )


def _positional(direction: Direction) -> Iterator[str]:
    """Operands in the order of the spec; from the first that may be left out on, all have a default."""
    for name in direction.reads:
        kind = "Array" if name in direction.required else "Array | None"
        yield f"{name}: {'Array | None = None' if name in direction.defaulted else kind}"


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
    shared = {
        "stream": "stream: object = None",
        "workspace": "workspace: Mapping[str, Array] | None = None",
        "sm_count": "sm_count: int | None = None",
    }
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


def _block(text: str) -> str:
    """A long text as a triple-quoted literal that starts on its own line."""
    return f'"""\\\n{escaped(text)}"""'


def _imports(types: Iterable[type]) -> str:
    # Only now that the ABI is known to fit may the records be asked for.
    names: dict[str, list[str]] = {}
    for each in types:
        names.setdefault(each.__module__, []).append(each.__name__)
    return "\n".join(
        "\n".join([f"from {module} import (  # noqa: E402", *(f"    {name}," for name in sorted(found)), ")"])
        for module, found in sorted(names.items())
    )


def _one_line(text: str, width: int) -> str:
    return textwrap.shorten("".join(visible(c) for c in text.replace("\n", " ")), width, placeholder=" ...")


def _comment(text: str) -> str:
    lines = ("".join(visible(c) for c in line) for line in text.rstrip("\n").split("\n"))
    return "\n".join(f"#     {line}".rstrip() for line in lines)


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
