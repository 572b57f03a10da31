"""How diagnostics are rendered; and diagnostics.md, the index of all messages, which is run as it stands."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from normgen.codegen.package import package
from normgen.codegen.ranks import local_definition, spread_program
from normgen.diagnostics import Diagnostic, Label, Source, Span, SpecError, position, render, render_all
from normgen.dsl import check, evaluate, load_definition
from normgen.dsl.mistakes import _RULES
from normgen.dsl.values import Fault
from normgen.ir.grad import backward

INDEX = Path(__file__).parent / "diagnostics.md"
PACKAGE = Path(__file__).parent.parent / "normgen"
EXAMPLE = re.compile(
    r"^```norm(?P<attrs>[^\n]*)\n(?P<spec>.*?)^```\n\n```text\n(?P<text>.*?)^```$", re.M | re.S
)


EMPTY = "\n```text\n```\n"  # where the message of a new example goes


def _attrs(text: str) -> dict[str, object]:
    return {k: ast.literal_eval(v) for k, v in (pair.split("=") for pair in text.split())}


def written_out(spec: str) -> str:
    """The text that an example means: `<U+200B>` is that character, `<60 x ab>` a text so many times, and
    `<1 to 9: a{k} = a{j}; >` one for each number k, of which j is the one before."""
    spec = re.sub(r"<U\+(\w+)>", lambda m: chr(int(m[1], 16)), spec)
    spec = re.sub(r"<(\d+) x ([^>]*)>", lambda m: m[2] * int(m[1]), spec)
    return re.sub(
        r"<(\d+) to (\d+): ([^>]*)>",
        lambda m: "".join(m[3].format(k=k, j=k - 1) + "\n" for k in range(int(m[1]), int(m[2]) + 1)),
        spec,
    )


@cache
def _ran(spec: str, attrs: str) -> tuple[str, frozenset[tuple[str, int]]]:
    """What is said of an example, and the lines of normgen that said it."""
    said: set[tuple[str, int]] = set()
    with pytest.MonkeyPatch.context() as patch:
        for kind in (Diagnostic, Fault):
            patch.setattr(kind, "__init__", _noting(kind.__init__, said))
        return _message(spec, _attrs(attrs)), frozenset(said)


def _noting(made: Callable[..., None], said: set[tuple[str, int]]) -> Callable[..., None]:
    def noted(self: object, *arguments: object, **named: object) -> None:
        frame = sys._getframe(1)
        said.add((frame.f_code.co_filename, frame.f_lineno))
        made(self, *arguments, **named)

    return noted


def _message(spec: str, attrs: dict[str, object]) -> str:
    source = Source("example.norm", written_out(spec))
    names = str(attrs.get("shard", "")).replace("_", " ").split("+")
    try:
        definition = load_definition(source, {name: each for name, each in attrs.items() if name != "shard"})
        made = backward(definition) if definition.of else None
        if "shard" in attrs:
            runs = local_definition(definition, names, 3)
            for program in (runs.definition.program, backward(runs.definition)):
                spread_program(runs.definition, program, runs.axes)
        if not definition.warnings:
            package(definition, made)
    except SpecError as error:
        return str(error)
    return render_all(definition.warnings, source)


def _without_message(text: str) -> list[str]:
    """The specs that no fence for their message follows: what is written there would be the next one's."""
    specs = re.finditer(r"^```norm[^\n]*\n(.*?)^```$\n?(?P<after>\n```text\n)?", text, re.M | re.S)
    return [spec[1] for spec in specs if not spec["after"]]


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
    assert (bare := _without_message(INDEX.read_text(encoding="utf-8"))) == [], f"add to {bare}{EMPTY}"
    message, _ = _ran(example["spec"], example["attrs"])
    if request.config.getoption("--update-golden"):
        fence = f"```norm{example['attrs']}\n{example['spec']}```\n\n```text\n"
        text = INDEX.read_text(encoding="utf-8")
        updated = text.replace(f"{fence}{example['text']}```", f"{fence}{message}\n```")
        INDEX.write_text(updated, encoding="utf-8")
        return
    assert message + "\n" == example["text"]
    code, _, _ = name.partition("-")
    assert re.match(rf"(error|warning)\[{code}\]: ", message), "it stands under the wrong heading"
    for each in message.split("\n\n"):
        assert " = help: " in each, "what is wrong is said, and not what to do"


