"""Norms whose blocks keep what they read of a segment while they meet."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache, partial
from typing import Any

from pytest import MonkeyPatch

from normgen.codegen.package import package
from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.families.resident.launch import residence, segments
from normgen.ir.grad import backward
from normgen.launching.launch import Launch
from normgen.launching.machine import HOST_MACHINE, Machine
from normgen.runtime.norm import Norm
from normgen.runtime.planning.choose import plan_launches
from normgen.verify.expected import Subject
from tests.codegen.holding import subject as named
from tests.codegen.norms import bound

NORM = """norm last
attr groups: int = 2
attr eps >= 0 = 1e-5
axis G = groups
{declared}
save mu[{kept}] = mean[{over}](x)
save rstd[{kept}] = rsqrt(mean[{over}]((x - mu)^2) + eps)
output y[{axes}] = {value}
"""
USUAL = "(x - mu) * rstd * w + b"


def spec(axes: str, kept: str, over: str, *params: str, value: str = USUAL) -> str:
    declared = "\n".join([f"input x[{axes}]", *params])
    return NORM.format(declared=declared, kept=kept, over=over, axes=axes, value=value)


LAST = "(G C)"
GAINS = ("param w[(G C)] = 1", "param b[(G C)] = 0")
# Norms beside the bundled ones: x and its statistics, and what applies them.
TEXTS = {
    "instances": spec("B, ..., C", "B, C", "...", "param w[C] = 1", "param b[C] = 0"),
    "modulated": spec(
        "B, ..., (G C)", "B, G", "C, ...", "input s[B, (G C)]", value="silu((x - mu) * rstd * (1 + s))"
    ),
    "gains of groups": spec("B, ..., (G C)", "B, G", "C, ...", "param w[G] = 1", "param b[C] = 0"),
    "turned statistics": spec("B, ..., (G C)", "G, B", "C, ...", *GAINS),
    "frames": spec("B, T, S, (G C)", "B, T, G", "S, C", *GAINS),
    "further rows": spec("T, B, S, (G C)", "B, G", "T, S, C", *GAINS),
    "of a function": spec("B, ..., (G C)", "B, G", "C, ...", value="(x - mu) * rstd").replace(
        "(x)", "(tanh(x))"
    ).replace("(x - mu)", "(tanh(x) - mu)"),
}  # fmt: skip

# Norms whose backward has one kernel too.
SUMS = {
    **{name: TEXTS[name] for name in ("instances", "turned statistics", "frames", "further rows")},
    "no gains": spec("B, ..., (G C)", "B, G", "C, ...", value="(x - mu) * rstd"),
    "instances without gains": spec("B, ..., C", "B, C", "...", value="(x - mu) * rstd"),
    "a bias": spec("B, ..., (G C)", "B, G", "C, ...", "param b[(G C)]", value="(x - mu) * rstd + b"),
}  # fmt: skip

# What a forward may be given or asked for besides the usual.
LESS = (
    {"absent": ("w",)},
    {"absent": ("w", "b")},
    {"save": False},
    {"in_place": True},
    {"offset": 1},
    {"given_out": True, "offset": 3},
    {"padded": True},
)

# Of their axes.
LENGTHS = {"B": 2, "T": 3, "S": 37, "C": 6, "rest": 70}


@cache
def subject(name: str, groups: int = 0) -> Subject:
    """A norm whose strategy is this one. Its norm has plans of its own by `fresh`."""
    if name not in TEXTS:
        return named(name, groups, "resident")
    definition = load_definition(Source(f"{name}.norm", TEXTS[name]), {"groups": groups} if groups else {})
    norm = Norm(package(definition), planner=partial(plan_launches, strategy="resident"))
    return Subject(definition, None, norm, "resident")


def fresh(name: str, groups: int = 0) -> Subject:
    found = subject(name, groups)
    return replace(found, norm=Norm(found.norm.package, planner=partial(plan_launches, strategy="resident")))


@cache
def _adding(name: str, groups: int = 0) -> Subject:
    if name not in SUMS:
        return named(name, groups, "resident")
    definition = load_definition(Source(f"{name}.norm", SUMS[name]), {"groups": groups} if groups else {})
    return Subject(definition, backward(definition), Norm(package(definition)), "resident")


def adding(name: str, groups: int = 0) -> Subject:
    """A norm whose backward is this strategy's, with plans of its own."""
    found = _adding(name, groups)
    return replace(found, norm=Norm(found.norm.package, planner=partial(plan_launches, strategy="resident")))


def backward_launched(found: Subject, dtype: str, device: Machine = HOST_MACHINE, **extents: int) -> Launch:
    """The kernel of a backward, as the host runs it, or another device."""
    package = found.norm.package
    assert package.backward is not None
    binding = bound(package.backward, dtype, **extents)
    launches = plan_launches(package.backward, binding, device, "resident").launches
    return next(each for each in launches if each.entry.endswith("_resident"))


def launched(found: Subject, dtype: str, **extents: int) -> Launch:
    """The kernel of a call, as the host runs it."""
    package = found.norm.package
    binding = bound(package.forward, dtype, **extents)
    return plan_launches(package.forward, binding, HOST_MACHINE, "resident").launches[-1]


def small_slices(patch: MonkeyPatch) -> None:
    """Small blocks that keep what they read, of which several share a segment however short it is."""
    for name, value in {"LEAST_SLICE": 512, "BANDED_SLICE": 512, "MEMBERS": 4, "DEPTH_BYTES": 96}.items():
        patch.setattr(residence, name, value)
    for kind in ("MOMENTS", "SUMS"):
        ruled(patch, kind, ways=((64, 8),), band_ways=((64, 8),))


def ruled(patch: MonkeyPatch, kind: str, **rules: Any) -> None:
    """Blocks of one kind of statistics, MOMENTS or SUMS, that are made by other rules."""
    patch.setattr(segments, kind, replace(getattr(segments, kind), **rules))


def read_twice(patch: MonkeyPatch, kind: str, threads: int, held: int, members: int, room: int) -> None:
    """Blocks that have room for a few rows only: so many bytes of shared memory."""
    static = HOST_MACHINE.shared_per_block - room
    for name, value in {"MOST_MEMBERS": members, "DEPTH": held, "STATIC_SHARED": static}.items():
        patch.setattr(residence, name, value)
    ruled(patch, kind, ways=(), long_ways=(threads,))


def dealt(launch: Launch) -> tuple[int, int, int]:
    """Rows of a thread group in all, in shared memory, and read twice."""
    found = dict(re.findall(r"constexpr int (DEPTH|SLOTS|AGAIN) = (\d+);", launch.source))
    return int(found["DEPTH"]), int(found["SLOTS"]), int(found["AGAIN"])


@cache
def clashing(axes: str, kept: str, over: str, gains: str, words: tuple[str, ...]) -> Subject:
    """A norm with a gain of each of these names."""
    params = [f"param {word}[{gains}] = 1" for word in words]
    text = spec(axes, kept, over, *params, value=f"(x - mu) * rstd * {' * '.join(words)}")
    definition = load_definition(Source("clash.norm", text), {})
    norm = Norm(package(definition), planner=partial(plan_launches, strategy="resident"))
    return Subject(definition, None, norm, "resident")
