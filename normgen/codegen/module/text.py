"""A package -> the text of a Python module that holds it: self-contained but for `normgen.runtime.norm`.

Deterministic, and laid out as `ruff format` would. Python prints values, the template owns the page.
Whatever a user wrote (docs, the spec) enters as a string literal, an escaped docstring or a comment,
and so means nothing.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from normgen import bundled
from normgen.codegen.module.literal import WIDTH, literal, quoted
from normgen.codegen.module.wording import attr_text, docstring, escaped, prose, visible
from normgen.kernel.templates import environment
from normgen.package.direction import Direction, directions
from normgen.package.plain import plain, schema
from normgen.package.records import ABI, Package
from normgen.package.signature import REQUIRED, Argument, arguments, describe, signature

_WHOLE_WORDS: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}


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


def _spec_of(package: Package) -> str:
    """What the command line calls the spec: a bundled one by its name, another by the file of that name."""
    known = bundled.read(package.name)
    return package.name if known is not None and known.text == package.spec else f"{package.name}.norm"


def module_text(
    package: Package,
    mathematics: Sequence[tuple[str, str]],
    version: str,
    forms: Sequence[str],
    texts: Mapping[str, tuple[str, str]],
    file: str,
) -> str:
    """The module. `mathematics`: titled texts of the forward and the derived backward, shown as comments;
    `forms`: the lines that say which form of a kernel runs when; `texts`: by its entry the text of each such
    form, behind a digest of the constants that it is for; `file`: the name of the spec, which texts quote."""
    functions = [_function(package, each) for each in directions(package) if each is not None]
    abstract = ["Iterable", "Mapping"] if package.backward is not None else ["Mapping"]
    results = ", ".join(each.result for each in functions) + ("" if package.backward else ", None")
    constants = {entry.removeprefix(f"{package.name}_").upper(): text for entry, (_, text) in texts.items()}
    about = {
        "abi": ABI,
        "command": command_of(package),
        "file": file,
        "attrs": dict(package.folded),
        "texts": dict(texts),
    }
    return _rendered(
        "module.py.jinja",
        package,
        version,
        command_of(package),
        abstract=f"from collections.abc import {', '.join(abstract)}",
        functions=functions,
        mathematics=[(title, _comment(text)) for title, text in mathematics],
        forms="\n".join(f"# {line}".rstrip() for line in forms),
        constants=[(name, _block(text)) for name, text in constants.items()],
        about=literal(about, {text: name for name, text in constants.items()}, prefix="ABOUT = "),
        norm=_wrapped("NORM = load_module(", ["SPEC", "ABOUT", f"results=({results})"], ")"),
    )


def one_shape_text(package: Package, version: str, options: str) -> str:
    """The module of calls of one shape. `package`: with what these launch; `options`: what the command has
    for the shape, beside the spec and attrs."""
    found = [each for each in directions(package) if each is not None]
    calls = [
        _comment(f"{each.name}{signature(arguments(package, each))} -> {', '.join(each.results)}", "# ")
        for each in found
    ]
    texts, command = _named_texts(package), f"{command_of(package)} {options}"
    head = {"abi": ABI, "schema": schema(), "command": command}
    names = {text: name for name, text in texts.items()} | {package.spec: "SPEC"}
    return _rendered(
        "one_shape.py.jinja",
        package,
        version,
        command,
        constants=[(name, _block(text)) for name, text in texts.items()],
        literal=literal(head | plain(package), names, prefix="PACKAGE = "),
        functions=[(each.name, call) for each, call in zip(found, calls, strict=True)],
    )


def command_of(package: Package) -> str:
    """The command that compiles the spec of a package for any call."""
    attrs = "".join(f" --attr {name}={attr_text(value)}" for name, value in package.folded)
    return f"normgen compile {_spec_of(package)}{attrs}"


def _rendered(template: str, package: Package, version: str, command: str, **own: object) -> str:
    """A module by a template, with what is in every module."""
    exported = sorted(
        name for each in directions(package) if each for name in (each.name, f"{each.name}_args")
    )
    return (
        environment()
        .get_template(template)
        .render(
            package=package,
            version=version,
            digest=sha256(package.spec.encode()).hexdigest(),
            command=command,
            doc=prose(package.doc or f"The norm {package.name}.", 0),
            exported=_wrapped("__all__ = [", [quoted(name) for name in exported], "]"),
            spec=_block(package.spec),
            **own,
        )
    )


def _named_texts(package: Package) -> dict[str, str]:
    """The texts of a module of one shape, by the names that they have there: of a kernel's second text and
    the next, with a number."""
    found: dict[str, str] = {}
    for record in (package.forward, package.backward):
        for launch in record.made.launches if record is not None and record.made is not None else ():
            if launch.text not in found.values():
                name = launch.entry.removeprefix(f"{package.name}_").upper()
                count = 1 + sum(re.fullmatch(rf"{name}(_\d+)?", other) is not None for other in found)
                found[name if count == 1 else f"{name}_{count}"] = launch.text
    return found


def _function(package: Package, direction: Direction) -> _Function:
    taken = arguments(package, direction)
    positional = [each for each in taken if each.positional]
    named = [each for each in taken if not each.positional]
    parameters = [*map(_parameter, positional), "*", *map(_parameter, named)]
    given = [*direction.reads, *(f"{each.name}={each.name}" for each in named)]
    result = direction.result_type
    return _Function(
        name=direction.name,
        signature=_wrapped(f"def {direction.name}(", parameters, f") -> {result}:"),
        docstring=docstring(package, direction),
        result=result,
        fields=tuple(
            (tensor.name, _one_line(describe(tensor), WIDTH - 15 - len(tensor.name)))
            for tensor in direction.results.values()
        ),
        call=_filled(f"result: {result} = NORM.{direction.name}(", given),
        reads=literal(direction.reads, prefix=f"{direction.name}_args = "),
    )


def _parameter(argument: Argument) -> str:
    """A parameter with its type and default."""
    default = "" if argument.default is REQUIRED else f" = {argument.default!r}"
    return f"{argument.name}: {argument.type}{default}"


def _wrapped(opening: str, parts: Sequence[str], closing: str) -> str:
    """A call or a signature: on one line where it fits, else a part a line, as formatters do."""
    line = opening + ", ".join(parts) + closing
    if len(line) <= WIDTH:
        return line
    return "\n".join([opening, *(f"    {part}," for part in parts), closing])


def _filled(opening: str, parts: Sequence[str]) -> str:
    """A call in a function: on one line where it fits, else in as few as there can be, which formatters are
    told to leave alone."""
    line = f"{opening}{', '.join(parts)})"
    if len(line) + 4 <= WIDTH:
        return line
    lines = textwrap.wrap(", ".join(parts), WIDTH - 8, **_WHOLE_WORDS)
    return "\n".join([opening, *(f"        {each}" for each in lines), "    )  # fmt: skip"])


def _block(text: str) -> str:
    """A long text as a triple-quoted literal that starts on its own line."""
    return f'"""\\\n{escaped(text)}"""'


def _one_line(text: str, width: int) -> str:
    return textwrap.shorten("".join(visible(c) for c in text.replace("\n", " ")), width, placeholder=" ...")


def _comment(text: str, margin: str = "#     ") -> str:
    """A text as comment lines; a long line goes on below, further in."""
    lines: list[str] = []
    for line in text.rstrip("\n").split("\n"):
        shown = "".join(visible(c) for c in line)
        lines += textwrap.wrap(shown, WIDTH - len(margin), subsequent_indent="    ", **_WHOLE_WORDS) or [""]
    return "\n".join(f"{margin}{line}".rstrip() for line in lines)
