"""Completions of SPEC, `--attr` and `--size`. A spec that cannot be read has none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from normgen.dsl import ast


def suggest_specs(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """Files, which the shell finds itself, and bundled specs."""
    from normgen import bundled

    files = CompletionItem(typed, type="file")  # first: a shell may forget what comes before it
    return [files, *(CompletionItem(name) for name in bundled.names() if name.startswith(typed))]


def suggest_attrs(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """`eps=` for each attr of the spec without a value; `flag=true` and `flag=false` for a bool."""
    from normgen.dsl import ast

    items = []
    for node in _statements(context):
        if isinstance(node, ast.Attr) and node.name.text not in (context.params.get("attrs") or {}):
            values = ("true", "false") if node.kind is not None and node.kind.text == "bool" else ("",)
            items += [CompletionItem(f"{node.name.text}={value}", help=node.doc or None) for value in values]
    return [item for item in items if item.value.startswith(typed)]


def suggest_sizes(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """`D=` for each axis of the spec without a length."""
    from normgen.dsl import ast

    nodes = _statements(context)
    known = {node.name.text for node in nodes if isinstance(node, ast.Axis)}
    known |= (context.params.get("sizes") or {}).keys()
    axes = (a.text for node in nodes if isinstance(node, ast.Tensor) for dim in node.dimensions for a in dim)
    return [CompletionItem(f"{a}=") for a in dict.fromkeys(axes) if a not in known and a.startswith(typed)]


def _statements(context: click.Context) -> tuple[ast.Node, ...]:
    """The statements of the SPEC on the command line so far."""
    from normgen.cli.options import Unreadable, read_spec
    from normgen.diagnostics import SpecError
    from normgen.dsl.syntax import parse

    # Click leaves arguments in `args` behind an option whose value is missing.
    named = context.params.get("spec") or next(iter(context.args), None)
    if named is None or named == "-":
        return ()
    try:
        return parse(read_spec(named)).statements
    except (Unreadable, SpecError):
        return ()
