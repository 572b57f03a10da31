"""Whatever a call leaves out or does not want, nothing is read that nobody wrote, and no result differs: the
checker sees every access."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from itertools import combinations, product

import pytest

from normgen import bundled
from normgen.devices.host.executor import HostExecutor
from normgen.diagnostics import Source
from normgen.runtime.norm import Norm
from normgen.runtime.planning.choose import plan_launches
from normgen.verify.cases import Case
from normgen.verify.expected import Subject
from tests.codegen.holding import case
from tests.codegen.residing import lengths_of, small_slices
from tests.sampling import sampled
from tests.verify.subjects import prove, subject_of

SQUARES = """norm squares
attr momentum >= 0 = 0.1
attr eps >= 0 = 1e-5
axis G = 2
input x[{axes}]
param w[{gains}] = 1
param b[{gains}] = 0
{state}
save phi[{kept}] = mean[{over}](x^2)
output y[{axes}] = x * rsqrt(phi + eps) * w + b
{update}
"""
STATE = {"state": "state running[C] = 1", "update": "update running = lerp(running, phi, momentum)"}
STATELESS = {"state": "", "update": ""}


def squares(axes: str, kept: str, over: str, gains: str = "(G C)", parts: dict[str, str] = STATELESS) -> str:
    text = SQUARES.format(axes=axes, kept=kept, over=over, gains=gains, **parts)
    return text if "G" in axes else text.replace("axis G = 2\n", "")


# The sums of their biases are nobody else's, and so are those of their gains in some.
TEXTS = {
    "RMS of groups that come last": squares("B, ..., (G C)", "B, G", "..., C"),
    "batch RMS, channels last": squares("B, ..., C", "C", "B, ...", "C", STATE),
    "RMS of groups": squares("B, (G C), ...", "B, G", "C, ..."),
    "batch RMS": squares("B, C, ...", "C", "B, ...", "C", STATE),
    "RMS of rows": squares("..., C", "...", "C", "C"),
    "RMS of columns": squares("B, C, ...", "B, ...", "C", "C"),
}
LENGTHS = {"B": 3, "C": 24, "G": 2, "rest": 40}


@cache
def of(name: str) -> Subject:
    source = Source("squares.norm", TEXTS[name]) if name in TEXTS else bundled.read(name)
    assert source is not None
    return subject_of(source)


def made(found: Subject) -> Case:
    return case(found, "f32", **lengths_of(found, LENGTHS))


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
    """Params and states left out: `every` one alone and all others, or else none, with nothing saved, and
    all."""
    optional = [t.name for t in found.definition.program.operands if t.default is not None]
    for count in sorted({0, 1, len(optional) - 1, len(optional)} if every else {0, len(optional)}):
        for absent in combinations(optional, count):
            yield replace(made(found), absent=absent, save=bool(absent))


@pytest.mark.parametrize(
    "way", sampled(product(("forward", "backward"), [*TEXTS, "batchnorm_channels_last"]), 6, 7)
)
def test_whatever_is_left_out(monkeypatch: pytest.MonkeyPatch, way: tuple[str, str]) -> None:
    direction, name = way
    small_slices(monkeypatch)
    found, package = of(name), of(name).norm.package
    record = getattr(package, direction)
    for strategy in record.strategies:
        executor = HostExecutor(checked=True)
        one = replace(found, norm=Norm(package, planner=partial(plan_launches, strategy=strategy.name)))
        resident = strategy.name == "resident"
        for each in (forwards if direction == "forward" else backwards)(found, every=resident):
            prove(one, each, executor, directions=(direction,))
        assert not resident or any(entry.endswith("_resident") for entry, _ in executor.history)
