"""Colors of specs: a lexer of Pygments, for pages and for the site."""

from __future__ import annotations

from pygments.lexer import RegexLexer, words
from pygments.token import Comment, Keyword, Name, Number, Operator, Punctuation, String, Text

__all__ = ["SpecLexer"]  # which Pygments looks for

STATEMENTS = (
    "norm", "attr", "axis", "input", "param", "state", "save", "output", "let", "update", "grad", "wrt", "fn",
)  # fmt: skip
WORDS = ("if", "else", "and", "or", "not", "true", "false", "like")


class SpecLexer(RegexLexer):  # type: ignore[misc]
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
