"""Prose uses plain words: none of `words.tsv` is in the docs, messages and docstrings that are covered.

`python -m tests.test_words` counts what the rest of the tree still has, by file; with paths, it prints each
sentence. A file without any belongs in `COVERED`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# Patterns of paths, below the root. Of Python, messages and the docstrings of public names are read.
COVERED = (
    "*.md",
    "docs/**/*.md",
    "examples/*.md",
    "examples/autograd/*.py",
    "normgen/__init__.py",
    "normgen/api.py",
    "normgen/arrays/*.py",
    "normgen/cache*.py",
    "normgen/cli/**/*.py",
    "normgen/devices/executors.py",
    "normgen/diagnostics.py",
    "normgen/dsl/*.py",
    "normgen/errors.py",
    "normgen/locks.py",
    "normgen/package/direction.py",
    "normgen/package/signature.py",
    "normgen/runtime/calls/plan.py",
    "normgen/runtime/norm.py",
    "normgen/runtime/ranks/group.py",
    "normgen/runtime/ranks/norm.py",
    "normgen/torch/__init__.py",
    "normgen/torch/function.py",
    "normgen/torch/ranks/function.py",
    "normgen/torch/ranks/partial.py",
    "normgen/verify/report.py",
)
# Messages are read in all of `normgen`, except in these modules: their texts go into kernels and other code.
CODE_TEXTS = ("normgen/package/constants.py", "normgen/package/operands.py", "normgen/torch/printing/*.py")
EVERYTHING = ("*.md", "docs/**/*.md", "examples/*.md", "examples/autograd/*.py", "normgen/**/*.py")
# Not prose: blocks and spans of code, addresses of links, and parts that are printed from a program's texts.
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
GENERATED = re.compile(r"<!-- (?:specs|saves) -->\n\n(?:\|.*\n)*")
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
SPAN = re.compile(r"`[^`]*`|(?<=\])\([^)]*\)")
# Where a unit of Markdown ends: paragraphs, list items, headings, rows and cells of tables.
UNIT = re.compile(r"\n\s*\n|\n\s*(?=[-*] |\d+\. |#|\|)|\|")


@dataclass(frozen=True, slots=True)
class Word:
    """A word or construct that prose no longer uses."""

    pattern: re.Pattern[str]
    write: str
    why: str
    example: str


@dataclass(frozen=True, slots=True)
class Offender:
    """A sentence that has such a word."""

    path: Path
    found: str
    around: str
    word: Word

    def __str__(self) -> str:
        where = self.path.relative_to(ROOT)
        return f'{where}: "{self.around}": not "{self.found}" ({self.word.why}); write: {self.word.write}'


def read_table(path: Path) -> tuple[Word, ...]:
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines if not line.startswith("#")]
    return tuple(Word(re.compile(pattern, re.IGNORECASE), *rest) for pattern, *rest in rows)


WORDS = read_table(Path(__file__).parent / "words.tsv")


def units_of_page(text: str) -> Iterator[str]:
    """The paragraphs, list items, headings and cells of a page of Markdown."""
    for pattern, instead in ((CODE, ""), (GENERATED, ""), (COMMENT, ""), (SPAN, "`X`")):
        text = pattern.sub(instead, text)
    yield from UNIT.split(text)


def units_of_module(text: str, docstrings: bool = True) -> Iterator[str]:
    """The paragraphs of public docstrings, and every other text of three words or more: a message."""
    tree = ast.parse(text)
    read = {id(text): docstrings and public for text, public in _docstrings(tree, True)}
    pieces = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(value)) if id(node) in read:
                if read[id(node)]:
                    yield from re.split(r"\n\s*\n", SPAN.sub("`X`", value))
            case ast.Constant(value=str(value)) if id(node) not in pieces and len(value.split()) > 2:
                yield value
            case ast.JoinedStr(values=parts):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in parts)


def _docstrings(node: ast.AST, public: bool) -> Iterator[tuple[ast.expr, bool]]:
    """The docstrings in a tree, and whether all names down to each are public."""
    if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        public = public and not getattr(node, "name", "").startswith("_")
        match node.body:
            case [ast.Expr(value=ast.Constant(value=str())) as first, *_]:
                yield first.value, public
    for child in ast.iter_child_nodes(node):
        yield from _docstrings(child, public)


def offenders(path: Path, docstrings: bool = True) -> list[Offender]:
    """What a file has of the table; of a module, optionally in messages only."""
    text = path.read_text(encoding="utf-8")
    found = []
    for unit in units_of_page(text) if path.suffix == ".md" else units_of_module(text, docstrings):
        line = " ".join(unit.split())
        for word in WORDS:
            for match in word.pattern.finditer(line):
                around = line[max(0, match.start() - 40) : match.end() + 40]
                found.append(Offender(path, match[0], around, word))
    return found


def files(patterns: tuple[str, ...]) -> list[Path]:
    return sorted({path for pattern in patterns for path in ROOT.glob(pattern)})


@pytest.mark.parametrize("path", files(COVERED), ids=lambda path: str(path.relative_to(ROOT)))
def test_prose_uses_plain_words(path: Path) -> None:
    assert not (found := offenders(path)), "\n".join(map(str, found))


def test_messages_use_plain_words() -> None:
    paths = set(files(("normgen/**/*.py",))) - set(files(CODE_TEXTS))
    found = [each for path in sorted(paths) for each in offenders(path, docstrings=False)]
    assert not found, "\n".join(map(str, found))


@pytest.mark.parametrize("pattern", COVERED)
def test_every_pattern_covers_a_file(pattern: str) -> None:
    assert files((pattern,))


@pytest.mark.parametrize("word", WORDS, ids=lambda word: word.example)
def test_entry_finds_its_example_and_not_what_to_write(word: Word) -> None:
    assert word.pattern.search(word.example)
    assert not any(each.pattern.search(word.write) for each in WORDS)


@pytest.mark.parametrize(
    "sentence",
    [
        "There is no compiler.",
        "It is no larger than the other.",
        "They are all the same.",
        "A block has room for 32 bits.",
        "Draw a seed that nobody has used.",
        "All of them are evaluated at once.",
        "A reader wants one call.",
        "This brings the time down to 5 us.",
        "You are told which.",
        "You can tell which it is.",
        "What does a first call cost?",
        "The value lies between 0 and 1.",
        "So the result is exact.",
        "This is done in place.",
    ],
)
def test_sound_sentences_pass(sentence: str) -> None:
    assert not any(word.pattern.search(sentence) for word in WORDS)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("page.md", "Text.\n\n- Compiled\n  anew.\n"),
        ("page.md", "| a | compiled anew |\n"),
        ("docstring.py", 'class A:\n    def f(self):\n        """Compiled\n        anew."""\n'),
        ("message.py", 'raise ValueError(f"{name} is compiled " "anew")\n'),
    ],
)
def test_prose_is_found(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert [each.found for each in offenders(path)] == ["anew"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("page.md", "```python\nx = 'compiled anew'\n```\n\nSee [the page](anew.md) of `anew`.\n"),
        ("private.py", 'def _f():\n    """Compiled anew."""\n'),
        ("comment.py", "x = 1  # compiled anew\n"),
    ],
)
def test_code_is_not_prose(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert not offenders(path)


def test_messages_are_read_without_docstrings(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text('"""Compiled anew."""\n\nraise ValueError("it is compiled anew")\n')
    assert [len(offenders(path, docstrings)) for docstrings in (True, False)] == [2, 1]


def main(paths: list[str]) -> None:
    """Print the files of the tree that have any, the worst first; or each sentence of these paths."""
    if paths:
        print(*(each for path in paths for each in offenders(ROOT / path)), sep="\n")
        return
    counts = {path: len(offenders(path)) for path in files(EVERYTHING)}
    for path, count in sorted(counts.items(), key=lambda item: -item[1]):
        if count:
            print(f"{count:5} {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main(sys.argv[1:])
