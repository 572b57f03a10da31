"""What parses, into which tree; what is printed parses to itself; the rest is refused in good time."""

from __future__ import annotations

import json
from importlib.resources import files

import lark
import pytest
from hypothesis import given, settings

from normgen.dsl import ast
from normgen.dsl.build import Builder
from normgen.dsl.show import show_ast, show_expression
from tools import parser_tables

from .loading import refused, tree
from .trees import SPECS


def expression(text: str) -> ast.Expression:
    (statement,) = tree(f"norm t\nlet v = {text}\n").statements
    assert isinstance(statement, ast.Let)
    return statement.value


def test_the_grammar_has_no_conflicts() -> None:
    """`strict` refuses terminals that overlap and rules that shadow one another."""
    grammar = files("normgen.dsl").joinpath("norm.lark").read_text(encoding="utf-8")
    made = lark.Lark(grammar, parser="lalr", lexer="basic", start=["spec", "prelude"], strict=True)
    assert made.rules


def test_the_tables_are_those_of_the_grammar() -> None:
    made = json.loads(parser_tables.TABLES.read_text(encoding="utf-8"))
    assert made["digest"] == parser_tables.digest(), "run `python -m tools.parser_tables`"
    assert made["data"]["options"] == parser_tables.OPTIONS


def test_every_rule_has_a_builder() -> None:
    grammar = lark.Lark(
        files("normgen.dsl").joinpath("norm.lark").read_text(encoding="utf-8"),
        parser="lalr",
        lexer="basic",
        start=["spec", "prelude"],
        keep_all_tokens=True,
    )
    transparent = {"expression", "disjunction", "conjunction", "negation", "comparison"}
    transparent |= {"sum", "product", "signed", "power", "atom"}
    rules = {str(rule.alias or rule.origin.name) for rule in grammar.rules}
    wanted = {name for name in rules if not name.startswith("_")} - transparent
    assert wanted <= {name for name in vars(Builder) if not name.startswith("_")}


# ------------------------------------------------------------------------------ trees


@pytest.mark.parametrize(
    ("text", "grouped"),
    [
        ("-x^2", "-(x^2)"),
        ("x^-2", "x^(-2)"),
        ("x^y^z", "x^(y^z)"),
        ("a / b * c", "(a / b) * c"),
        ("-a * b", "(-a) * b"),
        ("a if p else b if q else c", "a if p else (b if q else c)"),
        ("a if x < y and not p or q else b", "a if (((x < y) and (not p)) or q) else b"),
        ("sum[D](x) / size[D]", "(sum[D](x)) / (size[D])"),
        ("max(a, b,)", "max(a, b)"),
        ("sum[B, D,](x)", "sum[B, D](x)"),
    ],
)
def test_precedence(text: str, grouped: str) -> None:
    assert expression(text) == expression(grouped)


def test_numbers() -> None:
    for text in ("1", "1.", ".5", "1e3", "2.5E-1", ".5e+1"):
        node = expression(text)
        assert isinstance(node, ast.Number)
        assert node.value == float(text) and node.integral == text.isdigit()


def test_a_point_and_a_range_are_told_apart() -> None:
    refused("norm t\nlet v = sum[C: 1...5](x)\n")
    node = expression("sum[C: -1..n // 2](x)")
    assert isinstance(node, ast.Call)
    (reach,) = node.over
    assert isinstance(reach, ast.Window)
    assert (show_expression(reach.low), show_expression(reach.high)) == ("-1", "n // 2")


ALL = """norm example "says \\"what\\" \\\\ it does"

attr   low > -1 "a doc"
axis   G = groups "a doc"
input  z[B, (G C), ...,]: like x
param  w[(G C)] = 1
fn     g[A](v, t,) = sum[A](v) * t "a doc"
let    k[B, (G C), ...] = h "a doc"
let    none[] = 1
save output s[] = 1
update m = m "a doc"
grad   y, k wrt x, h "a doc"
"""


def test_every_statement() -> None:
    """Trailing commas, escapes and docs; what else there is is printed and parsed below."""
    spec = tree(ALL)
    assert spec.doc == 'says "what" \\ it does'
    kinds = [type(s).__name__ for s in spec.statements]
    assert " ".join(kinds) == "Attr Axis Tensor Tensor Function Let Let Tensor Update Gradient"
    assert all(s.doc == "a doc" for s in spec.statements if "a doc" in ALL[s.span.start : s.span.end])
    low, _, z, *_ = spec.statements
    assert isinstance(low, ast.Attr) and isinstance(z, ast.Tensor)
    assert low.bound == ast.Bound(">", ast.Unary("-", ast.Number("1")))
    assert [[a.text for a in d] for d in z.dimensions] == [["B"], ["G", "C"], ["..."]]
    assert z.dtype == ast.ElementType(ast.Identifier("x"), like=True)


def test_spans_cover_what_they_name() -> None:
    for statement in tree(ALL).statements:
        text = ALL[statement.span.start : statement.span.end]
        assert ALL[: statement.span.start].endswith("\n") and "\n" not in text
        if isinstance(statement, ast.Tensor):
            head = ALL[statement.head.start : statement.head.end]
            assert head.startswith(statement.name.text) and head.endswith("]")
    text = "norm t\nlet v = (a + b) * size[D]\n"
    (let,) = tree(text).statements
    assert isinstance(let, ast.Let) and isinstance(let.value, ast.Binary)
    parts = (let.value, let.value.left, let.value.right)
    spans = [text[n.span.start : n.span.end] for n in parts]
    assert spans == ["(a + b) * size[D]", "(a + b)", "size[D]"]


@pytest.mark.parametrize(
    "text",
    [
        "\ufeffnorm t\r\n# a comment\r\nlet v = 1\r\n",
        "norm t let v = 1",
        "norm t # a comment without an end of line",
        "norm t\n\tlet v = 1 # μ, σ and other letters are welcome in comments\n",
        'norm t "and in docs: μ"',
        "norm normal\nlet inputs = 1\nlet iffy = inputs\n",
    ],
)
def test_what_parses(text: str) -> None:
    assert tree(text).name.text in ("t", "normal")


# ------------------------------------------------------------------------------ there and back


@settings(max_examples=100, deadline=None)
@given(SPECS)
def test_what_is_printed_parses_to_the_same_tree(spec: ast.Spec) -> None:
    assert tree(show_ast(spec)) == spec


def test_no_needless_parentheses() -> None:
    for text in (
        "a - b - c",
        "a - (b - c)",
        "-x^2",
        "(-x)^2",
        "x^-y",
        "(a if p else b) + c",
        "not (p and q)",
        "a if p and q else b if r else c",
    ):
        assert show_expression(expression(text)) == text
