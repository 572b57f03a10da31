"""Hypothesis strategies for specs in which everything ranges over axes of its own.

`axis_specs()` draws the text of specs whose operands lie on any axes of `x`, whose reductions go over any
axes, and whose saves and outputs have any: a sum that is the same along an axis of its result, a maximum of
a maximum, a value that only some rows need. Every spec is right and tame, as those of `strategies` are, but
a maximum may be one of computed values.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

AXES = ("B", "S", "D")
# Of one value: its text, and whether it needs more than its operand to stay tame.
FUNCTIONS = ("tanh({})", "sigmoid({})", "({})^2", "rsqrt(1 + ({})^2)", "abs({})")
PAIRS = ("({}) * ({})", "{} + ({})", "{} - ({})", "max({}, {})", "min({}, {})")
REDUCTIONS = ("sum", "sum", "mean", "max", "min")


@dataclass(frozen=True)
class _Value:
    text: str
    axes: frozenset[str]


def _brackets(axes: frozenset[str]) -> str:
    return f"[{', '.join(axis for axis in AXES if axis in axes)}]"


@dataclass
class _Spec:
    draw: DrawFn
    values: list[_Value] = field(default_factory=list)

    def axes(self, least: int = 0) -> frozenset[str]:
        return frozenset(self.draw(st.sets(st.sampled_from(AXES), min_size=least)))

    def value(self, size: int) -> _Value:
        """A value of about so many operations."""
        kind = self.draw(st.integers(0, 3)) if size > 0 else 0
        if kind == 0:
            return self.draw(st.sampled_from(self.values))
        a = self.value(size - 1)
        if kind == 1:
            return _Value(self.draw(st.sampled_from(FUNCTIONS)).format(a.text), a.axes)
        if kind == 2 and a.axes:
            over = frozenset(self.draw(st.sets(st.sampled_from(sorted(a.axes)), min_size=1)))
            op = self.draw(st.sampled_from(REDUCTIONS))
            inner = f"tanh({a.text})" if op == "sum" else a.text
            reduced = ", ".join(axis for axis in AXES if axis in over)
            return _Value(f"{op}[{reduced}]({inner})", a.axes - over)
        b = self.value(size // 2)
        return _Value(self.draw(st.sampled_from(PAIRS)).format(a.text, b.text), a.axes | b.axes)


@st.composite
def _specs(draw: DrawFn, size: int) -> str:
    spec = _Spec(draw, [_Value("x", frozenset(AXES))])
    lines = ["norm drawn", f"input x{_brackets(frozenset(AXES))}"]
    for name in ("z", "w", "p")[: draw(st.integers(0, 3))]:
        axes = spec.axes()
        role, default = draw(st.sampled_from((("input", ""), ("param", ""), ("param", " = 1"))))
        lines.append(f"{role} {name}{_brackets(axes)}{default}")
        spec.values.append(_Value(name, axes))
    for index in range(draw(st.integers(0, 2))):
        value, name = spec.value(size), f"s{index}"
        keep = draw(st.sampled_from(("let", "save")))
        head = f"save {name}{_brackets(value.axes)}" if keep == "save" else f"let {name}"
        lines.append(f"{head} = {value.text}")
        spec.values.append(_Value(name, value.axes))
    used = spec.value(size)
    mixed = " + ".join(f"0.5 * {value.text}" for value in spec.values)
    whole = frozenset[str]().union(used.axes, *(value.axes for value in spec.values))
    lines.append(f"output y{_brackets(whole)} = {used.text} + {mixed}")
    if draw(st.booleans()):
        extra = spec.value(size)
        lines.append(f"output v{_brackets(extra.axes)} = {extra.text}")
    return "\n".join(lines) + "\n"


def axis_specs(size: int = 3) -> SearchStrategy[str]:
    """Texts of specs without a fault; `size` is about the number of operations in one expression."""
    return _specs(size)
