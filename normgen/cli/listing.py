"""`normgen list`: the bundled specs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import click

from normgen.cli.table import print_columns

SCHEMA = 2


@dataclass(frozen=True, slots=True)
class Row:
    """One spec. `required`: attrs that have no default."""

    name: str
    doc: str
    required: tuple[str, ...]


@click.command("list", short_help="List the bundled specs.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_command(as_json: bool) -> None:
    """List the bundled specs: what each computes, and the attrs that it needs."""
    from normgen import bundled

    rows = [describe(name) for name in bundled.names()]
    if as_json:
        click.echo(json.dumps({"schema": SCHEMA, "specs": [asdict(row) for row in rows]}, indent=2))
        return
    print_columns(("NAME", "DESCRIPTION"), [(row.name, _about(row)) for row in rows])


def _about(row: Row) -> str:
    needs = " and ".join(f"--attr {_example(each)}" for each in row.required)
    return f"{row.doc} Needs {needs}." if needs else row.doc


def _example(required: str) -> str:
    name, _, kind = required.partition(": ")
    return f"{name}={kind.upper()}"


def describe(name: str) -> Row:
    """The list's row of a bundled spec."""
    from normgen import bundled
    from normgen.dsl import syntax
    from normgen.dsl.ast import Attr

    source = bundled.read(name)
    assert source is not None, name
    tree = syntax.parse(source)
    needed = [s for s in tree.statements if isinstance(s, Attr) and s.default is None]
    return Row(name, tree.doc, tuple(f"{a.name.text}: {a.kind.text if a.kind else 'float'}" for a in needed))
