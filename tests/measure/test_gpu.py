"""Measuring on a real device, where there is one: figures that are possible."""

from __future__ import annotations

import pytest

import normgen
from normgen.errors import MachineError
from normgen.measure.norms import Bench, Case

pytestmark = pytest.mark.gpu

SIZES = {"...": 8192, "D": 4096}


@pytest.fixture(scope="module")
def bench() -> Bench:
    try:
        return Bench()
    except MachineError as fault:
        pytest.skip(f"nothing was measured: {fault}")


def test_a_copy_takes_longer_the_more_it_moves(bench: Bench) -> None:
    small, large = (bench.ceiling.microseconds("copy", size << 20) for size in (128, 512))
    assert 3 < large / small < 6, "caches are cold, and the device alone is timed"


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_no_norm_is_much_faster_than_its_ceiling(direction: str, bench: Bench) -> None:
    measured = bench.measure(normgen.load("rmsnorm").package, Case(direction, SIZES, "bf16"))
    assert 0.3 < measured.rho < 1.1
    assert 1 < measured.timing.host_us < 1000


def test_a_strategy_can_be_measured_by_its_name(bench: Bench) -> None:
    package = normgen.load("groupnorm", groups=32).package
    sizes = {"B": 8, "C": 10, "...": (64, 64)}
    names = [strategy.name for strategy in package.forward.strategies]
    times = {n: bench.measure(package, Case("forward", sizes, "bf16", n)).timing.us for n in ("", *names)}
    assert any(times[n] == pytest.approx(times[""], rel=0.1) for n in names), "the chosen one is one of them"
