"""The API as pages, from signatures and docstrings, read without importing what they describe."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import griffe

from tools.docs.links import outside_code
from tools.docs.pages import ROOT, Page


class Undocumented(Exception):
    """A public name without a docstring."""


@dataclass(frozen=True)
class Module:
    """A module with public names, and what else it hands out."""

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
        ),
    ),
    Module(
        "api-torch",
        "normgen.torch",
        ("normgen.torch.ranks.function.SpreadFunction", "normgen.torch.ranks.partial.SummedFunction"),
    ),
    Module("api-torch-nn", "normgen.torch.nn"),
    Module("api-autograd", "normgen.autograd"),
)
# Methods of PyTorch's modules, which the docstring of the class speaks for.
OF_MODULES = ("forward", "extra_repr", "reset_parameters")


def api() -> Iterable[Page]:
    """A page per public module."""
    package = griffe.load("normgen", search_paths=[ROOT], resolve_aliases=True)
    for module in MODULES:
        found = package if module.path == "normgen" else package[module.path.removeprefix("normgen.")]
        yield Page(
            f"reference/{module.page}.md", f"docs/reference/{module.page}.md", page(found, module, package)
        )


def page(found: griffe.Object | griffe.Alias, module: Module, package: griffe.Object | griffe.Alias) -> str:
    """The page of a module."""
    names = [name for name in found.exports or () if not str(name).startswith("__")]
    parts = [f"# {module.path}", _docstring(module.path, found)]
    for name in names:
        if not found[str(name)].is_module:
            path = f"{module.path}.{name}"
            parts += _entry(path, found[str(name)], _signature(path, found[str(name)]))
    for path in module.returned:
        parts += _entry(path, package[path.removeprefix("normgen.")], f"class {path}")
    return "\n\n".join(parts) + "\n"


def _entry(name: str, member: griffe.Object | griffe.Alias, signature: str) -> Iterator[str]:
    last = name.rpartition(".")[2]
    yield f"## {last}"
    yield _code(signature)
    yield _docstring(name, member)
    if member.is_class:
        for method in member.members.values():
            if _is_shown(method):
                yield f"### {last}.{method.name}"
                yield _code(_signature(f"{last}.{method.name}", method))
                yield _docstring(f"{name}.{method.name}", method)


def _is_shown(method: griffe.Object | griffe.Alias) -> bool:
    public = not method.name.startswith("_") or method.name == "__call__"
    property_or_method = method.is_function or (method.is_attribute and "property" in method.labels)
    return public and property_or_method and method.name not in OF_MODULES


def _docstring(name: str, member: griffe.Object | griffe.Alias) -> str:
    if member.docstring is None:
        raise Undocumented(f"{name} has no docstring ({member.filepath}:{member.lineno})")
    text = "\n\n".join(map(_paragraph, member.docstring.value.split("\n\n")))
    return text.replace("\n```\n\n```python\n", "\n\n")  # one example, though it has an empty line


def _paragraph(text: str) -> str:
    """A paragraph of a docstring as Markdown: examples are code, and `*` is one in all other text."""
    if text.startswith(">>> ") or all(line.startswith("    ") for line in text.splitlines()):
        return _code(textwrap.dedent(text))
    return outside_code(text, lambda part: part.replace("*", r"\*"))


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


def _signature(name: str, member: griffe.Object | griffe.Alias) -> str:
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
    given = [str(each) for each in _written(parameters)]
    line = f"{name}({', '.join(given)}){returns}"
    if len(line) <= 80:
        return line
    return "\n".join([f"{name}(", *(f"    {each}," for each in given), f"){returns}"])


def _written(parameters: griffe.Parameters) -> Iterator[str]:
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
        default = f" = {each.default}" if each.default is not None and not star else ""
        yield f"{star}{each.name}{annotation}{default}"
        before = each.kind
    if before is kinds.positional_only:
        yield "/"
