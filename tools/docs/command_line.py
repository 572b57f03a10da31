"""The command line as a page: the `--help` of every command."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from inspect import cleandoc

import click

from normgen.cli import commands
from tools.docs.pages import Page


def command_line() -> Iterable[Page]:
    """One page of all commands."""
    top = click.Context(commands, info_name="normgen")
    parts = [
        "# Commands and options",
        "The texts of `normgen COMMAND --help` on one page. [The command line](../commands.md) has examples "
        "and explains the output.",
        *_described(top, commands, 2),
    ]
    yield Page("reference/commands.md", "docs/reference/commands.md", "\n\n".join(parts) + "\n")


def _described(context: click.Context, command: click.Command, level: int) -> Iterator[str]:
    if context.parent is not None:
        yield f"{'#' * level} {context.command_path}"
        level += 1
    yield f"```text\n{context.get_usage().removeprefix('Usage: ')}\n```"
    yield _prose(cleandoc(command.help or ""))
    options = [record for each in command.params if (record := each.get_help_record(context)) and record[1]]
    if options:
        rows = [f"| `{_cell(names)}` | {_cell(text)} |" for names, text in options]
        yield "\n".join(["| option | what it does |", "|---|---|", *rows])
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from _described(click.Context(found, context, name), found, level)


def _prose(text: str) -> str:
    """Paragraphs that click must not wrap, marked by a backspace, are code."""
    paragraphs = re.split(r"\n\n+", text.strip())
    return "\n\n".join(
        f"```text\n{each[1:].strip()}\n```" if each.startswith("\b") else each for each in paragraphs
    )


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", r"\|")
