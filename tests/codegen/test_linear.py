"""Values taken apart into what is summed of each element and what those sums are multiplied by."""

from __future__ import annotations

import pytest

from normgen.ir.expr import ONE, Expr, add, call, load, mul, power, reduce
from normgen.ir.nodes import made_of
from normgen.kernel.linear import split, terms_of
from tests.codegen.holding import case, subject
from tests.codegen.norms import source_of
from tests.verify.subjects import CHECKED, prove

ROW = frozenset("CD")
DY, X, W, MU, RSTD = (
    load(name, frozenset(axes))
    for name, axes in {"dy": "CD", "x": "CD", "w": "C", "mu": "", "rstd": ""}.items()
)
CENTRED = call("minus", X, MU)
SUM = reduce("sum", ROW, mul(W, DY))
TOP = reduce("max", ROW, X)
SUMS = frozenset([SUM, TOP])


@pytest.mark.parametrize(
    ("value", "terms"),
    [
        (mul(RSTD, DY, CENTRED), {mul(DY, CENTRED): RSTD}),
        (mul(RSTD, DY, add(CENTRED, SUM)), {mul(DY, CENTRED): RSTD, DY: mul(RSTD, SUM)}),
        (add(mul(DY, CENTRED), mul(-2, SUM, DY)), {mul(DY, CENTRED): ONE, DY: mul(-2, SUM)}),
        (add(mul(SUM, DY), mul(3, RSTD, DY)), {DY: add(SUM, mul(3, RSTD))}),
    ],
)
def test_what_is_linear_is_taken_apart(value: Expr, terms: dict[Expr, Expr]) -> None:
    assert {v: c for c, v in terms_of(value, ROW, SUMS, made_of({"dy"}, value))} == terms


@pytest.mark.parametrize(
    "value",
    [
        mul(DY, add(X, SUM)),  # what x and the sum differ by may be exact
        mul(DY, power(add(CENTRED, SUM), 2)),
        mul(add(CENTRED, SUM), add(mul(2, CENTRED), SUM)),
        call("abs", add(CENTRED, SUM)),
        add(CENTRED, SUM),  # how many elements there are is no sum of theirs
        mul(W, add(call("tanh", X), TOP)),  # what is no gradient is added as it was written
    ],
)
def test_what_is_not_stays(value: Expr) -> None:
    assert terms_of(value, ROW, SUMS, made_of({"dy"}, value)) == ()


def test_a_factor_that_a_part_shares_goes_before_its_sum() -> None:
    assert split(mul(3, W, RSTD, DY), frozenset("D")) == (mul(3, W, RSTD), DY)
    assert split(W, frozenset("D")) == (W, ONE)
    assert split(CENTRED, frozenset("D")) == (ONE, CENTRED)


@pytest.mark.parametrize("name", ["instancenorm", "scalenorm"])
def test_what_a_row_sums_anyway_costs_its_elements_nothing(name: str) -> None:
    """The gradients of what rows share are added up once a row: no element adds to them."""
    (kernel,) = subject(name).norm.package.backward.strategies[0].kernels
    assert kernel.columns
    for form in kernel.forms:
        if form.form in ("pipeline", "registers", "multipass", "cooperative"):
            added = [line for line in source_of(form).splitlines() if "_sum[0] +=" in line]
            assert added and all("lane == 0" in line for line in added), form.form


@pytest.mark.parametrize(
    ("name", "strategy", "lengths"),
    [
        ("drift", "split", {"B": 3, "C": 4, "rest": 64}),
        ("drift", "whole", {"B": 3, "C": 4, "rest": 64}),
        # a sum that is kept is not merged with the mean that it gives
        ("total", "fused", {"B": 3, "D": 256}),
    ],
)
def test_parts_beside_moments_have_a_pass_of_their_own(name, strategy, lengths) -> None:
    """Moments are merged in one exchange, whose pass adds up nothing else."""
    found = subject(name, strategy=strategy)
    prove(found, case(found, "f32", **lengths), CHECKED, directions=("forward",))
