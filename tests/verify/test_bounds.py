"""The error analysis is sound (float32 evaluation stays within it) and says something (small faults do
not)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from normgen.ir.expr import add, call, compare, const, load, mul, neg, power, reduce, round_to, select, sub
from normgen.ir.program import Program
from normgen.ir.reference import evaluate
from normgen.verify.bounds import BACKWARD_SLACK, FORWARD_SLACK, Setting, analyse
from normgen.verify.compare import Comparison
from normgen.verify.compare import compare as judge
from tests.verify import programs as p

SCALARS = {"eps": 1e-5}
DISTRIBUTIONS = [(0.0, 1.0), (100.0, 1.0), (1e4, 1.0), (1e6, 1.0), (1e4, 0.01), (0.0, 1e-6), (0.0, 1e6)]
SHAPES = [(1, 1), (3, 2), (3, 7), (33, 100), (4, 1000), (2, 16385)]


def single(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32).astype(np.float64)


@dataclass(frozen=True)
class Trial:
    """A program on numbers, with the truth: statistics are exact there and stored in float32 for the
    kernel."""

    program: Program
    setting: Setting
    truth: dict[str, np.ndarray]
    errors: dict[str, np.ndarray]
    slack: float

    def judge(self, got: dict[str, np.ndarray]) -> dict[str, Comparison]:
        bounds = analyse(self.program, self.setting, self.errors, self.slack)
        return {
            name: judge(np.asarray(value, np.float32), "f32", self.truth[name], bounds[name].error)
            for name, value in got.items()
        }

    def emulated(self) -> dict[str, np.ndarray]:
        setting = self.setting
        return evaluate(self.program, setting.arrays, setting.extents, setting.scalars, dtype=np.float32)


def trial(program: Program, rows: int, width: int, mean: float = 0.0, deviation: float = 1.0) -> Trial:
    generator = np.random.default_rng([rows, width])
    x = single(mean + deviation * generator.standard_normal((rows, width)))
    exact = {
        "x": x,
        "w": single(generator.uniform(0.8, 1.2, width)),
        "b": single(generator.uniform(-0.2, 0.2, width)),
        "dy": single(generator.standard_normal((rows, width))),
        "mu": x.mean(1),
    }
    exact["rstd"] = 1 / np.sqrt(((x - exact["mu"][:, None]) ** 2).mean(1) + SCALARS["eps"])
    stored = exact | {"mu": single(exact["mu"]), "rstd": single(exact["rstd"])}
    extents = {"B": rows, "D": width}
    backward = program is p.LAYERNORM_BACKWARD
    return Trial(
        program,
        Setting(stored, extents, SCALARS),
        evaluate(program, exact, extents, SCALARS),
        {name: np.abs(stored[name] - exact[name]) for name in ("mu", "rstd")},
        BACKWARD_SLACK if backward else FORWARD_SLACK,
    )


PROGRAMS = {
    "rmsnorm": p.RMSNORM,
    "layernorm": p.LAYERNORM,
    "softmax": p.SOFTMAX,
    "sums over neighbours": p.BLURRED,
    "layernorm backward": p.LAYERNORM_BACKWARD,
    "everything": p.EVERYTHING,
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize(("rows", "width"), SHAPES)
def test_float32_evaluation_stays_within(name: str, rows: int, width: int) -> None:
    for mean, deviation in DISTRIBUTIONS:
        attempt = trial(PROGRAMS[name], rows, width, mean, deviation)
        for result, found in attempt.judge(attempt.emulated()).items():
            assert found.worst <= 0.5, (result, mean, deviation, found)
            assert found.unbounded == 0, (result, mean, deviation, found)


@pytest.mark.parametrize("name", ["rmsnorm", "layernorm", "softmax", "layernorm backward"])
@pytest.mark.parametrize(("mean", "deviation"), DISTRIBUTIONS)
def test_values_are_those_of_the_interpreter(name: str, mean: float, deviation: float) -> None:
    """Moving the mean of a centred program by its error changes nothing but magnitudes."""
    attempt = trial(PROGRAMS[name], 5, 33, mean, deviation)
    found = analyse(attempt.program, attempt.setting)
    want = evaluate(attempt.program, attempt.setting.arrays, attempt.setting.extents, SCALARS)
    for result, estimate in found.items():
        scale = np.abs(want[result]).max()
        assert np.allclose(estimate.value, want[result], rtol=0, atol=1e-9 * scale)


@pytest.mark.parametrize("name", ["rmsnorm", "layernorm", "softmax", "layernorm backward"])
@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 1.0), (1e6, 1.0)])
@pytest.mark.parametrize("planted", [1e-5, -1e-5])
def test_a_relative_error_of_a_hundred_thousandth_is_seen(
    name: str, mean: float, deviation: float, planted: float
) -> None:
    attempt = trial(PROGRAMS[name], 33, 100, mean, deviation)
    got = {result: value * (1 + planted) for result, value in attempt.emulated().items()}
    for result, found in attempt.judge(got).items():
        if not (
            result == "db" or (result == "mu" and mean == 0.0)
        ):  # sums of noise: their bound is of the terms
            assert found.worst > 1.0, (result, found)


def faults() -> dict[str, tuple[Program, Program, float]]:
    """(what is meant, what is computed, mean of the rows)"""
    rms_without_eps = mul(p.x, p.rsqrt(p.mean(power(p.x, 2))), p.w)
    dx_without_projection = mul(p.saved_rstd, add(p.g, neg(p.mean(p.g))))
    return {
        "eps forgotten": (p.RMSNORM, p.program([p.X, p.W], y=("BD", rms_without_eps)), 0.0),
        "gain forgotten": (p.RMSNORM, p.program([p.X, p.W], y=("BD", mul(p.x, p.rms))), 0.0),
        "mean not corrected": (p.LAYERNORM, p.UNCORRECTED, 1e5),
        "moments": (p.LAYERNORM, p.MOMENTS, 100.0),
        "no maximum": (p.SOFTMAX, p.program([p.X], y=("BD", call("exp", p.x))), 0.0),
        "projection forgotten": (
            p.LAYERNORM_BACKWARD,
            p.program([p.DY, p.X, p.W, p.MU, p.RSTD], dx=("BD", dx_without_projection)),
            0.0,
        ),
        "stored mean not corrected": (
            p.LAYERNORM_BACKWARD,
            p.program(
                [p.DY, p.X, p.W, p.MU, p.RSTD],
                dw=("D", reduce("sum", "B", mul(p.dy, sub(p.x, p.mu), p.saved_rstd))),
            ),
            1e5,
        ),
    }


@pytest.mark.parametrize("fault", faults())
def test_wrong_formulas_are_seen(fault: str) -> None:
    meant, computed, mean = faults()[fault]
    attempt = trial(meant, 33, 100, mean)
    wrong = replace(attempt, program=computed).emulated()
    assert all(found.worst > 1.0 for found in attempt.judge(wrong).values())


def one(expr: object, **arrays: float) -> tuple[float, float]:
    """Value and error of an expression at single numbers x (input) and w."""
    program = p.program([p.X, p.W], y=("BD", expr))  # type: ignore[arg-type]
    values = {"x": np.full((1, 1), arrays.get("x", 0.0)), "w": np.full(1, arrays.get("w", 1.0))}
    setting = Setting(values, {"B": 1, "D": 1}, {"eps": 0.1}, {"x": "bf16"})
    found = analyse(program, setting)["y"]
    return float(found.value[0, 0]), float(found.error[0, 0])


inf = float("inf")
x, w = p.x, p.w


@pytest.mark.parametrize(
    ("expr", "at", "error"),
    [
        (x, {"x": 3.0}, 0.0),
        (mul(4, x), {"x": 3.0}, 0.0),
        (call("max", x, w), {"x": 3.0}, 0.0),
        (call("stop", x), {"x": 3.0}, 0.0),
        (select(compare("<", x, w), x, w), {"x": 1.0, "w": 1.0}, 0.0),
        (power(add(x, w), -1), {"x": 1.0, "w": -1.0 - 2**-20}, 2.0**-24 * 2**20 * 3),
        (power(sub(power(x, 2), w), -1), {"x": 1.0, "w": 1.0}, inf),  # a pole within the error
        (call("log", sub(power(x, 2), w)), {"x": 1.0, "w": 1.0}, inf),
        (power(x, 2), {"x": 1e20}, inf),  # beyond the range of float32
        (power(x, 2), {"x": inf}, 0.0),  # infinite itself: a kernel must say so
        (mul(0, x), {"x": inf}, 0.0),
        (power(x, -1), {"x": 0.0}, 0.0),
        (round_to(x, "bf16"), {"x": 1.0 + 2**-9}, 0.0),
        (round_to(mul(x, w), "bf16"), {"x": 1.0 + 2**-8, "w": 1.0 + 2**-26}, 2.0**-7),  # either side of a tie
        (round_to(mul(x, w), "like x"), {"x": 1.0 + 2**-8, "w": 1.0 + 2**-26}, 2.0**-7),
        (round_to(mul(x, w), "bf16"), {"x": 1.0 + 2**-9, "w": 1.0 + 2**-20}, 0.0),
        (
            select(compare("<", power(x, 2), w), const(5), const(2)),
            {"x": 1.0, "w": 1.0},
            3.0,
        ),  # may go either way
        (select(compare("<", power(x, 2), w), const(5), const(2)), {"x": 1.0, "w": 2.0}, 0.0),
        # the largest of computed numbers is one of them
        (
            select(compare("==", mul(x, w), reduce("max", "D", mul(x, w))), const(1), const(0)),
            {"x": 3.0},
            0.0,
        ),
        (load("x", "BD"), {"x": float("nan")}, 0.0),
    ],
)
def test_single_rules(expr: object, at: dict[str, float], error: float) -> None:
    found = one(expr, **at)[1]
    assert found == error if error in (0.0, inf) else found == pytest.approx(error, rel=0.5)
