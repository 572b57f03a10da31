"""Sizes that remember how they are computed: planning with them tells launches as formulas.

What planning asks of them, such as which of two is larger, is answered for one call, and written down as a
condition: for all calls that meet the conditions the formulas are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import total_ordering
from typing import Any, cast

import numpy as np

from normgen.launching.formula import Formula

SHORTEST = 2  # what planning may take for granted of axes: of a single element nothing is ever stepped along


@dataclass
class Trace:
    """One call, and what was asked of its sizes."""

    sizes: Mapping[str, int]
    conditions: dict[Formula, None] = field(default_factory=dict)  # of each that it is at least 0

    def axis(self, name: str) -> Size:
        """The length of an axis."""
        return Size(self, Formula.axis(name))

    def at_least_zero(self, formula: Formula) -> bool:
        """Whether a formula is, which is written down where it depends on the call."""
        if formula.number is not None:
            return formula.number >= 0
        least = formula.value(dict.fromkeys(formula.axes, SHORTEST))
        if formula.grows and least >= 0:
            return True
        if (-formula).grows and least < 0:
            return False
        found = formula.value(self.sizes) >= 0
        self.conditions[formula if found else -formula - Formula.of(1)] = None
        return found

    def is_zero(self, formula: Formula) -> bool:
        """Whether a formula is zero."""
        if formula.number is not None:
            return formula.number == 0
        return self.at_least_zero(formula) and self.at_least_zero(-formula)


@total_ordering
class Size:
    """A whole number of a call, as a formula of the lengths of its axes.

    Whoever needs the number itself gets it, and the formula is then taken to be that number.
    """

    __slots__ = ("formula", "trace")

    def __init__(self, trace: Trace, formula: Formula) -> None:
        self.trace, self.formula = trace, formula

    def __index__(self) -> int:
        found = self.formula.value(self.trace.sizes)
        assert self.trace.is_zero(self.formula - Formula.of(found))
        return found

    __int__ = __trunc__ = __index__

    def __float__(self) -> float:
        return float(self.__index__())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.asarray(self.__index__(), dtype)

    def __hash__(self) -> int:
        return hash(self.__index__())

    def __repr__(self) -> str:
        return str(self.__index__())

    def __format__(self, how: str) -> str:
        return format(self.__index__(), how)

    def bit_length(self) -> int:
        """The number of its bits, which is the same for whatever has so many."""
        bits = self.formula.value(self.trace.sizes).bit_length()
        assert (1 << bits >> 1) <= self < 1 << bits
        return bits

    def _made(self, formula: Formula) -> Any:
        return Size(self.trace, formula) if formula.number is None else formula.number

    def __add__(self, other: Any) -> Any:
        return self._made(self.formula + formula_of(other)) if _whole(other) else float(self) + other

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self._made(self.formula - formula_of(other)) if _whole(other) else float(self) - other

    def __rsub__(self, other: Any) -> Any:
        return -(self - other)

    def __mul__(self, other: Any) -> Any:
        return self._made(self.formula * formula_of(other)) if _whole(other) else float(self) * other

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> float:
        return float(self) / float(other)

    def __rtruediv__(self, other: Any) -> float:
        return float(other) / float(self)

    def __neg__(self) -> Any:
        return self._made(-self.formula)

    def __abs__(self) -> Any:
        return self._made(self.formula if self >= 0 else -self.formula)

    def __floordiv__(self, other: Any) -> Any:
        divisor = formula_of(other)
        whole = self.formula.exactly_over(divisor)
        if whole is not None:
            return self._made(whole)
        by = divisor.number if divisor.number is not None else other.__index__()
        assert by > 0, "sizes are not divided by less"
        if self.trace.at_least_zero(self.formula):
            return self._made(self.formula.over(by))
        # rounded down, as Python does: so what it is less than 0 is rounded up
        return self._made(-(Formula.of(by - 1) - self.formula).over(by))

    def __rfloordiv__(self, other: Any) -> Any:
        return other // self.__index__()

    def __mod__(self, other: Any) -> Any:
        return self - (self // other) * other

    def __rmod__(self, other: Any) -> Any:
        return other % self.__index__()

    def __eq__(self, other: Any) -> bool:
        return _whole(other) and self.trace.is_zero(self.formula - formula_of(other))

    def __lt__(self, other: Any) -> bool:
        if not _whole(other):
            return bool(float(self) < other)
        return not self.trace.at_least_zero(self.formula - formula_of(other))

    def __le__(self, other: Any) -> bool:
        """Without the question whether they are equal, which would be a case of one length alone."""
        return self < other + 1 if _whole(other) else bool(float(self) <= other)

    def __gt__(self, other: Any) -> bool:
        return not self <= other

    def __bool__(self) -> bool:
        return not self.trace.is_zero(self.formula)


def _whole(value: object) -> bool:
    return isinstance(value, (int, Size))


def formula_of(value: object) -> Formula:
    """The formula of a number, or of what planning made in place of one."""
    if isinstance(value, Formula):
        return value
    return value.formula if isinstance(value, Size) else Formula.of(cast("int", value))
