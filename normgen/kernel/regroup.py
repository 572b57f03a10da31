"""Which sums a kernel may take apart: the terms of all others are added as the spec has them.

    (x - m) + b     is not  x + (b - m):   x and m may be large and alike, and b small
    sum[D](x - m)   is not  sum[D](x) - N m

Two kinds of sums may. Those of gradients were never written: reverse mode made them, in an order of its own.
And beside `minus(v, m)` stands nothing but what the mean m misses, which is small (see `ir.centre`).
"""

from __future__ import annotations

from collections.abc import Collection

from normgen.ir.nodes import Add, Call, Expr


def may_regroup(total: Add, gradients: Collection[Expr]) -> bool:
    """Whether the terms of a sum may be gathered with what is around it. `gradients`: the values that are
    made of cotangents."""
    return total in gradients or any(isinstance(t, Call) and t.op == "minus" for t, _ in total.terms)
