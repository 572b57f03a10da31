"""What numbers do to kernels at the edges: large means, constants, NaN, infinities, overflow, nothing at
all."""

from __future__ import annotations

import numpy as np
import pytest

from normgen.verify.cases import DTYPE_SETS, DtypeSet
from normgen.verify.draw import Drawn, Sample, draw, scalar_values
from normgen.verify.expected import Expectation
from normgen.verify.kernels import run_case
from tests.verify.subjects import CHECKED, PLAIN, bundled_subject, case_of, numbers, prove, same_bits

nan, inf = float("nan"), float("inf")
ROWWISE = ("rmsnorm", "layernorm", "softmax", "l2norm", "log_softmax", "add_rmsnorm", "gated_rmsnorm")


@pytest.mark.parametrize("name", ["layernorm", "adaln_modulate"])
@pytest.mark.parametrize("width", [100, 5000])
@pytest.mark.parametrize(("mean", "deviation"), [(1e6, 1.0), (1e4, 0.01), (-1e6, 1.0)])
def test_a_large_mean_costs_no_accuracy(name: str, width: int, mean: float, deviation: float) -> None:
    subject = bundled_subject(name)
    prove(subject, case_of(subject, 3, width), PLAIN, {"x": Sample("normal", mean, deviation)})


@pytest.mark.parametrize("width", [33, 65537])
def test_large_alternating_numbers(width: int) -> None:
    subject = bundled_subject("layernorm")
    case, scalars = case_of(subject, 3, width), scalar_values(subject.definition.program)
    drawn = draw(subject.definition, case, scalars)
    drawn.arrays["x"][:] = 1e4 * (-1.0) ** np.arange(width) + np.round(drawn.arrays["x"], 2)
    drawn.arrays["x"][:] = drawn.arrays["x"].astype(np.float32)
    prove(subject, case, PLAIN, drawn=drawn)


@pytest.mark.parametrize("value", [7.0, -0.1, 1e-40, 1e-5, 3e4, 1e12, 1e19])
@pytest.mark.parametrize("width", [1, 7, 128, 1000, 4097])
def test_a_constant_row_is_the_bias_exactly(value: float, width: int) -> None:
    norm = bundled_subject("layernorm").norm.on(PLAIN)
    x = np.full((2, width), value, np.float32)
    w, b = numbers(1, width), numbers(2, width)
    made = norm.forward(x, w, b)
    assert np.array_equal(made.y, np.broadcast_to(b, x.shape))
    back = norm.backward(dy=numbers(3, 2, width), x=x, w=w, mu=made.mu, rstd=made.rstd)
    assert all(np.all(np.isfinite(gradient)) for gradient in back)
    assert not np.any(back.dw), "xhat is zero"


@pytest.mark.parametrize("name", ROWWISE)
def test_rows_of_zeros_are_finite(name: str) -> None:
    subject = bundled_subject(name)
    case, scalars = case_of(subject, 3, 40), scalar_values(subject.definition.program)
    drawn = draw(subject.definition, case, scalars)
    drawn.arrays["x"][1] = 0.0
    for array in (drawn.arrays.get("residual"), drawn.arrays.get("z")):
        if array is not None:
            array[1] = 0.0
    norm = subject.norm.on(CHECKED)
    operands = {t.name: drawn.arrays[t.name].astype(np.float32) for t in subject.definition.program.operands}
    made = norm.forward(**operands)._asdict()
    assert all(np.all(np.isfinite(result)) for result in made.values())
    read = {k: v for k, v in {**operands, **made}.items() if k in norm.backward_args}
    cotangents = {k: numbers(4, 3, 40) for k in norm.backward_args if k.startswith("d")}
    for gradient in norm.backward(**cotangents, **read):
        assert np.all(np.isfinite(gradient))


