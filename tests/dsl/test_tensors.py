"""Tensors of a checked spec: dtypes, order, and what is differentiated."""

from __future__ import annotations

import pytest

from normgen.ir import expr as ir
from normgen.ir.program import Tensor

from .loading import load

D = frozenset({"D"})


def test_dtypes() -> None:
    text = """norm t
input  a[D]
input  b[D]: bf16
input  c[D]: like a
input  e[D]: like c
param  w[D]: like b
state  s[D] = 0
save   m[] = sum[D](a)
save   p[]: f16 = sum[D](b)
output y[D] = cast(a, e) + cast(a, y0) + cast(a, w) + cast(a, s) + cast(a, m) + c + e
update s = a
"""
    text = text.replace("output y[D]", "output y0[D] = a\noutput y[D]")
    program = load(text).program
    tensors = {t.name: t for t in (*program.operands, *(r.tensor for r in program.results))}
    found = {name: t.dtype or t.like for name, t in tensors.items()}
    assert found == {"a": None, "b": "bf16", "w": "bf16", "s": "f32", "m": "f32", "p": "f16"} | dict.fromkeys(
        ("c", "e", "y0", "y"), "a"
    )
    roundings = sorted(n.to for n in ir.walk(program.results[-1].expr) if isinstance(n, ir.Round))
    assert roundings == ["bf16", "like a"]


def test_a_dtype_chosen_by_attrs() -> None:
    text = """norm t
attr   wide: bool = false
attr   n: int = 1
input  x[..., D]
input  q[..., D]: f8e5m2 if wide else f16 if n == 2 else f8e4m3
output y[..., D]: like x if wide and n > 1 else f32 = x * q
"""
    for wide, n, q, y in (
        (False, 1, "f8e4m3", "f32"),
        (True, 1, "f8e5m2", "f32"),
        (False, 2, "f16", "f32"),
        (True, 2, "f8e5m2", "x"),
    ):
        program = load(text, wide=wide, n=n).program
        tensors = (program.operands[1], program.results[0].tensor)
        assert [t.dtype or t.like for t in tensors] == [q, y]


@pytest.mark.parametrize(
    ("grad", "of", "wrt"),
    [
        ("", ("h",), ("x", "w", "z")),
        ("grad y, v wrt w, x", ("y", "v"), ("w", "x")),
        ("grad y wrt v, w", ("y",), ("v", "w")),
    ],
)
def test_what_is_differentiated(grad: str, of: tuple[str, ...], wrt: tuple[str, ...]) -> None:
    text = f"""norm t
input  x[D]
input  q[D]: f8e4m3
param  w[D] = 1
input  z[D]
state  s[D] = 0
let    v[D] = q * x * z
output h[D] = v * w
output y[D]: f8e4m3 = v + h
update s = y
{grad}
"""
    definition = load(text)
    assert (definition.of, definition.wrt) == (of, wrt)
    opened = definition.opened
    assert (opened is not None) == ("v" in wrt)
    if opened is not None:
        v = ir.load("v", D)
        assert opened.operands[-1] == Tensor(
            "v", "let", (("D",),), None, None, None, "", definition.program.bindings[0].span
        )
        assert opened.results[0].expr is ir.mul(v, ir.load("w", D))
        assert opened.bindings[0].expr is definition.program.bindings[0].expr is not v
        assert definition.program.bindings[0].dims == (("D",),)
