"""The API as pages, from signatures and docstrings, without importing the modules."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import griffe

from tools.docs.links import outside_code
from tools.docs.pages import ROOT, Page

Member = griffe.Object | griffe.Alias


class Undocumented(Exception):
    """A public name without a docstring."""


@dataclass(frozen=True)
class Module:
    """A module with public names, and the classes behind them."""

    page: str
    path: str
    returned: tuple[str, ...] = ()  # classes that its functions return, without a public name


MODULES = (
    Module(
        "api-normgen",
        "normgen",
        (
            "normgen.runtime.norm.Norm",
            "normgen.runtime.calls.plan.Plan",
            "normgen.runtime.ranks.norm.SpreadNorm",
            "normgen.runtime.ranks.group.Ranks",
            "normgen.verify.report.Report",
        ),
    ),
    Module(
        "api-torch",
        "normgen.torch",
        (
            "normgen.torch.ranks.function.SpreadFunction",
            "normgen.torch.ranks.partial.SummedFunction",
            "normgen.torch.patching.report.Report",
        ),
    ),
    Module("api-torch-nn", "normgen.torch.nn"),
)
# Methods of PyTorch's modules, which the docstring of the class covers.
OF_MODULES = ("forward", "extra_repr", "reset_parameters")


def api() -> Iterable[Page]:
    """A page per public module."""
    package = griffe.load("normgen", search_paths=[ROOT], resolve_aliases=True)
    found = {module: _member(package, module.path) for module in MODULES}
    places = {
        path: f"{module.page}.md#{path.rpartition('.')[2].lower()}"
        for module in reversed(MODULES)  # a class of two modules has its place in the first
        for path in (
            *(found[module][name].canonical_path for name in _names(found[module])),
            *module.returned,
        )
    }
    for module in MODULES:
        text = page(found[module], module, package, places)
        yield Page(f"reference/{module.page}.md", f"docs/reference/{module.page}.md", text)


def page(found: Member, module: Module, package: Member, places: Mapping[str, str]) -> str:
    """The page of a module. `places`: where pages describe a class, by its path."""
    entries = [(f"{module.path}.{name}", found[name]) for name in _names(found)]
    entries += [(path, _member(package, path)) for path in module.returned]
    parts = [f"# {module.path}", _docstring(module.path, found)]
    for name, member in entries:
        parts += _entry(name, member, package, places, named=name not in module.returned)
    return "\n\n".join(parts) + "\n"


def _names(found: Member) -> list[str]:
    """The public names of a module that are no modules."""
    names = [str(name) for name in found.exports or () if not str(name).startswith("__")]
    return [name for name in names if not found[name].is_module]


def _member(package: Member, path: str) -> Member:
    return package if path == package.path else package[path.removeprefix(f"{package.path}.")]


def _entry(
    name: str, member: Member, package: Member, places: Mapping[str, str], named: bool
) -> Iterator[str]:
    """A name and, of a class, its methods; with its signature, unless users get it from another call."""
    last = name.rpartition(".")[2]
    parts = [(f"## {last}", name, name, member)]
    for method in member.members.values() if member.is_class else ():
        if _is_shown(method):
            heading = f"### {last}.{method.name}".replace("_", r"\_")
            parts.append((heading, f"{name}.{method.name}", f"{last}.{method.name}", method))
    for heading, path, called, each in parts:
        yield heading
        if each is member and not named:
            yield _code(f"class {name}")
        else:
            yield _code(_signature(called, each, package))
            if types := list(dict.fromkeys(_types(each, package, places))):
                yield f"Types: {'; '.join(types)}."
        yield _docstring(path, each)


def _annotations(member: Member) -> Iterator[griffe.Expr | str | None]:
    if member.is_attribute:
        yield member.annotation
        return
    yield from (each.annotation for each in member.parameters)
    if member.is_function:
        yield member.returns


def _types(member: Member, package: Member, places: Mapping[str, str]) -> Iterator[str]:
    """The types in a signature that are normgen's own: a link to the page of each, or its definition."""
    for annotation in _annotations(member):
        yield from _own(annotation, package, places)