@pytest.mark.parametrize("name", ROWWISE)
@pytest.mark.parametrize("bad", [nan, inf, -inf])
@pytest.mark.parametrize("width", [40, 1000])
def test_a_bad_number_stays_in_its_row(name: str, bad: float, width: int) -> None:
    """Other rows keep their very bits, forward and backward; the bad row is what the mathematics says."""
    subject = bundled_subject(name)
    norm = subject.norm.on(PLAIN)
    case, scalars = case_of(subject, 5, width, rest=(5,)), scalar_values(subject.definition.program)
    drawn = draw(subject.definition, case, scalars)
    results = []
    for value in (None, bad):
        if value is not None:
            drawn.arrays["x"][2, width // 3] = value
        operands = {
            t.name: drawn.arrays[t.name].astype(np.float32) for t in subject.definition.program.operands
        }
        made = norm.forward(**operands)._asdict()
        read = {k: v for k, v in {**operands, **made}.items() if k in norm.backward_args}
        cotangents = {k: numbers(9, 5, width) for k in norm.backward_args if k not in read}
        rows = {k: v for k, v in norm.backward(**cotangents, **read)._asdict().items() if v.ndim == 2}
        results.append({**made, **rows})
    good = np.arange(5) != 2
    for key, clean in results[0].items():
        assert same_bits(clean[good], results[1][key][good]), key
    prove(subject, case, PLAIN, drawn=Drawn(drawn.arrays, (), False), directions=("forward",))
    if np.isnan(bad):
        assert all(np.any(np.isnan(results[1][t][2])) for t in ("y", "dx"))


@pytest.mark.parametrize("name", ["rmsnorm", "layernorm", "softmax", "l2norm", "gated_rmsnorm"])
@pytest.mark.parametrize("dtypes", [DTYPE_SETS[1], DTYPE_SETS[3]], ids=["bf16", "f16"])
def test_sixteen_bit_results_are_correctly_rounded_nearly_everywhere(name: str, dtypes: DtypeSet) -> None:
    subject = bundled_subject(name)
    case, scalars = case_of(subject, 33, 1000, dtypes), scalar_values(subject.definition.program)
    drawn = draw(subject.definition, case, scalars)
    for outcome in run_case(subject, Expectation(subject, case, drawn, scalars), PLAIN):
        if outcome.result in ("y", "dx"):
            assert outcome.comparison.equal >= 0.99, outcome


def test_a_bad_gain_stays_in_its_column() -> None:
    norm = bundled_subject("layernorm").norm.on(PLAIN)
    x, w, b = numbers(1, 6, 100), numbers(2, 100), numbers(3, 100)
    clean = norm.forward(x, w, b).y
    w[7], b[9] = nan, inf
    y = norm.forward(x, w, b).y
    good = ~np.isin(np.arange(100), (7, 9))
    assert same_bits(np.ascontiguousarray(clean[:, good]), np.ascontiguousarray(y[:, good]))
    assert np.all(np.isnan(y[:, 7])) and np.all(y[:, 9] == inf)


@pytest.mark.parametrize("name", ["rmsnorm", "layernorm"])
def test_squares_beyond_float32_are_a_documented_limit(name: str) -> None:
    """Above about 1e19 the mean square is infinite, so rstd is 0. Nothing becomes NaN, and other rows do
    not care."""
    norm = bundled_subject(name).norm.on(CHECKED)
    x = numbers(1, 3, 64)
    clean = norm.forward(x)
    x[1] *= np.float32(1e25)
    made = norm.forward(x)
    assert made.rstd[1] == 0.0 and not np.any(made.y[1])
    assert same_bits(made.y[[0, 2]], clean.y[[0, 2]])


def test_f16_sums_do_not_overflow() -> None:
    norm = bundled_subject("rmsnorm").norm.on(CHECKED)
    x = np.full((2, 4097), 65504.0, np.float16)
    made = norm.forward(x)
    assert np.all(made.y == 1.0) and np.allclose(made.rstd, 1 / 65504.0, rtol=1e-6)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_large_logits(name: str) -> None:
    subject = bundled_subject(name)
    for deviation in (1e2, 1e4, 1e30):
        prove(subject, case_of(subject, 5, 100), PLAIN, {"x": Sample("normal", 0.0, deviation)})
