"""How diagnostics are rendered; and diagnostics.md, the index of all messages, which is run as it stands."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from normgen.diagnostics import Diagnostic, Label, Source, Span, SpecError, position, render, render_all
from normgen.dsl import load_definition

INDEX = Path(__file__).parent / "diagnostics.md"
EXAMPLE = re.compile(
    r"^```norm(?P<attrs>[^\n]*)\n(?P<spec>.*?)^```\n\n```text\n(?P<text>.*?)^```$", re.M | re.S
)


def _attrs(text: str) -> dict[str, object]:
    return {k: ast.literal_eval(v) for k, v in (pair.split("=") for pair in text.split())}


def _message(spec: str, attrs: dict[str, object]) -> str:
    source = Source("example.norm", re.sub(r"<U\+(\w+)>", lambda m: chr(int(m[1], 16)), spec))
    try:
        definition = load_definition(source, attrs)
    except SpecError as error:
        return str(error)
    return render_all(definition.warnings, source)


def _examples() -> list[tuple[str, re.Match[str]]]:
    """(code and number, example) of every example, by the heading it stands under."""
    text, found, numbers = INDEX.read_text(encoding="utf-8"), [], dict[str, int]()
    for match in EXAMPLE.finditer(text):
        code = re.findall(r"^## (\w+)$", text[: match.start()], re.MULTILINE)[-1]
        numbers[code] = numbers.get(code, 0) + 1
        found.append((f"{code}-{numbers[code]}", match))
    return found


@pytest.mark.parametrize(
    ("name", "example"), _examples(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_index(name: str, example: re.Match[str], request: pytest.FixtureRequest) -> None:
    message = _message(example["spec"], _attrs(example["attrs"]))
    if request.config.getoption("--update-golden"):
        fence = f"```norm{example['attrs']}\n{example['spec']}```\n\n```text\n"
        text = INDEX.read_text(encoding="utf-8")
        updated = text.replace(f"{fence}{example['text']}```", f"{fence}{message}\n```")
        INDEX.write_text(updated, encoding="utf-8")
        return
    assert message + "\n" == example["text"]
    code, _, _ = name.partition("-")
    assert re.match(rf"(error|warning)\[{code}\]: ", message), "it stands under the wrong heading"


def test_the_index_is_whole_and_in_order() -> None:
    examples = _examples()
    codes = list(dict.fromkeys(name.partition("-")[0] for name, _ in examples))
    assert len(examples) >= 40
    assert codes == sorted(codes)
    package = Path(__file__).parent.parent / "normgen"
    written = set()
    for path in [*package.glob("dsl/*.py")]:
        text = path.read_text(encoding="utf-8")
        written |= set(re.findall(r"""(?:Diagnostic|Fault)\(\s*(?:[\w.]+,\s*)?"(\w+)",""", text))
    assert written, "no code found in the source"
    assert written <= set(codes), "a code without an example"


# Rendering.

TEXT = "norm t\n\n\n\n\n\n\nsave   rstd[...] = rsqrt(x^2 + eps)\noutput y[..., D] = x\n"


def _label(text: str, word: str, what: str = "", primary: bool = True) -> Label:
    start = text.index(word)
    return Label(Span(start, start + len(word)), what, primary)


def test_render() -> None:
    labels = (
        _label(TEXT, "rsqrt(x^2 + eps)", "this has axes [..., D]"),
        _label(TEXT, "rstd[...]", "declared with axes [...]", primary=False),
    )
    diagnostic = Diagnostic("axes", "a headline", labels, ("do this", "or that"))
    assert render(diagnostic, Source("specs/t.norm", TEXT)) == (
        "error[axes]: a headline\n"
        " --> specs/t.norm:8:20\n"
        "  |\n"
        "8 | save   rstd[...] = rsqrt(x^2 + eps)\n"
        "  |        --------- declared with axes [...]\n"
        "  |                    ^^^^^^^^^^^^^^^^ this has axes [..., D]\n"
        "  |\n"
        "  = help: do this\n"
        "  = help: or that"
    )


def test_lines_far_apart_and_wide_numbers() -> None:
    text = "norm t\ninput x[D]\n" + "# filler\n" * 97 + "output y[D] = x\noutput z[D] = x\n"
    labels = (
        _label(text, "z[D]"),
        _label(text, "y[D]", "here", primary=False),
        _label(text, "x[D]", "there", primary=False),
    )
    assert render(Diagnostic("name", "m", labels), Source("t", text)) == (
        "error[name]: m\n"
        "   --> t:101:8\n"
        "    |\n"
        "  2 | input x[D]\n"
        "    |       ---- there\n"
        "...\n"
        "100 | output y[D] = x\n"
        "    |        ---- here\n"
        "101 | output z[D] = x\n"
        "    |        ^^^^"
    )


@pytest.mark.parametrize(
    ("line", "shown", "marks"),
    [
        ("\tx # tab", "    x # tab", "    ^"),
        ('"日本" x', '"日本" x', "       ^"),
        ('"é́" x', '"é́" x', "    ^"),
        ("\x00x", "␀x", " ^"),
        ("\u202ex", "<U+202E>x", "        ^"),
        ("x\r", "x", "^"),
    ],
)
def test_columns(line: str, shown: str, marks: str) -> None:
    source = Source("t", line + "\n")
    at = line.index("x")
    lines = render(Diagnostic("c", "m", (Label(Span(at, at + 1)),)), source).splitlines()
    assert lines[3:] == [f"1 | {shown}", f"  | {marks}"]
    assert lines[1] == f" --> t:1:{at + 1}"


def test_long_lines_are_cut_around_the_label() -> None:
    text = "x" * 3000 + "HERE" + "x" * 3000
    lines = render(Diagnostic("c", "m", (_label(text, "HERE", "here"),)), Source("t", text)).splitlines()
    assert all(len(line) < 200 for line in lines)
    start = lines[3].index("HERE")
    assert lines[4][start : start + 4] == "^^^^"
    assert lines[3].count("…") == 2


@pytest.mark.parametrize("text", ["", "a", "a\n", "a\n\n"])
def test_labels_at_the_end_of_the_text(text: str) -> None:
    diagnostic = Diagnostic("c", "m", (Label(Span(len(text), len(text))),))
    assert render(diagnostic, Source("t", text)).endswith("^")


def test_a_label_over_several_lines_marks_its_first() -> None:
    text = "let a = (1 +\n2)"
    rendered = render(Diagnostic("c", "m", (Label(Span(8, 15)),)), Source("t", text))
    assert rendered.splitlines()[3:] == ["1 | let a = (1 +", "  |         ^^^^"]


def test_without_a_place() -> None:
    diagnostic = Diagnostic("c", "m", (), ("h",), severity="note")
    assert render(diagnostic, Source("t", "")) == "note[c]: m\n = help: h"


def test_color_changes_nothing_but_color() -> None:
    diagnostic = Diagnostic("c", "m", (_label(TEXT, "rstd", "here"),), ("h",), severity="warning")
    source = Source("t", TEXT)
    colored = render(diagnostic, source, color=True)
    assert "\x1b[" in colored
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == render(diagnostic, source)


def test_position_counts_characters() -> None:
    source = Source("t", "a\n日本x\n")
    assert position(source, 0) == (1, 1)
    assert position(source, 4) == (2, 3)


def test_the_error_says_it_all() -> None:
    source = Source("t", "norm t\n")
    error = SpecError([Diagnostic("a", "one", ()), Diagnostic("b", "two", ())], source)
    assert str(error) == "error[a]: one\n\nerror[b]: two"
    assert error.source is source
