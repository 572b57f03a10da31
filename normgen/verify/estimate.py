"""Arithmetic on estimates: a float64 value together with what float32 evaluation may do to it.

Every rule passes on the errors of its arguments as the largest change over the interval that they span, so
it stays sound where a condition number is large, and adds its own roundings in units of 2^-24 of the
result, times `slack`. An infinite error says that nothing is known: the value leaves the range of float32,
or sits within its error of a pole. Where a value itself is infinite or NaN without that, a kernel must show
the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from normgen.ir.primitives import PRIMITIVES

FloatArray = NDArray[np.float64]
Function = Callable[[FloatArray], FloatArray]

UNIT = 2.0**-24
TINY = 2.0**-149
LARGEST = 3.4028234663852886e38
SUM_GROWTH = 4

# Roundings of one call, as those of the table of primitives: rsqrtf has 2 ulps.
_RSQRT = 4.0
_POW = PRIMITIVES["pow"].roundings


@dataclass(frozen=True, slots=True)
class Estimate:
    """A float64 value and the largest absolute error that a float32 evaluation of it may show.

    For a condition the value is 0 or 1, and an error above 0 says that it may turn out either way.
    """

    value: FloatArray
    error: FloatArray


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """The rules, at one `slack`. Arrays broadcast against each other."""

    slack: float = 1.0

    @property
    def unit(self) -> float:
        """One rounding of a number of size 1."""
        return UNIT * self.slack

    def constant(self, value: float) -> Estimate:
        """A number that is rounded to float32 unless it has it."""
        exact = float(np.float32(value)) == value
        return Estimate(np.array(value), np.array(0.0 if exact else self.unit * abs(value) + TINY))

    def add(self, terms: Sequence[tuple[Estimate, Fraction]]) -> Estimate:
        """The sum of coefficient * term, in an order that we do not know."""
        scaled = [self._scaled(term, coefficient) for term, coefficient in terms]
        value, carried, magnitude = scaled[0].value, scaled[0].error, _finite_size(scaled[0].value)
        for term in scaled[1:]:
            value, carried = value + term.value, carried + term.error
            magnitude = magnitude + _finite_size(term.value)
        carried = carried + self.unit * max(0, len(scaled) - 2) * magnitude
        return self.finish(value, carried, 1.0, scaled)

    def _scaled(self, term: Estimate, coefficient: Fraction) -> Estimate:
        factor = float(coefficient)
        return self.finish(term.value * factor, term.error * abs(factor), scale_units(coefficient), [term])

    def multiply(self, coefficient: Fraction, powers: Sequence[Estimate]) -> Estimate:
        """The product, in an order that we do not know."""
        value: FloatArray = np.array(float(coefficient))
        exact, reach, floor = np.abs(value), np.abs(value), np.array(1.0)
        for power in powers:
            magnitude = np.abs(power.value)
            value, exact = value * power.value, exact * magnitude
            reach = reach * (magnitude + power.error)
            floor = floor * np.maximum(magnitude, 1.0)
        units = len(powers) - 1 + scale_units(coefficient)
        underflow = TINY * self.slack * units * floor  # a partial product may underflow, then be scaled up
        return self.finish(value, reach - exact + underflow, units, powers)

    def power(self, base: Estimate, exponent: Fraction, nonnegative: bool) -> Estimate:
        """base^exponent; `nonnegative` says that a kernel's base is never below zero either."""
        if exponent == 1:
            return base
        p, units = float(exponent), power_units(exponent)
        if exponent.denominator not in (1, 2):  # powf of a rounded exponent
            drift = abs(float(np.float32(p)) - p) / UNIT * np.abs(np.log(np.abs(base.value)))
            units += float(np.max(np.where(np.isfinite(drift), drift, 0.0), initial=0.0))
        low, high = base.value - base.error, base.value + base.error
        if nonnegative:
            low = np.maximum(low, 0.0)
        value = np.power(base.value, p)
        near = np.minimum(np.abs(low), np.abs(high))
        far = np.abs(base.value) + base.error
        change = np.maximum(
            np.abs(np.power(far, p) - np.abs(value)), np.abs(np.power(near, p) - np.abs(value))
        )
        if exponent.denominator != 1:  # NaN below zero
            change = np.where((low < 0) & (high >= 0), np.inf, change)
        if exponent < 0:  # a pole
            change = np.where((low <= 0) & (high >= 0), np.inf, change)
        return self.finish(value, np.where(base.error == 0.0, 0.0, change), units, [base])

    def increasing(
        self, function: Callable[..., FloatArray], args: Sequence[Estimate], units: float
    ) -> Estimate:
        """A function that never decreases in any of its arguments."""
        value = function(*(a.value for a in args))
        above = change_of(value, function(*(a.value + a.error for a in args)))
        below = change_of(value, function(*(a.value - a.error for a in args)))
        return self.finish(value, np.maximum(above, below), units, args)

    def steady(self, function: Function, arg: Estimate, steepest: float, units: float) -> Estimate:
        """A function that changes by no more than `steepest` of what its argument changes by."""
        return self.finish(function(arg.value), steepest * arg.error, units, [arg])

    def minus(self, v: Estimate, m: Estimate) -> Estimate:
        """v - m of a centred program.

        Any number may stand for m there, since the mean of the differences is subtracted again. So take one
        as far off as a kernel's may be, and from there on it is exact.
        """
        moved = m.value + np.where(np.isfinite(m.error), m.error, 0.0) / self.slack
        return self.finish(v.value - moved, v.error, 1.0, [v, m])

    def general_power(self, base: Estimate, exponent: Estimate) -> Estimate:
        """base^exponent where the exponent is a run-time value."""
        value = np.power(base.value, exponent.value)
        change: FloatArray = np.zeros_like(value)
        for b in (base.value - base.error, base.value + base.error):
            for e in (exponent.value - exponent.error, exponent.value + exponent.error):
                change = np.fmax(change, np.abs(np.power(b, e) - value))
        change = np.where((base.value - base.error <= 0) & (base.error > 0), np.inf, change)
        return self.finish(value, change, _POW, [base, exponent])

    def compare(self, op: str, a: Estimate, b: Estimate, extreme: bool) -> Estimate:
        """A comparison, uncertain within the errors; `extreme` says that one side is the maximum of the
        other's."""
        value = PRIMITIVES[op].meaning(a.value, b.value)
        margin = a.error + b.error
        uncertain = (margin > 0) & (np.abs(a.value - b.value) <= margin)
        if extreme and op in ("eq", "ne"):  # the largest of these very numbers is one of them
            uncertain = uncertain & (a.value != b.value)
        return Estimate(value, uncertain.astype(np.float64))

    def select(self, condition: Estimate, then: Estimate, otherwise: Estimate) -> Estimate:
        """The branch taken; both, where the condition may turn out either way."""
        taken = condition.value != 0.0
        either = np.maximum(then.error, otherwise.error) + np.abs(then.value - otherwise.value)
        error = np.where(
            condition.error > 0, _nan_to_infinity(either), np.where(taken, then.error, otherwise.error)
        )
        return Estimate(np.where(taken, then.value, otherwise.value), error)

    def summed(self, arg: Estimate, length: int, add_up: Function) -> Estimate:
        """`add_up` of the argument, a sum of `length` terms each: see `SUM_GROWTH`."""
        carried = add_up(arg.error)
        roundings = min(max(length - 1, 0), SUM_GROWTH)
        if roundings:
            carried = carried + self.unit * roundings * add_up(_finite_size(arg.value) + arg.error)
        return self.finish(add_up(arg.value), carried, 0.0, [])

    def finish(
        self, value: FloatArray, carried: FloatArray, units: float, args: Sequence[Estimate]
    ) -> Estimate:
        """Add an operation's own roundings; decide what is known where a value is not finite."""
        error = (
            carried + self.unit * units * (np.abs(value) + carried) + (TINY * self.slack if units else 0.0)
        )
        lost = np.isposinf(carried)
        for arg in args:
            lost = lost | np.isposinf(arg.error)
        error = np.where(np.isfinite(value), _nan_to_infinity(error), np.where(lost, np.inf, 0.0))
        beyond = np.isfinite(value) & (np.abs(value) + error > LARGEST)
        return Estimate(value, np.where(beyond, np.inf, error))


