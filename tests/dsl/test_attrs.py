"""Attrs: types, ranges, defaults, and the values given when a spec is loaded."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from normgen.ir import expr as ir

from .loading import faults, load

ATTRS = """norm t
attr   a >= 0 = 1e-6
attr   b
attr   n: int >= 1 = 4
attr   m: int = n // 2 + 1
attr   flag: bool = n > 3
attr   c = a * 2
input  x[D]
output y[D] = x * a * b * c / m if flag else x / n
"""


def attrs(**given: object) -> dict[str, Any]:
    return {a.name: (a.value, a.folded) for a in load(ATTRS, **given).program.attrs}


def test_attrs() -> None:
    assert attrs() == {
        "a": (Fraction(1, 10**6), False),
        "b": (None, False),
        "n": (4, True),
        "m": (3, True),
        "flag": (True, True),
        "c": (Fraction(2, 10**6), False),
    }
    kinds = {a.name: (a.kind, a.low, a.low_strict) for a in load(ATTRS).program.attrs}
    assert kinds["a"] == ("float", 0, False) and kinds["n"] == ("int", 1, False)
    assert kinds["b"] == ("float", None, False)
    # Defaults follow the attrs that they are made of.
    assert attrs(n=3, a=0.5)["m"] == (2, True)
    assert attrs(n=3)["flag"] == (False, True)
    assert attrs(a=0.5)["c"] == (1, False)


def test_what_is_given_when_loading_is_folded() -> None:
    for given, value in (
        (1e-5, Fraction(1, 10**5)),
        (0, Fraction(0)),
        (Fraction(1, 3), Fraction(1, 3)),
        (np.float64(0.1), Fraction(1, 10)),
        (np.float32(0.5), Fraction(1, 2)),
        (np.int64(3), Fraction(3)),
        (True, Fraction(1)),
        (np.bool_(False), Fraction(0)),
    ):
        assert attrs(a=given)["a"] == (value, True)
        y = load(ATTRS, a=given, b=1).program.results[0].expr
        assert not [n for n in ir.walk(y) if isinstance(n, ir.Scalar) and n.name == "a"]
    assert attrs(n=np.int32(7), flag=np.bool_(False))["n"] == (7, True)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"a": -1e-9}, "`a` is -1e-09, which is outside its range"),
        ({"n": True}, "`n` must be an int, not True (bool)"),
        ({"n": 10**400}, "`n` does not fit 64 bits"),
        ({"flag": 1}, "`flag` must be a bool, not 1 (int)"),
        ({"a": None}, "`a` must be a float, not None (NoneType)"),
        ({"a": math.inf}, "`a` must be finite, not inf"),
        ({"a": 1e39}, "`a` is larger than the largest float32, 3.402823e+38"),
        ({"a": 10**400}, "`a` is larger than the largest float32, 3.402823e+38"),
        ({"a": np.zeros(2)}, "`a` must be a float, not array([0., 0.]) (ndarray)"),
    ],
)
def test_given_values_that_do_not_fit(given: dict[str, object], message: str) -> None:
    assert faults(ATTRS, **given) == [("attr", message)]


@pytest.mark.parametrize(
    ("attr", "message"),
    [
        ("attr a > 0 = 0", "the default of `a` is 0, which is outside its range"),
        ("attr a: bool = 1", "the default of `a` must be a bool"),
        ("attr a: int = true", "the default of `a` must be an int"),
        ("attr a: int = 4 / 2", "the default of `a` must be an int"),
        ("attr a: bool >= 0 = true", "`a` is a bool, and a bool has no range"),
        ("attr b\nattr a = b", "the default of `a` is unknown at compile time"),
        ("attr a: bool", "attr `a` has no value, and a bool needs one"),
    ],
)
def test_attrs_that_do_not_make_sense(attr: str, message: str) -> None:
    assert faults(f"norm t\n{attr}\ninput x[D]\noutput y[D] = x if 1 < 2 else x * a\n") == [("attr", message)]
