"""Nothing of the path of a spec acts in a text that is made of it: its code is that of a plain name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from unicodedata import category

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from normgen.api import module_text
from normgen.cli import binaries
from normgen.cli.binaries import Shape, header
from normgen.cli.html.explained import html_of
from normgen.cli.one_shape import one_shape
from normgen.cli.outputs import cuda
from normgen.cli.page import page_of
from normgen.cli.sizes import BOTH, Setting, usual_sizes
from normgen.codegen.compilation import Compilation
from normgen.devices import executors
from normgen.diagnostics import Source, SpecError
from normgen.dsl import load_definition
from normgen.launching.machine import usual_machine

SPEC = "norm n\ninput x[..., D]\nparam w[D] = 1\nsave m[...] = mean[D](x)\noutput y[..., D] = (x - m) * w\n"
SIZES = {"D": 96, "...": 4}
# What ends or begins a comment, a string, a line, a directive or a tag; words of kernels; what is no name.
PARTS = (
    "\n", "\r", "\r\n", "\v", "\f", "\x1b[31m", "\x7f", "\x85", "\u2028", "\u202e", "\u200b", "\udc80", "\0",
    "\\", "\\\n", "??/", "??/\n", "*/", "/*", "//", "'", '"', '"""', "'''", "{{ 1 }}", "{% raw %}", "{# ",
    "#line 1", "#pragma", "<b>", "&lt;", "</script>", "__builtin_abort();", "n_forward_registers(", "ꞏs999ꞏ",
    'extern "C"', "HAS_W", "size_D", "x_ptr", " = ", "  // ", "// ---- ", "}", "long " * 30, "é", "名", "..",
)  # fmt: skip
TRIGRAPHS = {"??/": "\\", "??'": "^", "??(": "[", "??)": "]", "??!": "|", "??<": "{", "??>": "}", "??-": "~"}
TOKEN = re.compile(r'("(?:\\.|[^"\\\n])*")|//[^\n]*|/\*.*?\*/|\s+', re.DOTALL)


def code(text: str) -> str:
    """What a C compiler sees: no comments and no white space."""
    for trigraph, character in TRIGRAPHS.items():
        text = text.replace(trigraph, character)
    return TOKEN.sub(lambda found: found[1] or "", text.replace("\\\n", ""))


def python_code(text: str) -> str:
    """What Python sees, with the kernels' texts in it as a C compiler sees them, and any name of the file."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            named = {key.value: value for key, value in zip(node.keys, node.values, strict=True)}
            named.get("file", ast.Constant("")).value = ""
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value != SPEC:
            node.value = code(node.value)
    return ast.dump(tree)


def tags(text: str) -> object:
    """The kinds of tags of a page."""
    found, parser = set(), HTMLParser()
    parser.handle_starttag = lambda tag, attrs: found.add((tag, *sorted(name for name, _ in attrs)))  # type: ignore[method-assign]
    parser.feed(text)
    return found


def compiled(name: str) -> Compilation:
    return Compilation(load_definition(Source(name, SPEC), {}))


def of_any_call(name: str) -> Iterator[tuple[str, str, object]]:
    """The texts of a spec with such a path: what each is, the text, and what acts in it."""
    made = compiled(name)
    module = module_text(made)
    yield "module", module, python_code(module)
    yield "plans", made.plans(), made.plans()
    with pytest.raises(SpecError) as refused:
        load_definition(Source(name, SPEC.replace("mean", "meen")), {})
    yield "refusal", str(refused.value), str(refused.value).count("\n")


def of_one_call(name: str) -> Iterator[tuple[str, str, object]]:
    """The texts of one of its calls."""
    made = compiled(name)
    setting = Setting(usual_sizes(made.package, SIZES), "bf16", usual_machine("sm_90"), BOTH)
    shape = Shape({"D": 96}, "bf16", "sm_90", BOTH, True)
    shown = [cuda(made), header(made.package, shape), *binaries.binaries(made.package, "ptx", shape)]
    shown += [page_of(made.package, replace(setting, direction=each)) for each in ("forward", "backward")]
    outputs = [(one_shape(made, shape, False), python_code), (html_of(made, setting), tags)]
    for output, read in (*outputs, *((each, code) for each in shown)):
        text = output.content.decode()
        yield output.name, text, read(text)


@cache
def plain() -> dict[str, object]:
    return {kind: acts for texts in (of_any_call, of_one_call) for kind, _, acts in texts("n.norm")}


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a CUDA compiler makes of a text is the code in it."""
    monkeypatch.setattr(executors, "compile_ahead", lambda text, *_: code(text).encode())


def check(found: Iterator[tuple[str, str, object]]) -> None:
    for kind, text, acts in found:
        assert acts == plain()[kind], kind
        assert not [c for c in text if c not in "\n\t" and category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")], (
            kind
        )


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None
)
@given(st.lists(st.sampled_from(PARTS) | st.characters(), max_size=8).map("".join))
@example("x\n__builtin_abort();\n#pragma .norm")
@example("a/??/\n__builtin_abort();\\\n.norm")
def test_no_part_of_a_path_acts_in_a_module_or_a_message(name: str) -> None:
    check(of_any_call(name))


@pytest.mark.parametrize(
    "name",
    [
        "".join(part for part in PARTS if "/" not in part and part != "\\"),
        pytest.param("/" + "/\n".join(PARTS), marks=pytest.mark.thorough),
    ],
    ids=["name", "folders"],
)
def test_no_part_of_a_path_acts_in_the_texts_of_a_call(name: str) -> None:
    check(of_one_call(name))
