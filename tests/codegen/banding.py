"""Norms whose statistics are of channels that come last, over all samples: blocks keep bands of them."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

from normgen.codegen.package import package
from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.ir.grad import backward
from normgen.runtime.norm import Norm
from normgen.runtime.planning.choose import alternatives, choose_strategy, plan_launches
from normgen.verify.expected import Subject
from tests.codegen.holding import subject as named
from tests.codegen.norms import H200, bound
from tests.codegen.residing import spec

GAINS = ("param w[C] = 1", "param b[C] = 0")
TEXTS = {
    "channels": spec("..., C", "C", "...", *GAINS),
    "frames": spec("T, S, C", "C", "T, S", *GAINS),
    "rows of two axes": spec("..., (G C)", "G, C", "...", "param w[(G C)] = 1", "param b[(G C)] = 0"),
    "no gains": spec("..., C", "C", "...", value="(x - mu) * rstd"),
    "an activation": spec("..., C", "C", "...", *GAINS, value="silu((x - mu) * rstd * w + b)"),
}
BATCHNORM = "batchnorm_channels_last"


def subject(name: str) -> Subject:
    """A norm whose strategy is this one, with plans of its own."""
    if name in TEXTS:
        definition = load_definition(Source(f"{name}.norm", TEXTS[name]), {})
        derived = None if "activation" in name else backward(definition)
        found = Subject(definition, derived, Norm(package(definition)), "resident")
    else:
        found = named(name, 0, "resident")
    planner = partial(plan_launches, strategy="resident")
    return replace(found, norm=Norm(found.norm.package, planner=planner))


def of(direction: str, dtype: str, places: int, channels: int, device=H200):
    """The strategies for a call, and which of them is taken."""
    package = subject(BATCHNORM).norm.package
    record = package.forward if direction == "forward" else package.backward
    found = alternatives(record, bound(record, dtype, C=channels, rest=places), device)
    return {a.strategy.name: a for a in found}, choose_strategy(found).strategy.name


def dealt(alternative) -> tuple[int, ...]:
    """Columns of a band, its blocks, their threads, rows of a thread group and those that are read twice."""
    launch = next(x for x in alternative.plan.launches if x.entry.endswith("_resident"))
    numbers = dict(re.findall(r"constexpr int (\w+) = (\d+);", launch.source))
    names = ("LENGTH", "MEMBERS", "THREADS", "DEPTH", "AGAIN")
    return tuple(int(numbers[name]) for name in names)
