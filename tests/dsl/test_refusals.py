"""What is refused, and that it is refused with a diagnostic, in bounded time, whatever the text."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normgen.diagnostics import Source, SpecError, render_all
from normgen.dsl import ast, load_definition
from normgen.dsl.limits import LONGEST_LINE, LONGEST_TEXT
from normgen.dsl.show import show_ast

from .loading import refused, tree
from .trees import SPECS as TREES

SPECS = Path(__file__).parent.parent.parent / "specs"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "norm",
        "norm t {{7*7}}",
        "norm __import__",
        'norm t "a\\',
        "norm t\nlet a = 1 let",
        "norm t\nlet a = (1",
        "norm t\nlet a = f()",
        "norm t\nlet a = x..y",
        "norm t\nlet a = x.y",
        "norm t\nlet if = 1",
        "norm t\ngrad y wrt",
        "norm t\nfn f[d](v) = 1",
        "norm t\nattr a: = 1",
        "norm t\nsave save x[] = 1",
        "norm t\ninput x[(D)]",
        "norm t\ninput x[(A ...)]",
        "norm t\nlet a = 0x10",
        "norm t\nlet a = 1e",
        "norm t\nlet a = 'x'",
        "norm t\nlet Ⅷ = 1",
        "norm t\nlet a = ١",
        "norm t\nlet \N{LATIN SMALL LETTER LONG S}um = 1",
        "norm " + "x" * 65,
        "norm t\nlet a = " + "1" * 101,
        "norm t\nlet a = 1e99999999999999999999",
        "norm t\nlet a = 1e-99999999999999999999",
    ],
)
def test_refused(text: str) -> None:
    refused(text)


def test_escapes_in_docs() -> None:
    assert "unknown escape `\\n`" in refused('norm t "a\\nb"')


@pytest.mark.parametrize("text", ["norm t{}", "norm t # {}", 'norm t "{}"', "{0}{0}norm t"])
def test_characters_that_hide_something(text: str) -> None:
    for character in "\x00\x07\x0b\x0c\x1b\x7f\x85\xad\u200b\u200e\u202e\u2028\u2066\ufeff\ud800":
        assert f"U+{ord(character):04X}" in refused(text.format(character))
    # Carriage returns end lines together with newlines only.
    assert "U+000D" in refused("norm t # a comment\rlet hidden = 1\n")


@pytest.mark.parametrize(
    "text",
    [
        "x" * 10_000_000,
        "norm t\nlet a = " + "(" * 2_000 + "x" + ")" * 2_000,
        "norm t\nlet a = " + "x^" * 2_000 + "x",
        "norm t\nlet a = x" + " + x" * 1_000,
        "norm t\nlet a = x" + "[D](x)" * 500,
        "norm t\nlet a = " + "f(" * 1_500 + "x" + ")" * 1_500,
        "norm t\nlet a = " + "9" * 4_000,
        "norm t\nlet a = x[" + "D, " * 1_600 + "1",
    ],
    ids=lambda text: f"{text[:20]!r}{len(text)}",
)
def test_endless_text_is_refused_at_once(text: str) -> None:
    """In few calls of functions, compiled ones too: some of these have ten million characters."""
    tree("norm t")  # the parser is made once
    assert calls_of(lambda: refused(text)) < 1_000_000


def calls_of(work: Callable[[], object]) -> int:
    """How many functions are called: the same on every machine, however busy it is."""
    made = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal made
        made += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return made


def test_the_limits_are_beyond_any_spec() -> None:
    comment = "#" + "x" * (LONGEST_LINE - 1) + "\n"
    text = "norm t\n" + comment * ((LONGEST_TEXT - 7) // len(comment))
    assert len(text) > 0.9 * LONGEST_TEXT
    assert tree(text)
    assert tree("norm t let a = " + "(" * 200 + "x" + ")" * 200)
    assert tree("norm t let a = x" + " + x" * 199)


WORDS = (
    "norm t attr axis input param state save output let update grad wrt fn like if else and or not true "
    'x w D G ... .. ( ) [ ] , : = == < >= + - * / // ^ 1 0.5 1e-6 "doc" sum mean size max cast bf16 int bool '
    '# " % _ é х'
)
FRAGMENTS = st.sampled_from([*WORDS.split(), "\n", "\r", "\x00"])
SOUP = st.lists(FRAGMENTS, max_size=40).map(" ".join)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=80) | SOUP | SOUP.map(lambda text: f"norm t {text}"))
def test_no_text_does_anything_but_parse_or_be_refused(text: str) -> None:
    try:
        tree(text)
    except SpecError as error:
        assert str(error)


# ------------------------------------------------------------------------------ the checker too


BUNDLED = [path.read_text(encoding="utf-8") for path in sorted(SPECS.glob("*.norm"))]
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|\d+\.?\d*(?:e-?\d+)?|\"[^\"]*\"|\.\.\.|\S|\n")

ELSEWHERE = "** -> <- => := === <> ++ && || × − ≤ … “ ’ γ ½ \\ INPUT Norm lambda f 4096 -1"
SIGNS = st.sampled_from(ELSEWHERE.split())


@st.composite
def damaged_specs(draw: st.DrawFn) -> str:
    """A bundled spec with a few words dropped, doubled, swapped, or replaced by words of other specs or signs
    of other languages."""
    words = WORD.findall(draw(st.sampled_from(BUNDLED)))
    others = WORD.findall(draw(st.sampled_from(BUNDLED)))
    for _ in range(draw(st.integers(1, 4))):
        at, other = draw(st.integers(0, len(words) - 1)), draw(st.integers(0, len(others) - 1))
        match draw(st.sampled_from(["drop", "double", "take", "swap", "sign"])):
            case "drop":
                del words[at]
            case "double":
                words.insert(at, words[at])
            case "take":
                words[at] = others[other]
            case "swap":
                words[at], words[at - 1] = words[at - 1], words[at]
            case "sign":
                words[at] = draw(SIGNS)
    return " ".join(words)


ATTR_VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)


def check(text: str, attrs: dict[str, object]) -> None:
    source = Source("t.norm", text)
    try:
        definition = load_definition(source, attrs)
    except SpecError as error:
        assert str(error)
    else:
        assert render_all(definition.warnings, source) is not None


@settings(max_examples=300, deadline=None)
@given(
    damaged_specs(),
    st.dictionaries(st.sampled_from(["groups", "eps", "n", "training"]), ATTR_VALUES, max_size=2),
)
def test_damaged_specs(text: str, attrs: dict[str, object]) -> None:
    check(text, attrs)
    check(text, {"groups": 2, "head_dim": 2})


@settings(max_examples=100, deadline=None)
@given(TREES)
def test_trees_without_sense(spec: ast.Spec) -> None:
    check(show_ast(spec), {})
