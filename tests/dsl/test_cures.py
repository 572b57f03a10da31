"""What writers of specs get wrong: where it is reported, and what they are told to write instead."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from normgen.diagnostics import SpecError, position

from .loading import load

PACKAGE = Path(__file__).parent.parent.parent / "normgen"
# What a file of the source tree is called; a wheel has none of them.
SOURCE_TREE = re.compile(r"\b(docs|tests|bench|tools|examples|specs)/\w|\bCONTRIBUTING\b|\bREADME\b|\w\.md\b")

INPUT = "norm t\ninput x[..., D]\n"
VALUE = "output y[..., D] = "  # a row that begins otherwise is a statement or, with `norm`, a spec
# Lines and columns count the lines of INPUT.
CURES = [
    # text, line:column, code, what the help says
    ("x * mean[D] x^2", "3:32", "syntax", "write `mean[D](x^2)`"),
    ("x * mean[D]x", "3:31", "syntax", "write `mean[D](x)`"),
    ("sqrt x", "3:25", "syntax", "write `sqrt(x)`"),
    ("rsqrt mean[D](x^2)", "3:26", "syntax", "write `rsqrt(mean[D](x^2))`"),
    ("x[D] x", "3:25", "syntax", "write `... * x`"),
    ("(x)(x)", "3:23", "syntax", "write `... * (...)`"),
    ("2(x)", "3:21", "syntax", "write `2 * (...)`"),
    ("norm t\nINPUT x[..., D]\n", "2:1", "syntax", "write `input`"),
    ("norm t\nattr eps = 1e-6\nInput x[..., D]\n", "3:1", "syntax", "write `input`"),
    ("Norm t\ninput x[..., D]\n", "1:1", "syntax", "write `norm`"),
    ("PARAM w[D]", "3:1", "syntax", "write `param`"),
    ("Output y[..., D] = x", "3:1", "syntax", "write `output`"),
    ("x if x > 0 AND x < 1 else 0", "3:31", "syntax", "write `and`"),
    ("norm\ninput x[D]\n", "2:1", "syntax", "for example `norm power_norm"),
    ("norm t\ninput x[..., 4096]\n", "2:14", "syntax", "`axis D = 4096` fixes its length"),
    ("norm t\ninput x[(4 D)]\n", "2:10", "syntax", "name it, as in `x[..., D]`"),
    ("norm t\ninput x[*, D]\n", "2:9", "syntax", "`...` stands for all remaining dimensions"),
    ("norm t\ninput x[.., D]\n", "2:9", "syntax", "`...` stands for all remaining dimensions"),
    ("norm t\ninput x[…, D]\n", "2:9", "syntax", "write three dots"),
    ("norm t\ninput x[..., G*D]\n", "2:15", "syntax", "declare a dimension of two axes as `(G D)`"),
    ("mean[H*W](x)", "3:26", "syntax", "a reduction lists both, `[H, W]`"),
    ("mean[-1](x)", "3:25", "syntax", "write for example `mean[D](x)`"),
    ("mean[1](x)", "3:25", "syntax", "write for example `mean[D](x)`"),
    ("mean[](x)", "3:25", "syntax", "write for example `mean[D](x)`"),
    ("sqrt[2]", "3:25", "syntax", "as in `exp(x)`"),
    ("x[0:4]", "3:22", "syntax", "write `x`, or reduce over an axis"),
    ("x[:, 0]", "3:22", "syntax", "write `x`, or reduce over an axis"),
    ("x[-1]", "3:22", "syntax", "write `x`, or reduce over an axis"),
    ("x[..., D]", "3:20", "syntax", "write `x`"),
    ("y * 2", "3:20", "name", "give the new value another name"),
    ("let a = a + x", "3:9", "name", "give the new value another name"),
    ("let a = b\nlet b = x", "3:9", "name", "move its definition above"),
    ("sin(x)", "3:20", "name", "the functions are `exp`, `log`"),
    ("tan(x)", "3:20", "name", "the functions are `exp`, `log`"),
    ("floor(x)", "3:20", "name", "the functions are `exp`, `log`"),
    ("sillu(x)", "3:20", "name", "did you mean `silu`"),
    ("concat(x, x)", "3:20", "name", "declare one output for each part"),
    ("median[D](x)", "3:20", "name", "nothing sorts"),
    ("einsum(x, x)", "3:20", "name", "`sum[D](a * b)`"),
    ("log2(x)", "3:20", "name", "write `log(v) / log(2)`"),
    ("erfc(x)", "3:20", "name", "write `1 - erf(v)`"),
    ("relu6(x)", "3:20", "name", "write `clamp(v, 0, 6)`"),
    ("float64(x)", "3:20", "name", "kernels compute in float32"),
    ("mean(x)", "3:20", "arguments", "name the axes, as in `mean[D](...)`"),
    ("x == 0", "3:20", "type", "`1 if a < b else 0`"),
    ("let a == x", "3:7", "syntax", "write `=`"),
    ("1 if x = 0 else x", "3:27", "syntax", "compare with `==`"),
    ("x = 0", "3:22", "syntax", "compare with `==`"),
    ("x * rsqrt(mean[D](x^2)\nsave z[] = 1", "3:29", "syntax", "close it with `)`"),
    ("x * mean[D(x^2)", "3:28", "syntax", "close it with `]`"),
    ("x * (x", "3:24", "syntax", "close it with `)`"),
    ('x * (x "doc"', "3:24", "syntax", "close it with `)`"),
    ("(x]", "3:20", "syntax", "close it with `)`"),
    ("mean[D)](x)", "3:24", "syntax", "close it with `]`"),
    ("norm t\ninput x[..., D\noutput y[..., D] = x\n", "2:8", "syntax", "close it with `]`"),
    ("norm t\ninput x[..., D: bf16\n", "2:8", "syntax", "close it with `]`"),
    ("fn f(v = 2 * v", "3:5", "syntax", "close it with `)`"),
    ("x)", "3:21", "syntax", "remove it, or open a bracket"),
    ("x * (x +\nsave z[] = 1", "4:1", "syntax", "a value is a number, a name"),
    ("[x]", "3:20", "syntax", "a value is a number, a name"),
    ("x - −1", "3:24", "syntax", "subtract with `-`"),
    ("x – 1", "3:22", "syntax", "subtract with `-`"),
    ("x × 2", "3:22", "syntax", "multiply with `*`"),
    ("x · 2", "3:22", "syntax", "multiply with `*`"),
    ("x²", "3:21", "syntax", "write powers with `^`"),
    ("x**2", "3:22", "syntax", "write powers with `^`"),
    ("x // 2", "3:20", "integer", "use whole numbers, int attrs"),
    ("x % 2", "3:22", "syntax", "there is no remainder operator"),
    ("x @ x", "3:22", "syntax", "sum the products with `sum[D](a * b)`"),
    ("1 if x ≤ 0 else x", "3:27", "syntax", "write `<=`"),
    ("1 if x ≥ 0 else x", "3:27", "syntax", "write `>=`"),
    ("1 if x ≠ 0 else x", "3:27", "syntax", "write `!=`"),
    ("1 if !(x > 0) else x", "3:25", "syntax", "negate a condition with `not`"),
    ("1 if x > 0 && x < 1 else x", "3:31", "syntax", "join conditions with `and`"),
    ("x ? 1 : 0", "3:22", "syntax", "`a if condition else b`"),
    ("output y[..., D] -> x", "3:18", "syntax", "a definition is written `name = value`"),
    ("x -> y", "3:23", "syntax", "a definition is written `name = value`"),
    ("let a := x", "3:7", "syntax", "a definition is written `name = value`"),
    ("let a → x", "3:7", "syntax", "a definition is written `name = value`"),
    ("output (y, z) = x, x", "3:8", "syntax", "write one statement for each value"),
    ("output y[..., D], z[..., D] = x, x", "3:17", "syntax", "write one statement for each value"),
    ("(x, x)", "3:22", "syntax", "write one statement for each value"),
    ("x, x", "3:21", "syntax", "write one statement for each value"),
    ("norm t “doc”\ninput x[..., D]\n", "1:8", "syntax", "straight double quotes"),
    ("norm t 'doc'\ninput x[..., D]\n", "1:8", "syntax", "double quotes"),
    ("x * γ", "3:24", "syntax", "for example `gamma`"),
    ("1.5f * x", "3:23", "syntax", "write `1.5`"),
    ("x\tx", "3:22", "syntax", "write `x * x`"),
    ("lambda v: v", "3:27", "syntax", "define a function with `fn`"),
    ("def f(v): v", "3:1", "syntax", "did you mean `fn`?"),
    ("return x", "3:1", "syntax", "did you mean `output`?"),
    ("let a[..., D]: f32 = x", "3:14", "syntax", "the statement looks like this: `let h = x + r`"),
    ("axis E: 4", "3:7", "syntax", "the statement looks like this: `axis G = 4`"),
    ("grad y, x", "3:9", "syntax", "the statement looks like this: `grad y wrt x, w`"),
    ("1 if (x > 0 else x", "3:25", "syntax", "close it with `)`"),
    ("(x else 0)", "3:23", "syntax", "`a if condition else b`"),
    ("sum[D: 1](x)", "3:28", "syntax", "write for example `sum[D: -1..1](x)`"),
    ("sum[D -1..1](x)", "3:26", "syntax", "write for example `sum[D: -1..1](x)`"),
    ("norm t\ninput x[..., D=4]\n", "2:15", "syntax", "`axis D = 4`"),
    ("norm t\ninput x[..., D: 4]\n", "2:15", "syntax", "`axis D = 4`"),
    ("x / size[-1]", "3:29", "syntax", "write for example `mean[D](x)`"),
    ("1 if x is 0 else x", "3:27", "syntax", "compare with `<"),
    ("None", "3:20", "syntax", "`param w[D] = 1`"),
    ("weight w[D]", "3:1", "syntax", "did you mean `param`?"),
    ("norm t(x)\n", "1:7", "syntax", "the statement looks like this: `norm power_norm"),
]
STATEMENT = re.compile(r"(?i:norm|input|param|output|let|axis|attr|grad|fn|def|return|weight)\b")


@pytest.mark.parametrize(("text", "place", "code", "cure"), CURES, ids=[row[0] for row in CURES])
def test_a_slip_is_reported_where_it_is_with_a_cure(text: str, place: str, code: str, cure: str) -> None:
    statement = text if STATEMENT.match(text) else VALUE + text
    spec = text if text.lower().startswith("norm") else f"{INPUT}{statement}\n"
    with pytest.raises(SpecError) as caught:
        load(spec)
    found = [d for d in caught.value.diagnostics if d.code not in ("input", "output")]
    label = next(label for label in found[0].labels if label.primary)
    assert "{}:{}".format(*position(caught.value.source, label.span.start)) == place
    assert found[0].code == code
    assert cure in "\n".join(found[0].help)


def test_axes_are_shown_as_they_are_declared() -> None:
    spec = "norm t\naxis G = 4\ninput x[..., (G E)]\nparam w[D]\noutput y[..., (G E)] = x * w\n"
    with pytest.raises(SpecError) as caught:
        load(spec)
    said = str(caught.value)
    assert "this has axes [..., (G E), D]" in said
    assert "= help: to apply `w` to `x`, declare `w[(G E)]`" in said
    assert "declare `y[..., (G E), D]`" in said


def test_no_message_names_a_file_of_the_source_tree() -> None:
    named = []
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        docs = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
            and isinstance(node.body[0], ast.Expr)
        }
        named += [
            (path.name, node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs
            if SOURCE_TREE.search(node.value)
        ]
    assert not named, "whoever installs the wheel has no such file"
