"""Data of any size that float32 has squares of: deviations from 1e-18 to 1e18, with and without an epsilon.

What a spec itself computes must have the range: a reduction, or something that it keeps, which float64 finds
beyond the largest float32 or below the least normal one, is a limit of that spec on such data. There every
result is still held to its bound, where the analysis finds one. Everywhere else it has to find one.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

from normgen import bundled
from normgen.diagnostics import Source
from normgen.dsl.syntax import parse
from normgen.ir.nodes import Reduce, walk
from normgen.ir.program import Program, Result, Tensor
from normgen.ir.reference import evaluate
from normgen.verify.cases import Case
from normgen.verify.draw import Drawn, Sample, attr_choices, draw, scalar_values
from normgen.verify.estimate import LARGEST
from normgen.verify.expected import Expectation, Subject
from normgen.verify.kernels import run_case
from tests.codegen.test_offers import covering
from tests.every_way import in_every_way
from tests.kinds import of_all
from tests.verify.subjects import PLAIN, bundled_subject, case_of, numbers, subject_of

LEAST = 2.0**-126
SIZES = (1e-18, 1e-14, 1e-9, 1e9, 1e14, 1e18)
CUBED = """norm cubed "A high power of what is normalized."
attr eps >= 0 = 0
input x[..., D]
save rstd[...] = rsqrt(mean[D](x^2) + eps)
output y[..., D] = (x * rstd)^3
"""
SHARES = """norm shares "A high power of shares of the largest magnitude."
input x[..., D]
save top[...] = max[D](abs(x))
output y[..., D] = (x / top)^4
"""
WRITTEN = {"cubed": CUBED, "shares": SHARES}


@cache
def subject(name: str) -> Subject:
    """With its last choice of attrs: the most groups, true."""
    text = WRITTEN.get(name)
    source = bundled.read(name) if text is None else Source(f"{name}.norm", text)
    assert source is not None
    attrs = attr_choices(parse(source), {})[-1]
    return bundled_subject(name, tuple(attrs.items())) if text is None else subject_of(source, attrs)


def has_range(program: Program, case: Case, drawn: Drawn, scalars: dict[str, float]) -> bool:
    """Whether what the spec reduces, keeps and gives has the range of float32."""
    roots = [r.expr for r in program.results] + [u.expr for u in program.updates]
    wanted = [*(n for n in walk(*roots) if isinstance(n, Reduce)), *roots]
    order = tuple(dict.fromkeys(a for t in program.operands for a in t.order))
    dims = [tuple((a,) for a in order if a in node.axes) for node in wanted]
    tensors = [Tensor(f"%{k}", "output", axes, "f32", None, None, "", None) for k, axes in enumerate(dims)]
    results = tuple(Result(tensor, node, False) for tensor, node in zip(tensors, wanted, strict=True))
    probed = replace(program, results=results, updates=())
    values = evaluate(probed, drawn.arrays, case.extents, scalars, True, case.dtypes).values()
    sizes = np.concatenate([np.abs(value).reshape(-1) for value in values])
    return bool(np.all((sizes <= LARGEST) & ((sizes >= LEAST) | (sizes == 0))))


@pytest.mark.parametrize("zeros", [False, True], ids=["usual", "no epsilon"])
@pytest.mark.parametrize("name", of_all(bundled.names()))
def test_every_size_of_data(name: str, zeros: bool) -> None:
    """Of all inputs, and of each where there are several. `zeros`: attrs are zero that may be."""
    found = subject(name)
    program = found.definition.program
    scalars = scalar_values(program)
    if zeros:
        scalars |= {
            a.name: 0.0 for a in program.attrs if a.name in scalars and a.low == 0 and not a.low_strict
        }
    inputs = [t.name for t in program.operands if t.role == "input"]
    case = case_of(found, 3, 96)
    for size, scaled in product(SIZES, [inputs, *([t] for t in inputs if len(inputs) > 1)]):
        samples = {t: Sample("normal", 0.0, size) for t in scaled}
        drawn = draw(found.definition, case, scalars, samples)
        ranged = has_range(program, case, drawn, scalars)
        for outcome in run_case(found, Expectation(found, case, drawn, scalars), PLAIN):
            compared = outcome.comparison
            assert compared.worst <= 1.0, (size, scaled, outcome)
            assert not (ranged and compared.unbounded), (size, scaled, outcome)


@pytest.mark.parametrize("name", WRITTEN)
def test_high_powers_are_as_accurate_at_every_size(name: str) -> None:
    """To scale data by a power of two changes nothing but exponents, as long as nothing leaves range."""
    norm = subject(name).norm.on(PLAIN)
    x, dy = numbers(1, 3, 96), numbers(2, 3, 96)

    def results(exponent: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        scaled = np.ldexp(x, exponent).astype(np.float32)
        made = norm.forward(scaled)
        known = {**made._asdict(), "x": scaled, "dy": dy}
        back = norm.backward(**{name: known[name] for name in norm.backward_args})
        return made.y, np.ldexp(back.dx, exponent)

    usual = results(0)
    for exponent in (-60, -45, -30, 30, 45, 60):
        for got, wanted in zip(results(exponent), usual, strict=True):
            assert np.allclose(got, wanted, rtol=2.0**-22, atol=0.0), exponent


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("layernorm", (9, 200)),
        *(
            pytest.param(name, shape, marks=pytest.mark.thorough)
            for name, shape in {
                "batchnorm": (2, 96),
                "groupnorm": (3, 96),
                "batchnorm_channels_last": (33, 40),
                "layernorm2d": (2, 48),
                "weight_norm": (9, 200),
            }.items()
        ),
    ],
)
def test_large_and_small_data_in_every_form(name: str, shape: tuple[int, int]) -> None:
    """In turns over the forms and strategies that are offered."""
    found = subject(name)
    case = case_of(found, *shape)
    scalars = {**scalar_values(found.definition.program), "eps": 0.0}
    inputs = [t.name for t in found.definition.program.operands if t.role == "input"]
    expectations = []
    for size in (SIZES[-1], SIZES[0]):
        drawn = draw(found.definition, case, scalars, {t: Sample("normal", 0.0, size) for t in inputs})
        expectations.append(Expectation(found, case, drawn, scalars))
    for taken, ways in in_every_way(found, lambda offers: [each.knobs for each in covering(offers)]):
        for outcome in run_case(taken, expectations[ways.turn % 2], PLAIN):
            assert outcome.comparison.ok, (ways.turn, ways.choice, outcome)
