"""How diagnostics are rendered; and diagnostics.md, the index of all messages, which is run as it stands."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from normgen.diagnostics import Diagnostic, Label, Source, Span, SpecError, position, render, render_all
from normgen.dsl import load_definition
from normgen.ir.grad import backward

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
        if definition.of:
            backward(definition)
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


# Rendering, beyond what the index shows.


def shown(text: str, *labels: Label) -> list[str]:
    return render(Diagnostic("c", "m", labels), Source("t", text)).splitlines()


def _label(text: str, word: str, what: str = "", primary: bool = True) -> Label:
    start = text.index(word)
    return Label(Span(start, start + len(word)), what, primary)


def test_lines_far_apart_and_wide_numbers() -> None:
    text = "norm t\ninput x[D]\n" + "# filler\n" * 97 + "output y[D] = x\noutput z[D] = x\n"
    places = (("z[D]", ""), ("y[D]", "here"), ("x[D]", "there"))
    assert shown(text, *(_label(text, word, what, primary=not what) for word, what in places)) == [
        "error[c]: m",
        "   --> t:101:8",
        "    |",
        "  2 | input x[D]",
        "    |       ---- there",
        "...",
        "100 | output y[D] = x",
        "    |        ---- here",
        "101 | output z[D] = x",
        "    |        ^^^^",
    ]


@pytest.mark.parametrize(
    ("line", "wanted", "marks"),
    [
        ("\tx # tab", "    x # tab", "    ^"),
        ('"日本" x', '"日本" x', "       ^"),
        ('"é́" x', '"é́" x', "    ^"),
        ("\x00x", "␀x", " ^"),
        ("\u202ex", "<U+202E>x", "        ^"),
        ("x\r", "x", "^"),
    ],
)
def test_columns(line: str, wanted: str, marks: str) -> None:
    at = line.index("x")
    lines = shown(line + "\n", Label(Span(at, at + 1)))
    assert lines[3:] == [f"1 | {wanted}", f"  | {marks}"]
    assert lines[1] == f" --> t:1:{at + 1}"


def test_where_a_label_lies() -> None:
    """In a long line, which is cut around it; over several lines; at the end of the text; nowhere."""
    text = "x" * 3000 + "HERE" + "x" * 3000
    lines = shown(text, _label(text, "HERE", "here"))
    assert all(len(line) < 200 for line in lines) and lines[3].count("…") == 2
    start = lines[3].index("HERE")
    assert lines[4][start : start + 4] == "^^^^"
    assert shown("let a = (1 +\n2)", Label(Span(8, 15)))[3:] == ["1 | let a = (1 +", "  |         ^^^^"]
    for text in ("", "a", "a\n", "a\n\n"):
        assert shown(text, Label(Span(len(text), len(text))))[-1].endswith("^")
    assert (
        render(Diagnostic("c", "m", (), ("h",), severity="note"), Source("t", "")) == "note[c]: m\n = help: h"
    )
    assert position(Source("t", "a\n日本x\n"), 4) == (2, 3)


def test_color_changes_nothing_but_color() -> None:
    text = "save   rstd[...] = rsqrt(x^2 + eps)\n"
    diagnostic = Diagnostic("c", "m", (_label(text, "rstd", "here"),), ("h",), severity="warning")
    colored = render(diagnostic, Source("t", text), color=True)
    assert "\x1b[" in colored
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == render(diagnostic, Source("t", text))


def test_the_error_says_it_all() -> None:
    source = Source("t", "norm t\n")
    error = SpecError([Diagnostic("a", "one", ()), Diagnostic("b", "two", ())], source)
    assert str(error) == "error[a]: one\n\nerror[b]: two"
    assert error.source is source
