"""High powers in products.

Data of deviation 1e-15 has an rstd of 1e15. The cube of that is beyond float32, but S * rstd^3 is not: S is
as small as the data. So a high power is taken factor by factor, in turn with others.
"""

from __future__ import annotations

from fractions import Fraction

from normgen.ir.expr import Expr, Extent, power

HIGH = 3
_MOST = 8  # higher powers stay whole: they take fewer multiplications than factors


def repeated(base: Expr, exponent: Fraction) -> tuple[Expr, int]:
    """A power as a value, and how many times that is a factor: v^(-3/2) is v^(-1/2) three times."""
    magnitude = abs(exponent)
    if isinstance(base, Extent) or magnitude.denominator > 2 or magnitude.numerator > _MOST:
        return power(base, exponent), 1
    return power(base, exponent / magnitude.numerator), magnitude.numerator