def scale_units(coefficient: Fraction) -> float:
    """Roundings of multiplying by a constant: none for a power of two, one more where float32 lacks the
    constant."""
    top, bottom = abs(coefficient.numerator), coefficient.denominator
    if top & (top - 1) == 0 and bottom & (bottom - 1) == 0:
        return 0.0
    return 1.0 if Fraction(float(np.float32(float(coefficient)))) == coefficient else 2.0


def power_units(exponent: Fraction) -> float:
    """Roundings of b^p: multiplications for an integer, and a division below 0; sqrt or rsqrt for halves;
    powf."""
    whole = abs(exponent.numerator) // exponent.denominator
    match exponent.denominator:
        case 1:
            return float(whole - 1 if exponent > 0 else whole)
        case 2:
            return (1.0 if exponent > 0 else _RSQRT) * (1 + 2 * whole) + whole
        case _:
            return _POW


def _finite_size(value: FloatArray) -> FloatArray:
    return np.where(np.isfinite(value), np.abs(value), 0.0)


def change_of(before: FloatArray, after: FloatArray) -> FloatArray:
    """How far a value moves: not at all where it stays infinite or NaN, infinitely where it becomes so."""
    same = (before == after) | (np.isnan(before) & np.isnan(after))
    return np.where(same, 0.0, _nan_to_infinity(np.abs(after - before)))


def _nan_to_infinity(value: FloatArray) -> FloatArray:
    return np.where(np.isnan(value), np.inf, value)