def test_an_example_without_a_place_for_its_message_is_seen() -> None:
    text = INDEX.read_text(encoding="utf-8")
    new = "```norm\nnorm a\n```\n"
    place = text.index("```norm")
    assert _without_message(text) == []
    assert _without_message(f"{text[:place]}{new}\n{text[place:]}") == ["norm a\n"]
    assert _without_message(f"{text[:place]}{new}{EMPTY}\n{text[place:]}") == []


def test_the_index_is_whole_and_in_order() -> None:
    examples = _examples()
    codes = list(dict.fromkeys(name.partition("-")[0] for name, _ in examples))
    assert len(examples) >= 40
    assert codes == sorted(codes)
    written = set()
    for path in [*PACKAGE.glob("dsl/*.py")]:
        text = path.read_text(encoding="utf-8")
        written |= set(re.findall(r"""(?:Diagnostic|Fault)\(\s*(?:[\w.]+,\s*)?"(\w+)",""", text))
    assert written, "no code found in the source"
    assert written <= set(codes), "a code without an example"


def _sites() -> Iterator[tuple[Path, ast.Call]]:
    """Every place of normgen that makes a diagnostic."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Name(id="Diagnostic" | "Fault")):
                    yield path, node


# Specs that make these mistakes take long to be refused: other tests have them with lower limits.
ELSEWHERE = {"ir/limit.py", "dsl/check.py"}


def test_every_place_that_finds_a_mistake_has_an_example() -> None:
    reached = set[tuple[str, int]]()
    for _, example in _examples():
        reached |= _ran(example["spec"], example["attrs"])[1]
    missed = []
    for path, node in _sites():
        lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        if not any((str(path), line) in reached for line in lines):
            missed.append((str(path.relative_to(PACKAGE)), ast.unparse(node)))
    left = [missing for missing in missed if missing[0] not in ELSEWHERE]
    assert not left, "write a spec that makes the mistake into tests/diagnostics.md"
    assert len({path for path, _ in missed}) == len(missed), "one a file"


def test_functions_that_call_functions_end_in_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "MOST_OPERATIONS", 50)
    spec = "norm example\nfn f0(v) = v + v\n<1 to 9: fn f{k}(v) = f{j}(v) + f{j}(v)>\n"
    said = _message(f"{spec}input  x[D]\noutput y[D] = f9(x)\n", {})
    assert "error[size]: more than 50 operations after functions are expanded" in said
    assert "= help: define values that are used several times with `let`" in said


def test_values_that_depend_on_one_another_too_deeply_end_in_a_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def too_deep(*_: object) -> None:
        raise RecursionError

    monkeypatch.setattr(check._Checker, "program", too_deep)
    said = _message("norm example\ninput  x[D]\noutput y[D] = x\n", {})
    assert said.startswith(
        "error[nesting]: the spec nests more than 200 levels, or its values form too long a chain"
    )
    assert "= help: split it into several norms" in said


def test_every_slip_of_syntax_has_an_example() -> None:
    """The table of slips, whose rows share one place of the code."""
    texts = "\n".join(example["text"] for _, example in _examples())
    for _, message, help in _RULES:
        shown = re.escape(message)
        pattern = re.sub(r"\\\{[\w\\.]+\\\}", ".*", shown)
        assert re.search(rf"^error\[syntax\]: {pattern}$", texts, re.MULTILINE), message
        assert help


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
