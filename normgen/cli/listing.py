"""`normgen list`: the bundled specs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import click

from normgen.cli.table import print_columns

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Row:
    """One spec. `required`: attrs that have no default; `kernels`: whether it has any yet."""

    name: str
    doc: str
    required: tuple[str, ...]
    kernels: bool


@click.command("list", short_help="List the bundled specs.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_command(as_json: bool) -> None:
    """List the bundled specs: what each computes, the attrs it needs, whether its kernels exist yet.

    A spec without kernels still parses, checks and differentiates, and `normgen explain` shows its formulas.
    """
    from normgen import bundled

    rows = [describe(name) for name in bundled.names()]
    if as_json:
        click.echo(json.dumps({"schema": SCHEMA, "specs": [asdict(row) for row in rows]}, indent=2))
        return
    headings = ("NAME", "NEEDS", "KERNELS", "WHAT IT IS")
    print_columns(
        headings,
        [(r.name, ", ".join(r.required) or "-", "yes" if r.kernels else "not yet", r.doc) for r in rows],
    )


def describe(name: str) -> Row:
    """The list's row of a bundled spec. Attrs without a default take the least value that any spec admits."""
    from normgen import bundled
    from normgen.cli.stages import packaged
    from normgen.diagnostics import SpecError
    from normgen.dsl import load_definition, syntax
    from normgen.dsl.ast import Attr

    source = bundled.read(name)
    assert source is not None, name
    tree = syntax.parse(source)
    needed = tuple(s for s in tree.statements if isinstance(s, Attr) and s.default is None)
    samples: dict[str, object] = {
        a.name.text: True if a.kind and a.kind.text == "bool" else 1 for a in needed
    }
    definition = load_definition(source, samples)
    try:
        packaged(definition)
        kernels = True
    except SpecError:
        kernels = False
    return Row(
        name, tree.doc, tuple(f"{a.name.text}: {a.kind.text if a.kind else 'float'}" for a in needed), kernels
    )
