"""The extension of Python-Markdown that makes the colours of specs known."""

from __future__ import annotations

from typing import Any

from markdown import Markdown
from markdown.extensions import Extension
from pygments import lexers

from normgen.cli.html.lexer import SpecLexer


class Specs(Extension):
    """Blocks of the language `norm` are specs."""

    def extendMarkdown(self, md: Markdown) -> None:
        lexers.LEXERS["SpecLexer"] = (
            SpecLexer.__module__,
            SpecLexer.name,
            SpecLexer.aliases,
            SpecLexer.filenames,
            (),
        )


def makeExtension(**options: Any) -> Specs:
    """What Python-Markdown asks for."""
    return Specs(**options)
