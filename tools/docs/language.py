"""The language as a page: its grammar, its functions with their derivatives, its types and limits."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.resources import files

from normgen.diagnostics import Source, SpecError
from normgen.dsl import limits, load_definition, names
from normgen.dsl.functions import built_in, built_in_names, prelude
from normgen.dtypes import DEVICE_DTYPES, DTYPES
from normgen.ir.grad import backward
from normgen.ir.show import show_program
from tools.docs.pages import Page

# The meaning of each function of the language.
MEANINGS = {
    "exp": "e to the power of v",
    "log": "natural logarithm",
    "log1p": "log(1 + v), exact where v is small",
    "tanh": "hyperbolic tangent",
    "erf": "error function",
    "sigmoid": "1 / (1 + exp(-v)), without overflow",
    "abs": "absolute value; the derivative at 0 is 0",
    "max": "the larger of two values, which is b in a tie; in brackets the largest over axes",
    "min": "the smaller of two values, which is b in a tie; in brackets the smallest over axes",
    "stop": "v, and a constant to the derivative",
    "sqrt": "square root",
    "rsqrt": "1 / sqrt(v)",
    "sum": "sum over axes, or over a window",
    "cast": "v rounded to the element type of the tensor x; the gradient passes straight through",
    **{name: f"v rounded to {name}; the gradient passes straight through" for name in DEVICE_DTYPES[1:]},
}


def language() -> Iterable[Page]:
    """The page."""
    parts = [
        "# Grammar and functions",
        "The reference for [the language](../language.md), generated from the compiler.",
        "## Grammar",
        "In the notation of [Lark](https://lark-parser.readthedocs.io): quoted words are keywords, and names "
        "in capitals are patterns of characters.",
        f"```text\n{_read('norm.lark').strip()}\n```",
        "## Functions of the language",
        _table(("call", "result", "derivative"), map(_function, built_in_names())),
        "## Functions of the prelude",
        "These are written in the language itself, and their derivatives follow from their definitions. "
        "`dy` is the cotangent.",
        *map(_prelude, prelude()),
        "## Element types",
        _table(("type", "bytes", "largest value", "beyond it", "in CUDA"), map(_dtype, DEVICE_DTYPES)),
        "## Names that mean something else",
        "These are arguments of every call, so that no tensor and no attr can have their names: "
        + ", ".join(f"`{word}`" for word in sorted(names.API_WORDS))
        + ".",
        "## Limits",
        _table(("of a spec", "at most"), LIMITS),
    ]
    yield Page("reference/grammar.md", "docs/reference/grammar.md", "\n\n".join(parts) + "\n")


LIMITS = (
    ("characters", f"{limits.LONGEST_TEXT}"),
    ("characters of a line", f"{limits.LONGEST_LINE}"),
    ("characters of a name", f"{limits.LONGEST_NAME}"),
    ("digits of a number", f"{limits.LONGEST_NUMERAL}"),
    ("levels of nesting of an expression", f"{limits.DEEPEST}"),
)


def _read(name: str) -> str:
    return files("normgen.dsl").joinpath(name).read_text(encoding="utf-8")


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = tuple(head)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _function(name: str) -> tuple[str, str, str]:
    found = built_in(name)
    assert found
    arguments = {1: "v", 2: "a, b"}[found.parameters] if name != "cast" else "v, x"
    calls = [f"{name}({arguments})"] if not found.axes else []
    if found.axes is not False:
        calls.append(f"{name}[D](v)")
    derivative = " ".join(f"`{_derivative(call)}`" for call in calls if found.parameters == 1)
    return ", ".join(f"`{call}`" for call in calls), MEANINGS[name], derivative


def _derivative(call: str) -> str:
    """`dv` of a function of `v` as the compiler derives it: of elements, or of rows with D elements."""
    try:
        return _derived(f"y[..., D] = {call}")
    except SpecError:
        return _derived(f"y[...] = {call}")


def _derived(output: str) -> str:
    source = Source("example.norm", f"norm example\ninput v[..., D]\noutput {output}\n")
    text = show_program(backward(load_definition(source, {})))
    lines = re.findall(r"^(?:let|gradient) .*$", text, re.MULTILINE)
    return "; ".join(re.sub(r"^(let|gradient) (\w+)[^=]*= ", r"\2 = ", line) for line in lines)


def _prelude(name: str) -> str:
    text = re.search(rf'^fn ({name}[\[(].*?)(?:\s+"(.*)")?$', _read("prelude.norm"), re.MULTILINE)
    assert text
    written, doc = re.sub(r"\)\s+=", ") =", text[1]), text[2]
    parts = [f"### {name}", f"```norm\nfn {written}\n```", *([f"{doc}."] if doc else [])]
    function = prelude()[name]
    if len(function.parameters) == 1:
        brackets = "[D]" if function.axis else ""
        parts.append(f"Derivative: `{_derivative(f'{name}{brackets}(v)')}`")
    return "\n\n".join(parts)


def _dtype(name: str) -> tuple[str, ...]:
    dtype = DTYPES[name]
    beyond = "the largest value" if dtype.saturates else "infinity"
    return f"`{name}`", str(dtype.bytes), f"{dtype.largest:.6g}", beyond, f"`{dtype.c_type}`"
