"""Whatever a call leaves out or does not want, nothing is read that nobody wrote, and no result differs: the
checker sees every access."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import combinations, product

import pytest

from normgen.devices.host.executor import HostExecutor
from normgen.diagnostics import Source
from normgen.runtime.norm import Norm
from normgen.runtime.planning.choose import plan_launches
from normgen.verify.cases import Case
from normgen.verify.expected import Subject
from tests.codegen.holding import case
from tests.codegen.residing import lengths_of, small_slices
from tests.verify.subjects import bundled_source, prove, subject_of

Cases = Callable[[Subject, bool], Iterator[Case]]
SQUARES = """norm squares "The sums of its biases are nobody else's."
attr eps >= 0 = 1e-5
axis G = 2
input x[B, ..., (G C)]
param w[(G C)] = 1
param b[(G C)] = 0
save phi[B, G] = mean[..., C](x^2)
output y[B, ..., (G C)] = x * rsqrt(phi + eps) * w + b
"""
BATCHNORM = "batchnorm_channels_last"


def made(found: Subject) -> Case:
    return case(found, "f32", **lengths_of(found, {"B": 3, "C": 24, "G": 2, "rest": 40}))


def backwards(found: Subject, every: bool) -> Iterator[Case]:
    """Sets of gradients; the other operands are given, or left out where they may be. `every`: all sets, or
    else each gradient alone, and all together."""
    wrt = found.definition.wrt
    optional = {t.name for t in found.definition.program.operands if t.default is not None} & {*wrt}
    ways = [("wanted", "given", "left out") if n in optional else ("wanted", "given") for n in wrt]
    for each in product(*ways):
        wanted = tuple(n for n, how in zip(wrt, each, strict=True) if how == "wanted")
        left_out = tuple(n for n, how in zip(wrt, each, strict=True) if how == "left out")
        alone = len(wanted) == 1 and optional - {*wanted} == {*left_out}
        if wanted and (every or alone or len(wanted) == len(wrt)):
            yield replace(made(found), wrt=wanted, absent=left_out)


def forwards(found: Subject, every: bool) -> Iterator[Case]:
    """Params and states left out: none, with nothing saved; all; and if `every`, each alone."""
    optional = [t.name for t in found.definition.program.operands if t.default is not None]
    for count in sorted({0, 1, len(optional)} if every else {0, len(optional)}):
        for absent in combinations(optional, count):
            yield replace(made(found), absent=absent, save=bool(absent))


@pytest.mark.parametrize(
    ("source", "direction", "cases"),
    [
        (bundled_source(BATCHNORM), "forward", forwards),
        (Source("squares.norm", SQUARES), "backward", backwards),
        pytest.param(bundled_source(BATCHNORM), "backward", backwards, marks=pytest.mark.thorough),
        pytest.param(Source("squares.norm", SQUARES), "forward", forwards, marks=pytest.mark.thorough),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_whatever_is_left_out(
    monkeypatch: pytest.MonkeyPatch, source: Source, direction: str, cases: Cases
) -> None:
    small_slices(monkeypatch)
    found = subject_of(source)
    for strategy in getattr(found.norm.package, direction).strategies:
        executor = HostExecutor(checked=True)
        planner = partial(plan_launches, strategy=strategy.name)
        one = replace(found, norm=Norm(found.norm.package, planner=planner))
        resident = strategy.name == "resident"
        for each in cases(found, resident):
            prove(one, each, executor, directions=(direction,))
        assert not resident or any(entry.endswith("_resident") for entry, _ in executor.history)
