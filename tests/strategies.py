"""Hypothesis strategies that others test with.

`well_typed_specs()` draws the text of specs of the rows kind: reductions over the innermost axis `D` of
`x`, operands over any subset of the axes, functions, choices, max, min, abs, attrs, saves, several outputs.
Every spec it draws is right, and its values and derivatives are tame: with inputs N(0, 1) or U(0.5, 1.5) and
operands near their defaults nothing overflows, and no rounding decides on which side of a kink a value is:
max, min, abs and conditions look at operands as they are, or at constants that no 16-bit number equals.

`distinct_arrays()` are operands for difference quotients: no two elements, and no element and a threshold,
are closer than 0.002.

    @given(well_typed_specs())
    def test(text): load_definition(Source("drawn.norm", text))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from normgen.ir.program import Tensor

# Of tests that compile what is drawn, each seeded: not shrunk, which would compile hundreds more.
COMPILED = settings(
    deadline=None,
    database=None,
    phases=(Phase.generate,),
    suppress_health_check=(HealthCheck.too_slow,),
)
ROWS = (("...",), ("B",), ("B", "S"))
THRESHOLDS = ("0.3", "-0.7", "1.1", "-0.15")
FUNCTIONS = {
    "squash": ("fn squash(v) = v / (1 + v^2)", False),
    "centred": ("fn centred[A](v) = v - mean[A](v)", True),
    "softened": ("fn softened[A](v, t) = lerp(v, mean[A](v), t)", True),
}
LARGEST = 12.0  # bound of a value that is used without a squashing function around it


@dataclass(frozen=True)
class Term:
    """An expression: its text, the axes it varies over, a bound of its size for tame operands.

    `raw`: an operand as it is. `levels`: how many reductions depend on one another in it.
    """

    text: str
    axes: frozenset[str]
    bound: float
    raw: bool = False
    levels: int = 0


@dataclass
class _Spec:
    """A spec while it is drawn."""

    draw: DrawFn
    rows: tuple[str, ...]
    terms: list[Term] = field(default_factory=list)
    floats: list[str] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    integers: list[str] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)

    @property
    def order(self) -> tuple[str, ...]:
        return (*self.rows, "D")

    def brackets(self, axes: frozenset[str]) -> str:
        return f"[{', '.join(axis for axis in self.order if axis in axes)}]"

    def pick(self, options: list[Term] | tuple[Term, ...]) -> Term:
        return self.draw(st.sampled_from(options))

    def chance(self, percent: int) -> bool:
        return self.draw(st.integers(0, 99)) < percent


def _tame(term: Term, bound: float = LARGEST) -> Term:
    """The term, squashed if it may be larger than the bound."""
    if term.bound <= bound:
        return term
    return Term(f"tanh({term.text})", term.axes, 1.0, levels=term.levels)


def _leaf(spec: _Spec) -> Term:
    if spec.floats and spec.chance(10):
        return Term(spec.draw(st.sampled_from(spec.floats)), frozenset(), 1.0)
    if spec.integers and spec.chance(5):
        return Term(f"{spec.draw(st.sampled_from(spec.integers))} / 4", frozenset(), 1.0)
    if spec.chance(8):
        return Term(spec.draw(st.sampled_from(("0.5", "2", "1.25", ".75"))), frozenset(), 2.0)
    return spec.pick(spec.terms)


def _kinked(spec: _Spec) -> Term:
    """max, min, abs and choices, of operands as they are."""
    raw = [term for term in spec.terms if term.raw]
    a, b = spec.pick(raw), spec.pick(raw)
    t = spec.draw(st.sampled_from(THRESHOLDS))
    both = a.axes | b.axes
    larger = max(a.bound, b.bound)
    options = [
        Term(f"abs({a.text})", a.axes, a.bound),
        Term(f"max({a.text}, {t})", a.axes, a.bound + 1),
        Term(f"min({a.text}, {t})", a.axes, a.bound + 1),
        Term(f"clamp({a.text}, -0.7, 1.1)", a.axes, 1.1),
        Term(f"relu({a.text} - {t})" if t[0] != "-" else f"relu({a.text})", a.axes, a.bound + 1),
        Term(f"({a.text} if {b.text} > {t} else 0.5 * {a.text})", both, a.bound),
        Term(f"({a.text} if {b.text} < 1.1 and not {b.text} <= -0.7 else {b.text})", both, larger),
        Term(f"(1 if {a.text} >= {t} or {b.text} > 0.3 else tanh({b.text}))", both, 1.0),
    ]
    if a is not b:
        options.append(Term(f"max({a.text}, {b.text})", both, larger))
    if "D" in a.axes:
        options += [
            Term(f"max[D]({a.text})", a.axes - {"D"}, a.bound, levels=1),
            Term(f"max[D](abs({a.text}))", a.axes - {"D"}, a.bound, levels=1),
            Term(f"min[D]({a.text})", a.axes - {"D"}, a.bound, levels=1),
        ]
    return spec.pick(options)


def _smooth(spec: _Spec, a: Term) -> Term:
    """A function of one term."""
    v, axes, n = a.text, a.axes, a.levels
    square = a.bound**2
    options = [
        Term(f"tanh({v})", axes, 1.0, levels=n),
        Term(f"sigmoid({v})", axes, 1.0, levels=n),
        Term(f"erf({v})", axes, 1.0, levels=n),
        Term(f"silu({v})", axes, a.bound, levels=n),
        Term(f"gelu({v})", axes, a.bound, levels=n),
        Term(f"softplus({v})", axes, a.bound + 1, levels=n),
        Term(f"exp(tanh({v}))", axes, 2.8, levels=n),
        Term(f"log(1 + ({v})^2)", axes, 5.0, levels=n),
        Term(f"sqrt(1 + ({v})^2)", axes, a.bound + 1, levels=n),
        Term(f"rsqrt(1 + ({v})^2)", axes, 1.0, levels=n),
        Term(f"1 / (2 + ({v})^2)", axes, 0.5, levels=n),
        Term(f"(1 + ({v})^2)^-0.25", axes, 1.0, levels=n),
        Term(f"({v})^2", axes, square, levels=n),
        Term(f"tanh({v})^3", axes, 1.0, levels=n),
        Term(f"-({v})", axes, a.bound, levels=n),
    ]
    if spec.floats:
        options.append(Term(f"(1 + ({v})^2)^-{spec.floats[0]}", axes, 1.0, levels=n))
    if "squash" in spec.functions:
        options.append(Term(f"squash({v})", axes, 0.5, levels=n))
    return spec.pick(options)


def _reduced(spec: _Spec, a: Term) -> Term:
    """A statistic of the rows of a term, or the term made relative to it."""
    v, left, n = a.text, a.axes - {"D"}, a.levels + 1
    eps = spec.floats[0] if spec.floats else "0.1"
    options = [
        Term(f"mean[D]({v})", left, a.bound, levels=n),
        Term(f"sum[D]({v}) / size[D]", left, a.bound, levels=n),
        Term(f"var[D]({v})", left, a.bound**2, levels=n + 1),
        Term(f"rsqrt(mean[D](({v})^2) + {eps})", left, 4.0, levels=n),
        Term(f"1 / (1 + sum[D](({v})^2))", left, 1.0, levels=n),
        Term(f"sqrt(mean[D](({v})^2) + {eps})", left, a.bound + 1, levels=n),
        Term(f"({v} - mean[D]({v}))", a.axes, 2 * a.bound, levels=n),
        Term(f"softmax[D](tanh({v}))", a.axes, 1.0, levels=n),
        Term(f"logsumexp[D](tanh({v})) / 8", left, 2.0, levels=n),
    ]
    if "centred" in spec.functions:
        options.append(Term(f"centred[D]({v})", a.axes, 2 * a.bound, levels=n))
    if "softened" in spec.functions:
        options.append(Term(f"softened[D]({v}, 0.25)", a.axes, a.bound, levels=n))
    return spec.pick(options)


def _term(spec: _Spec, size: int) -> Term:
    """An expression of about this many operations."""
    if size <= 0:
        return _tame(_leaf(spec))
    kind = spec.draw(st.integers(0, 9))
    if kind <= 1:
        return _tame(_kinked(spec))
    if kind <= 3:
        return _tame(_smooth(spec, _term(spec, size - 1)))
    a = _term(spec, size - 1)
    if kind <= 6 and "D" in a.axes and a.levels < 2:
        return _tame(_reduced(spec, a))
    b = _term(spec, size // 2)
    axes, levels = a.axes | b.axes, max(a.levels, b.levels)
    if kind == 7:
        return _tame(Term(f"({a.text}) * ({b.text})", axes, a.bound * b.bound, levels=levels))
    sign = spec.draw(st.sampled_from("+-"))
    return _tame(Term(f"{a.text} {sign} ({b.text})", axes, a.bound + b.bound, levels=levels))


def _operands(spec: _Spec) -> list[str]:
    """Declarations of tensors, `x` over all axes first; they become terms."""
    full = frozenset(spec.order)
    lines = [f"input x{spec.brackets(full)}"]
    spec.terms.append(Term("x", full, 5.0, raw=True))
    subsets = [full, frozenset({"D"}), full - {"D"}, frozenset()]
    if len(spec.rows) == 2:
        subsets += [frozenset({"B", "D"}), frozenset({"S"})]
    for name in ("w", "b", "z", "r")[: spec.draw(st.integers(0, 4))]:
        axes = spec.draw(st.sampled_from(subsets))
        default = spec.draw(st.sampled_from(("1", "0", "0.5"))) if spec.chance(60) else ""
        role = "param" if default else spec.draw(st.sampled_from(("input", "param")))
        lines.append(f"{role} {name}{spec.brackets(axes)}{f' = {default}' if default else ''}")
        spec.terms.append(Term(name, axes, 1.5 if default else 5.0, raw=True))
    return lines


def _attrs(spec: _Spec) -> list[str]:
    lines = []
    if spec.chance(50):
        lines.append(f"attr eps > 0 = {spec.draw(st.sampled_from(('0.1', '0.5', '2.5e-1')))}")
        spec.floats.append("eps")
    if spec.chance(25):
        lines.append("attr n: int >= 1 = 3")
        spec.integers.append("n")
    if spec.chance(30):
        lines.append(f"attr gated: bool = {spec.draw(st.sampled_from(('true', 'false')))}")
        spec.flags.append("gated")
    return lines


@st.composite
def _specs(draw: DrawFn, size: int) -> str:
    spec = _Spec(draw, draw(st.sampled_from(ROWS)))
    lines = ["norm drawn", *_attrs(spec)]
    for name, (text, _) in FUNCTIONS.items():
        if spec.chance(25):
            lines.append(text)
            spec.functions.append(name)
    lines += _operands(spec)
    full = frozenset(spec.order)
    for index in range(draw(st.integers(0, 3))):
        term = _term(spec, draw(st.integers(1, size)))
        name = f"t{index}"
        if spec.flags and spec.chance(30):
            other = _term(spec, 1)
            if other.axes == term.axes:
                term = Term(
                    f"{term.text} if {spec.flags[0]} else {other.text}",
                    term.axes,
                    max(term.bound, other.bound),
                    levels=max(term.levels, other.levels),
                )
        keep = term.axes == frozenset(spec.rows) and spec.chance(60)
        head = f"save {name}{spec.brackets(term.axes)}" if keep else f"let {name}"
        lines.append(f"{head} = {term.text}")
        spec.terms.append(Term(name, term.axes, term.bound, levels=term.levels))
    body = _term(spec, size)
    # Every operand takes part, so that no gradient is zero for want of a use.
    mixed = " + ".join(f"0.5 * {term.text}" for term in spec.terms if term.raw and term.text != "x")
    factor = spec.draw(st.sampled_from(("x", "tanh(x)", "(x - mean[D](x))")))
    keep = "save output" if spec.chance(15) else "output"
    rest = f" + {mixed}" if mixed else ""
    lines.append(f"{keep} y{spec.brackets(full)} = {factor} * ({_tame(body).text}){rest}")
    if spec.chance(20):
        extra = _term(spec, 2)
        if extra.axes >= frozenset(spec.rows):  # what has fewer axes is no value of a row
            lines.append(f"output v{spec.brackets(extra.axes)} = {extra.text}")
    return "\n".join(lines) + "\n"


def well_typed_specs(size: int = 3) -> SearchStrategy[str]:
    """Texts of specs without a fault; `size` is about the number of operations in one expression."""
    return _specs(size)


def distinct_arrays(tensors: tuple[Tensor, ...], extents: Mapping[str, int], seed: int) -> dict[str, Any]:
    """An array for each tensor, of its axes in memory order; at most 600 elements in all.

    Elements are multiples of 0.01 plus 0.003: they and their absolute values differ, and from thresholds too.
    """
    shapes = {t.name: tuple(extents[axis] for axis in t.order) for t in tensors}
    total = sum(int(np.prod(shape)) for shape in shapes.values())
    assert total <= 600, f"{total} elements: no room for distinct values"
    reach = max(200, (total + 1) // 2)
    values = np.random.default_rng(seed).permutation(np.arange(-reach, reach)) * 0.01 + 0.003
    arrays, start = {}, 0
    for name, shape in shapes.items():
        count = int(np.prod(shape))
        arrays[name] = values[start : start + count].reshape(shape)
        start += count
    return arrays
