"""States have kernels that update them whatever statistics there are besides."""

from __future__ import annotations

import pytest

from normgen.diagnostics import Source
from normgen.verify.cases import DTYPE_SETS, make_case
from normgen.verify.turns import in_turn
from tests.every_way import first, in_every_way
from tests.verify.subjects import F32, prove, subject_of

IMAGES = """norm images
attr eps = 1e-5
attr momentum = 0.1
axis G = 2
input x[B, (G C), ...]
param w[(G C)] = 1
param b[(G C)] = 0
"""
EVONORM_B0 = """param v[(G C)] = 1
state running_var[(G C)] = 1
save batch[(G C)] = var[B, ...](x)
save instance[B, (G C)] = var[...](x)
output y[B, (G C), ...] = x / max(sqrt(batch + eps), v * x + sqrt(instance + eps)) * w + b
update running_var = lerp(running_var, batch, momentum)
"""
BATCH_INSTANCE = """param rho[(G C)] = 1
state running_mean[(G C)] = 0
state running_var[(G C)] = 1
save bmu[(G C)] = mean[B, ...](x)
save brstd[(G C)] = rsqrt(var[B, ...](x) + eps)
save imu[B, (G C)] = mean[...](x)
save irstd[B, (G C)] = rsqrt(var[...](x) + eps)
output y[B, (G C), ...] = (rho * (x - bmu) * brstd + (1 - rho) * (x - imu) * irstd) * w + b
update running_mean = lerp(running_mean, bmu, momentum)
update running_var = lerp(running_var, var[B, ...](x), momentum)
"""
BATCH_CHANNEL = """param w2[(G C)] = 1
state running_mean[(G C)] = 0
state running_var[(G C)] = 1
save mu[(G C)] = lerp(running_mean, mean[B, ...](x), momentum)
save rstd[(G C)] = rsqrt(lerp(running_var, var[B, ...](x), momentum) + eps)
let u = (x - mu) * rstd * w + b
save gmu[B, G] = mean[C, ...](u)
save grstd[B, G] = rsqrt(var[C, ...](u) + eps)
output y[B, (G C), ...] = (u - gmu) * grstd * w2
update running_mean = lerp(running_mean, mean[B, ...](x), momentum)
update running_var = lerp(running_var, var[B, ...](x), momentum)
"""
ROWS = "norm rows\nattr eps = 0.1\ninput x[B, S, D]\nparam w[D] = 1\n"
OF_A_ROW = "save r[B, S] = rsqrt(mean[D](x^2) + eps)\noutput y[B, S, D] = x * r * w\n"
SPECS = {
    "evonorm b0": IMAGES + EVONORM_B0,
    "batch-instance": IMAGES + BATCH_INSTANCE,
    "batch-channel": IMAGES + BATCH_CHANNEL,
    "a state that is scaled by its own sum": ROWS
    + OF_A_ROW
    + "state s[D] = 1\nupdate s = s / (sum[D](s^2) + 1)\n",
    "one number, of what is not read elsewhere": ROWS
    + OF_A_ROW
    + "input p[E]\nstate s[] = 1\nupdate s = lerp(s, mean[E](p), 0.1)\n",
    "of two axes, by three sets of axes": ROWS
    + "state s[S, D] = 1\nstate t[B] = 0\nsave m[D] = mean[B, S](x)\n"
    + "output y[B, S, D] = (x - m) * rsqrt(mean[D](x^2) + eps) * w\n"
    + "update s = lerp(s, mean[B](x), 0.25)\nupdate t = max(t, max[S, D](x))\n",
    "of many rows of one element": "norm line\ninput x[D]\nstate s[D] = 1\n"
    + "output y[D] = x + s\nupdate s = 0.5 * s\n",
    "of one row that is summed": "norm line\ninput x[D]\nstate s[D] = 1\n"
    + "output y[D] = x + s\noutput t[] = sum[D](x + s)\nupdate s = 0.5 * s\n",
    "that rows read, and their sums update": ROWS
    + "state s[D] = 0\n"
    + OF_A_ROW.replace("x * r * w", "x * r * w - s")
    + "update s = s + mean[B, S](x)\n",
    "the same without statistics of rows": "norm sums\ninput x[B, D]\nstate s[D] = 0\n"
    + "output y[B, D] = x - s\nupdate s = s + sum[B](x)\n",
    "of all elements": ROWS + OF_A_ROW + "state s[B, S, D] = 0\nupdate s = s + mean[D](s) * x\n",
}
SIZES = {"B": 3, "G": 2, "C": 5, "...": 33, "S": 7, "D": 40, "E": 11}


@pytest.mark.parametrize("turn", [2, 5, pytest.param(9, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", SPECS)
def test_beside_other_statistics(name: str, turn: int) -> None:
    """Turn 2 leaves out a state that nothing but its update reads."""
    subject = subject_of(Source("states.norm", SPECS[name]))
    dtypes = (F32, DTYPE_SETS[1], DTYPE_SETS[5])[turn % 3]
    case = in_turn(subject.definition, make_case(subject.definition, 1, 1, dtypes, SIZES), turn, True)
    for direction in ("forward", "backward"):
        for one, _ in in_every_way(subject, first):
            prove(one, case, directions=(direction,))
