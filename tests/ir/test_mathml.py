"""Formulas as MathML: well-formed for every spec, and what each part of an expression looks like."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from normgen.ir.expr import Expr
from normgen.ir.formula import written
from normgen.ir.grad import backward
from normgen.ir.mathml import MathML, formulas_html, rows_of
from tests.ir.specs import NAMES, bundled

from .test_show import CASES, value


def plain(markup: str) -> str:
    """The characters of MathML, fractions as a/b."""
    ElementTree.fromstring(f"<math>{markup.replace('&#x2061;', '')}</math>")
    return re.sub(r"<[^>]*>|&#x2061;", "", markup).replace("&#xa0;", " ").replace("&lt;", "<")


def typeset(node: Expr, *differentials: str) -> str:
    return written(node, {}, MathML(differentials))


@pytest.mark.parametrize("name", NAMES)
def test_the_formulas_of_every_spec_are_well_formed(name: str) -> None:
    definition = bundled(name)
    programs = [definition.program, *([backward(definition)] if definition.of else [])]
    for program in programs:
        ElementTree.fromstring(formulas_html(program).replace("&#x2061;", ""))
        wanted = {result.tensor.name for result in program.results} | {u.state for u in program.updates}
        assert wanted <= {row.name for row in rows_of(program)}


@pytest.mark.parametrize("text", CASES)
def test_every_kind_of_expression_is_typeset(text: str) -> None:
    assert plain(typeset(value(text)))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            "2 * x / 3",
            "<mfrac><mrow><mrow><mn>2</mn><mo>⋅</mo><mi>x</mi></mrow></mrow><mrow><mn>3</mn></mrow></mfrac>",
        ),
        (
            "rsqrt(x)",
            "<mfrac><mrow><mn>1</mn></mrow><mrow><msqrt><mrow><mi>x</mi></mrow></msqrt></mrow></mfrac>",
        ),
        ("(x - r)^2", "<msup><mrow><mrow><mo>(</mo><mrow><mi>x</mi><mo>−</mo><mi>r</mi></mrow>"),
        ("sum[D](x^2) * r", "<munder><mo>∑</mo><mrow><mi>D</mi></mrow></munder><msup>"),
        ("x if x < r else 2", "<mtable><mtr><mtd"),
        ("1e-12 * x", "<msup><mn>10</mn><mrow><mo>−</mo><mn>12</mn></mrow></msup>"),
        ("abs(x)", '<mo stretchy="true">|</mo><mi>x</mi>'),
        ("exp(x)", "<msup><mi>e</mi>"),
    ],
)
def test_notation(text: str, wanted: str) -> None:
    assert wanted in typeset(value(text))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("w * (x - r)", "w⋅(x−r)"),
        ("x - (r - w)^3", "x−(r−w)3"),
        ("sum[D](x - r) * x", "x⋅∑D(x−r)"),
        ("sum[D](x) + r", "r+∑Dx"),
        ("sum[D](x) * max[D](r)", "(maxDr)⋅∑Dx"),
        ("-x * r", "−r⋅x"),
        ("(x if x < r else r) * 2", "2⋅({xif x<rrotherwise)"),
    ],
)
def test_parentheses_stand_where_they_are_needed_and_nowhere_else(text: str, wanted: str) -> None:
    assert plain(typeset(value(text))) == wanted


def test_names_are_written_as_mathematics_has_them() -> None:
    notation = MathML({"dx"})
    names = {"mu": "μ", "x_hat": "x^", "running_mean": "runningmean", "h2": "h2", "dx": "dx", "rstd": "rstd"}
    assert {name: plain(notation.name(name).text) for name in names} == names
    assert "mathvariant" in notation.name("dx").text and "mathvariant" not in notation.name("dy").text
    assert "<msub>" in notation.name("h2").text and "<mover" in notation.name("x_hat").text
