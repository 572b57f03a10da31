"""Colours of specs: a lexer of Pygments, and the extension of Python-Markdown that makes it known."""

from __future__ import annotations

from typing import Any

from markdown import Markdown
from markdown.extensions import Extension
from pygments import lexers
from pygments.lexer import RegexLexer, words
from pygments.token import Comment, Keyword, Name, Number, Operator, Punctuation, String, Text

__all__ = ["SpecLexer"]  # which Pygments looks for

STATEMENTS = (
    "norm", "attr", "axis", "input", "param", "state", "save", "output", "let", "update", "grad", "wrt", "fn",
)  # fmt: skip
WORDS = ("if", "else", "and", "or", "not", "true", "false", "like")


class SpecLexer(RegexLexer):
    """The language of specs."""

    name = "norm"
    aliases = ("norm",)
    filenames = ("*.norm",)
    tokens = {
        "root": [
            (r"\s+", Text),
            (r"#.*", Comment.Single),
            (r'"(?:[^"\\\n]|\\["\\])*"', String.Doc),
            (words(STATEMENTS, suffix=r"\b(?=\s+[a-zA-Z])"), Keyword.Declaration),
            (words(WORDS, suffix=r"\b"), Keyword),
            (r"[A-Z]\w*|\.\.\.", Name.Constant),
            (r"[a-z]\w*(?=[\[(])", Name.Function),
            (r"[a-z]\w*", Name),
            (r"(?:\d+\.(?!\.)\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?", Number),
            (r"\.\.|[-+*/^<>=!:]+", Operator),
            (r"[\[\](),]", Punctuation),
        ]
    }


class Specs(Extension):
    """Blocks of the language `norm` are specs."""

    def extendMarkdown(self, md: Markdown) -> None:
        lexers.LEXERS["SpecLexer"] = (__name__, SpecLexer.name, SpecLexer.aliases, SpecLexer.filenames, ())


def makeExtension(**options: Any) -> Specs:
    """What Python-Markdown asks for."""
    return Specs(**options)