def _own(written: griffe.Expr | str | None, package: Member, places: Mapping[str, str]) -> Iterator[str]:
    for part in written.iterate(flat=True) if isinstance(written, griffe.Expr) else ():
        path = part.canonical_path if isinstance(part, griffe.ExprName) else ""
        if path in places:
            yield f"[`{part}`]({places[path]})"
        elif (value := _value(part, package)) is not None:
            yield f"`{part}` is `{value}`"
            yield from _own(value, package, places)


def _value(name: object, package: Member) -> griffe.Expr | str | None:
    """What a name of normgen's modules is assigned."""
    if not isinstance(name, griffe.ExprName) or not name.canonical_path.startswith(f"{package.path}."):
        return None
    member = _member(package, name.canonical_path)
    return member.value if member.is_attribute else None


def _is_shown(method: Member) -> bool:
    public = not method.name.startswith("_") or method.name == "__call__"
    property_or_method = method.is_function or (method.is_attribute and "property" in method.labels)
    return public and property_or_method and method.name not in OF_MODULES


def _docstring(name: str, member: Member) -> str:
    if member.docstring is None:
        raise Undocumented(f"{name} has no docstring ({member.filepath}:{member.lineno})")
    of_parameters = _parameters_of(member)
    text = "\n\n".join(_paragraph(each, of_parameters) for each in member.docstring.value.split("\n\n"))
    return text.replace("\n```\n\n```python\n", "\n\n")  # one example, though it has an empty line


def _parameters_of(member: Member) -> re.Pattern[str] | None:
    """The start of the text about a parameter: `name: ` at the start of a line or a sentence."""
    if not (member.is_class or member.is_function) or not member.parameters:
        return None
    names = "|".join(each.name for each in member.parameters)
    return re.compile(rf"(?:^|(?<=[.)]) )`?\b({names})\b`?: ", re.MULTILINE)


# The end of the text about the last parameter.
_OUTCOME = re.compile(r"(?<=[.:])\s(?=(?:Returns|Raises) )")


def _paragraph(text: str, of_parameters: re.Pattern[str] | None) -> str:
    """A paragraph of a docstring as Markdown: examples become code, parameters a list."""
    if text.startswith(">>> ") or all(line.startswith("    ") for line in text.splitlines()):
        return _code(textwrap.dedent(text))
    text = outside_code(text, lambda part: part.replace("*", r"\*"))
    before, *parameters = of_parameters.split(text) if of_parameters else [text]
    after = ""
    if parameters:
        parameters[-1], *rest = _OUTCOME.split(parameters[-1], maxsplit=1)
        after = "".join(rest)
    items = [
        f"- `{name}`: {textwrap.indent(said.strip(), '  ').strip()}"
        for name, said in zip(parameters[::2], parameters[1::2], strict=True)
    ]
    return "\n\n".join(filter(None, [before.strip(), "\n".join(items), after]))


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


def _signature(name: str, member: Member, package: Member) -> str:
    """How it is called, a parameter a line where one line is too short."""
    if member.is_class:
        bases = [str(base) for base in member.bases]
        if not member.parameters and any(base.startswith("torch.") for base in bases):
            return f"class {name}({bases[-1]})"  # takes what that class of PyTorch takes
        parameters, returns = member.parameters, ""
    elif member.is_function:
        parameters, returns = member.parameters, f" -> {member.returns}" if member.returns else ""
    else:
        return f"{name}: {member.annotation}"
    given = list(_written(parameters, package))
    line = f"{name}({', '.join(given)}){returns}"
    if len(line) <= 80:
        return line
    return "\n".join([f"{name}(", *(f"    {each}," for each in given), f"){returns}"])


def _written(parameters: griffe.Parameters, package: Member) -> Iterator[str]:
    kinds = griffe.ParameterKind
    before = None
    for each in parameters:
        if each.name == "self":
            continue
        if before is kinds.positional_only and each.kind is not kinds.positional_only:
            yield "/"
        if each.kind is kinds.keyword_only and before not in (kinds.keyword_only, kinds.var_positional):
            yield "*"
        star = {kinds.var_positional: "*", kinds.var_keyword: "**"}.get(each.kind, "")
        annotation = f": {each.annotation}" if each.annotation else ""
        default = _value(each.default, package) or each.default
        given = f" = {default}" if default is not None and not star else ""
        yield f"{star}{each.name}{annotation}{given}"
        before = each.kind
    if before is kinds.positional_only:
        yield "/"
