"""The declarations of a text, and the parameters of their templates."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tree_sitter import Node

from normgen.page import syntax
from normgen.page.syntax import IDENTIFIERS, declared_name, names, parts, text_of, walk

# The element types of CUDA's headers: what is written for one is needed where that one is.
_ELEMENT = re.compile(r"__half|__nv_bfloat16|__nv_fp8_e4m3|__nv_fp8_e5m2")
_WRAPPERS = ("template_declaration", "linkage_specification")
_KINDS = {
    "function_definition": "function", "struct_specifier": "class", "alias_declaration": "alias",
    "declaration": "constant", "field_declaration": "constant", "using_declaration": "alias",
}  # fmt: skip


@dataclass(frozen=True)
class Parameter:
    """A parameter of a template. `is_value`: else it is a type. `pack`: it stands for any number."""

    name: str
    is_value: bool
    pack: bool
    default: Node | None


@dataclass(eq=False)
class Declaration:
    """A declaration of a file or of a class, its `owner`. `inner`: the node without `template`. `unit`: the
    namespace of a kernel that it is in, None before all of them. `given`: the arguments that a specialisation
    is for, else None."""

    node: Node
    inner: Node
    kind: str
    name: str
    owner: Declaration | None
    unit: Node | None
    parameters: tuple[Parameter, ...] = ()
    given: tuple[Node, ...] | None = None
    members: list[Declaration] = field(default_factory=list)

    @property
    def body(self) -> Node | None:
        """The statements of a function, the members of a class."""
        return syntax.field(self.inner, "body")

    @property
    def head(self) -> list[Node]:
        """What stands before the body, without the name and the parameters of the own template."""
        found = []
        for each in parts(self.inner):
            while each.type.endswith("_declarator") and each.type != "function_declarator":
                each = parts(each)[-1]
            if each.type == "function_declarator":
                found += [part for part in parts(each) if part != syntax.field(each, "declarator")]
            elif each not in (self.body, syntax.field(self.inner, "name")):
                found.append(each)
        return found

    @property
    def element_types(self) -> set[str]:
        """The element types that a specialisation or an overload is for."""
        if self.kind not in ("class", "function") or self.owner is not None:
            return set()
        head = (each for each in parts(self.inner) if each != self.body)
        return {name for each in head for name in names(each) if _ELEMENT.fullmatch(name)}

    def deduced(self) -> dict[str, tuple[str, int]]:
        """By a template's parameter, of which other template a function's argument has it, and where."""
        own = {parameter.name for parameter in self.parameters}
        found: dict[str, tuple[str, int]] = {}
        for part in self.head if self.kind == "function" else ():
            for each in walk(part):
                given = syntax.field(each, "arguments") if each.type == "template_type" else None
                for place, argument in enumerate(parts(given) if given is not None else ()):
                    if text_of(argument) in own:
                        found.setdefault(text_of(argument), (text_of(syntax.field(each, "name")), place))
        return found

    def is_always(self) -> bool:
        """Whether its class cannot be without it: what makes up an object, and what has no name."""
        assert self.owner is not None
        if self.kind == "constant":
            return not text_of(self.inner).startswith("static")
        return not self.name or self.name in ("operator", self.owner.name)


def declarations(root: Node, owner: Declaration | None = None, unit: Node | None = None) -> list[Declaration]:
    """The declarations of a file, of a namespace or of a class, with the members of these."""
    found: list[Declaration] = []
    for node in parts(root):
        body = syntax.field(node, "body")
        if node.type == "namespace_definition" and body is not None:
            found += declarations(body, None, node)
            continue
        inner = node
        while inner.type in _WRAPPERS:
            inner = syntax.field(inner, "body") or parts(inner)[-1]
        each = Declaration(node, inner, _KINDS.get(inner.type, ""), _name(inner), owner, unit)
        if inner.type in ("declaration", "field_declaration") and _is_prototype(inner):
            each.kind = "function"
        each.parameters = tuple(_parameters(node))
        each.given = _given(inner)
        if each.kind == "class" and each.body is not None:
            each.members = declarations(each.body, each, unit)
        found.append(each)
    return found


def _is_prototype(node: Node) -> bool:
    declarator = syntax.field(node, "declarator")
    return declarator is not None and declarator.type == "function_declarator"


def _name(inner: Node) -> str:
    if inner.type not in _KINDS:
        return ""
    named = syntax.field(inner, "name") or syntax.field(inner, "declarator")
    while named is not None and named.type in ("init_declarator", "function_declarator", "template_type"):
        named = syntax.field(named, "declarator") or syntax.field(named, "name")
    if inner.type == "using_declaration":
        named = inner
    if named is not None and named.type == "template_function":
        named = syntax.field(named, "name")
    return declared_name(named)


def _parameters(node: Node) -> Iterator[Parameter]:
    own = syntax.field(node, "parameters") if node.type == "template_declaration" else None
    for each in parts(own) if own is not None else ():
        is_value = each.type.endswith("parameter_declaration") and "type_parameter" not in each.type
        is_value = is_value and each.type != "template_template_parameter_declaration"
        default = syntax.field(each, "default_value") or syntax.field(each, "default_type")
        named = syntax.field(each, "declarator") or syntax.field(each, "name")
        last = next((part for part in reversed(parts(each)) if part.type in IDENTIFIERS), None)
        yield Parameter(declared_name(named or last), is_value, "variadic" in each.type, default)


def _given(inner: Node) -> tuple[Node, ...] | None:
    """The arguments after the name of a specialisation."""
    named = syntax.field(inner, "name") or syntax.field(inner, "declarator")
    while named is not None and named.type.endswith("declarator"):
        named = syntax.field(named, "declarator") or next(reversed(parts(named)), None)
    given = syntax.field(named, "arguments") if named is not None else None
    return tuple(parts(given)) if given is not None else None


def every(found: Sequence[Declaration]) -> Iterator[Declaration]:
    """Declarations with their members."""
    for each in found:
        yield each
        yield from every(each.members)
