"""Norms whose blocks keep what they read of a segment while they meet."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache, partial
from typing import Any

from pytest import MonkeyPatch

from normgen.codegen.package import package
from normgen.devices.host.executor import HostExecutor
from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.families.resident.launch import residence
from normgen.ir.grad import backward
from normgen.launching import pick
from normgen.launching.launch import Launch
from normgen.launching.machine import HOST_MACHINE
from normgen.runtime.norm import Norm
from normgen.runtime.planning.choose import plan_launches
from normgen.verify.expected import Subject
from tests.codegen.holding import case
from tests.codegen.holding import subject as named
from tests.codegen.norms import bound
from tests.verify.subjects import prove

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


GROUPED = ("B, ..., (G C)", "B, G", "C, ...")
INSTANCES = ("B, ..., C", "B, C", "...")
GAINS = ("param w[(G C)] = 1", "param b[(G C)] = 0")
# Norms beside the bundled ones: x and its statistics, and what applies them.
FORWARDS = {
    "instances": spec(*INSTANCES, "param w[C] = 1", "param b[C] = 0"),
    "frames": spec("B, T, S, (G C)", "B, T, G", "S, C", *GAINS),
    "turned statistics of further rows": spec("T, B, S, (G C)", "G, B", "T, S, C", *GAINS),
    "modulated": spec(*GROUPED, "input s[B, (G C)]", value="silu((x - mu) * rstd * (1 + s))"),
    "gains of groups": spec(*GROUPED, "param w[G] = 1", "param b[C] = 0"),
    "of a function": spec(*GROUPED, value="(x - mu) * rstd").replace("(x)", "(tanh(x))").replace(
        "(x - mu)", "(tanh(x) - mu)"
    ),
}  # fmt: skip
# Norms whose backward has one kernel too.
BACKWARDS = {
    **{name: FORWARDS[name] for name in list(FORWARDS)[:3]},
    "no gains": spec(*GROUPED, value="(x - mu) * rstd"),
    "a bias": spec(*GROUPED, "param b[(G C)]", value="(x - mu) * rstd + b"),
}

# Norms whose statistics are of channels that come last, over all samples: blocks keep bands of them.
BANDS = {
    "bands of frames": spec("T, S, C", "C", "T, S", "param w[C] = 1", "param b[C] = 0"),
    "bands of two axes": spec("..., (G C)", "G, C", "...", *GAINS),
    "bands without gains": spec("..., C", "C", "...", value="(x - mu) * rstd"),
    "bands of a function": spec("..., C", "C", "...", "param w[C] = 1", value="silu((x - mu) * rstd * w)"),
}
TEXTS = FORWARDS | BACKWARDS | BANDS

# Of their axes.
LENGTHS = {"B": 2, "T": 3, "S": 37, "C": 6, "rest": 70}


@cache
def _subject(name: str, groups: int) -> Subject:
    if name not in TEXTS:
        return named(name, groups, "resident")
    definition = load_definition(Source(f"{name}.norm", TEXTS[name]), {})
    return Subject(definition, backward(definition), Norm(package(definition)), "resident")


def subject(name: str, groups: int = 0) -> Subject:
    """A norm whose strategy is this one, with plans of its own."""
    found = _subject(name, groups)
    return replace(found, norm=Norm(found.norm.package, planner=partial(plan_launches, strategy="resident")))


def lengths_of(found: Subject, lengths: dict[str, int]) -> dict[str, int]:
    """Those of axes that a norm has."""
    axes = {a.name for a in found.norm.package.axes}
    return {n: k for n, k in lengths.items() if n in axes or (n == "rest" and "..." in axes)}


def run(name: str, *directions: str, groups: int = 0, dtypes: str = "f32", samples: Any = None, **how: Any):
    """By this strategy, and no other. `how`: lengths of axes, and fields of the case."""
    found, executor = subject(name, groups), HostExecutor(checked=True)
    extents = {axis: n for axis, n in how.items() if axis == "rest" or axis[0].isupper()}
    rest = {field: value for field, value in how.items() if field not in extents}
    made = replace(case(found, dtypes, **extents), **rest)
    prove(found, made, executor, samples, directions=directions)
    entries = {entry for entry, _ in executor.history if entry != "normgen_copy"}
    for direction in directions:
        ends = {entry.partition(f"_{direction}_")[2] for entry in entries if f"_{direction}_" in entry}
        assert "resident" in ends and ends <= {"resident", "resident_second_stage"}


def launched(found: Subject, direction: str, dtype: str = "f32", **extents: int) -> Launch:
    """The kernel of a call, as the host runs it."""
    record = getattr(found.norm.package, direction)
    launches = plan_launches(record, bound(record, dtype, **extents), HOST_MACHINE, "resident").launches
    return next(each for each in launches if each.entry.endswith("_resident"))


def small_slices(patch: MonkeyPatch) -> None:
    """Small blocks that keep what they read, of which several share a segment however short it is."""
    deal_out(patch, 64, 4, (8,))


def deal_out(
    patch: MonkeyPatch, threads: int, members: int, blocks: tuple[int, ...], depth: int = 96
) -> None:
    """Blocks of so many threads alone, about so many for a segment. `blocks`: of a multiprocessor, which
    share its registers; `depth`: bytes that a thread has of an operand."""
    values = {"_THREADS": (threads,), "_MEMBERS": (members,), "_BLOCKS": blocks, "FEWER": (0,)}
    for name, value in {**values, "DEPTH_BYTES": depth}.items():
        patch.setattr(residence, name, value)
    patch.setattr(pick, "predicted", forgetful(pick.predicted))


def forgetful(found: Any) -> Any:
    """A function that keeps its results, without that."""
    return getattr(found, "__wrapped__", found)


def read_twice(patch: MonkeyPatch, threads: int, held: int, members: int, room: int) -> None:
    """Blocks that have room for a few rows only: so many bytes of shared memory."""
    deal_out(patch, threads, members, (), 1024)
    static = HOST_MACHINE.shared_per_block - room
    for name, value in {"MOST_MEMBERS": members, "DEPTH": held, "STATIC_SHARED": static}.items():
        patch.setattr(residence, name, value)


def dealt(launch: Launch, *names: str) -> tuple[int, ...]:
    """Numbers of a text: DEPTH, rows of a thread group; SLOTS of them in shared memory; AGAIN read twice."""
    found = dict(re.findall(r"constexpr int (\w+) = (\d+);", launch.source))
    return tuple(int(found[name]) for name in names)
