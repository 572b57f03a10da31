"""Whatever a call leaves out or does not want, nothing is read that nobody wrote, and no result differs: the
checker sees every access."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from itertools import product

import pytest

from normgen import bundled
from normgen.devices.host.executor import HostExecutor
from normgen.diagnostics import Source
from normgen.runtime.norm import Norm
from normgen.runtime.planning.choose import plan_launches
from normgen.verify.cases import Case
from normgen.verify.expected import Subject
from tests.codegen.holding import case
from tests.codegen.residing import small_slices
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
    "batch RMS, channels last": squares("B, ..., C", "C", "B, ...", "C", STATE),
    "RMS of groups that come last": squares("B, ..., (G C)", "B, G", "..., C"),
    "RMS of groups": squares("B, (G C), ...", "B, G", "C, ..."),
    "RMS of channels": squares("B, C, ...", "B", "C, ...", "C"),
    "batch RMS": squares("B, C, ...", "C", "B, ...", "C", STATE),
    "RMS of rows": squares("..., C", "...", "C", "C"),
    "RMS of columns": squares("B, C, ...", "B, ...", "C", "C"),
}  # fmt: skip
BUNDLED = ("groupnorm_channels_last", "batchnorm_channels_last")
LENGTHS = {"B": 3, "C": 24, "G": 2, "rest": 40}


@cache
def of(name: str) -> Subject:
    text = TEXTS.get(name)
    source = Source("squares.norm", text) if text else bundled.read(name)
    assert source is not None
    return subject_of(source, {"groups": 2} if name.startswith("group") else {})


def made(found: Subject) -> Case:
    axes = {axis.name for axis in found.norm.package.axes}
    lengths = {n: k for n, k in LENGTHS.items() if n in axes or (n == "rest" and "..." in axes)}
    return case(found, "f32", **lengths)


def backwards(found: Subject, every: bool) -> Iterator[Case]:
    """Sets of gradients; the other operands are given, or left out where they may be. `every`: all sets, or
    else each gradient alone, and all together."""
    whole = made(found)
    optional = {
        t.name for t in found.definition.program.operands if t.role == "param" and t.default is not None
    }
    ways = [
        ("wanted", "given", "left out") if n in optional else ("wanted", "given")
        for n in found.definition.wrt
    ]
    for each in product(*ways):
        chosen = dict(zip(found.definition.wrt, each, strict=True))
        wrt = tuple(n for n, how in chosen.items() if how == "wanted")
        left_out = tuple(n for n, how in chosen.items() if how == "left out")
        alone = len(wrt) == 1 and optional - {*wrt} == {*left_out}
        if wrt and (every or alone or len(wrt) == len(chosen)):
            yield replace(whole, wrt=wrt, absent=left_out)


def forwards(found: Subject, every: bool) -> Iterator[Case]:
    """Sets of params and states left out: `every`, or else none, with nothing saved, and all."""
    whole = made(found)
    optional = [t.name for t in found.definition.program.operands if t.default is not None]
    for given in product((True, False), repeat=len(optional)):
        absent = tuple(n for n, there in zip(optional, given, strict=True) if not there)
        if every or all(given) or not any(given):
            yield replace(whole, absent=absent, save=not all(given))


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("name", sampled([*TEXTS, *BUNDLED], 1, 8))
def test_whatever_is_left_out(monkeypatch: pytest.MonkeyPatch, name: str, direction: str) -> None:
    small_slices(monkeypatch)
    found, package = of(name), of(name).norm.package
    record = package.forward if direction == "forward" else package.backward
    cases = forwards if direction == "forward" else backwards
    assert record is not None
    for strategy in record.strategies:
        executor = HostExecutor(checked=True)
        one = replace(found, norm=Norm(package, planner=partial(plan_launches, strategy=strategy.name)))
        resident = strategy.name == "resident"
        for each in cases(found, every=resident):
            prove(one, each, executor, directions=(direction,))
        assert not resident or any(entry.endswith("_resident") for entry, _ in executor.history)
