"""Syntax trees drawn at random: every shape that the grammar can give, most of them without sense."""

from __future__ import annotations

import string

from hypothesis import strategies as st

from normgen.dsl import ast

NAMES = st.text(string.ascii_lowercase, min_size=1, max_size=3).map(lambda t: f"v{t}").map(ast.Identifier)
AXES = st.sampled_from(["A", "B", "Channels", "D_2"]).map(ast.Identifier)
PLACES = AXES | st.just(ast.Identifier("..."))
NUMERALS = st.sampled_from(["0", "1", "448", "1.", ".5", "1e-6", "2.5E+3"]).map(ast.Number)
LEAVES = NUMERALS | NAMES.map(lambda n: ast.Name(n.text)) | st.booleans().map(ast.Truth)
OPERATORS = ["+", "-", "*", "/", "//", "^", "<", "<=", ">", ">=", "==", "!=", "and", "or"]


def _deeper(inner: st.SearchStrategy[ast.Expression]) -> st.SearchStrategy[ast.Expression]:
    windows = st.builds(ast.Window, AXES, inner, inner)
    brackets = st.lists(PLACES | windows, min_size=1, max_size=2).map(tuple)
    reaches = st.just(()) | brackets
    arguments = st.lists(inner, min_size=1, max_size=3).map(tuple)
    return (
        st.builds(ast.Unary, st.sampled_from(["-", "not"]), inner)
        | st.builds(ast.Binary, st.sampled_from(OPERATORS), inner, inner)
        | st.builds(ast.Conditional, inner, inner, inner)
        | st.builds(ast.Call, NAMES, reaches, arguments)
        | st.builds(ast.Subscript, NAMES, brackets)
    )


EXPRESSIONS = st.recursive(LEAVES, _deeper, max_leaves=12)
DOCS = st.text(
    st.characters(codec="utf-8", categories=["L", "N", "P", "S"], include_characters=' "\\'), max_size=8
)
DIMENSIONS = st.lists(
    PLACES.map(lambda a: (a,)) | st.lists(AXES, min_size=2, max_size=3).map(tuple), max_size=3
).map(tuple)
ELEMENT_TYPES = st.builds(ast.ElementType, NAMES, st.booleans())
ELEMENTS = st.recursive(
    ELEMENT_TYPES,
    lambda inner: st.builds(ast.ElementChoice, ELEMENT_TYPES, EXPRESSIONS, inner),
    max_leaves=3,
)
IDENTIFIERS = st.lists(NAMES, min_size=1, max_size=3).map(tuple)
STATEMENTS = (
    st.builds(
        ast.Attr,
        NAMES,
        st.none() | NAMES,
        st.none() | st.builds(ast.Bound, st.sampled_from([">", ">="]), NUMERALS),
        st.none() | EXPRESSIONS,
        DOCS,
    )
    | st.builds(ast.Axis, AXES, EXPRESSIONS, DOCS)
    | st.builds(
        ast.Tensor,
        st.sampled_from(["input", "param", "state", "save", "output", "save output"]),
        NAMES,
        DIMENSIONS,
        st.none() | ELEMENTS,
        st.none() | EXPRESSIONS,
        DOCS,
    )
    | st.builds(ast.Let, NAMES, st.none() | DIMENSIONS, EXPRESSIONS, DOCS)
    | st.builds(ast.Update, NAMES, EXPRESSIONS, DOCS)
    | st.builds(ast.Gradient, IDENTIFIERS, IDENTIFIERS, DOCS)
    | st.builds(ast.Function, NAMES, st.none() | AXES, IDENTIFIERS, EXPRESSIONS, DOCS)
)
SPECS = st.builds(ast.Spec, NAMES, DOCS, st.lists(STATEMENTS, max_size=4).map(tuple))
