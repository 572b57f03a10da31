"""A planner and an executor that compute nothing: calls without a compiler."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import normgen
from normgen.launching.launch import Binding, Buffer, Launch, LaunchPlan, Slot
from normgen.launching.machine import Machine
from normgen.package.records import Package, PassRecord
from normgen.runtime.norm import Norm

DEVICE = Machine("none", "host", 4, 65536, 65536)
ROWS = """norm rows_norm "Normalises rows."
attr eps >= 0 = 1e-5
input x[..., D]
param w[D] = 1
param b[D] = 0
save rstd[...] = rsqrt(mean[D](x^2) + eps)
output y[..., D] = x * rstd * w + b
"""
GROUPS = """norm group_norm
axis G = 2
input x[B, (G C), ...]
param w[(G C)] = 1
save mu[B, G] = mean[C, ...](x)
output y[B, (G C), ...] = (x - mu) * w
"""
# A state r that is updated, and one s that y reads.
RUNNING = """norm running_norm
attr eps = 1e-5
input x[..., D]
state r[D] = 0
state s[D] = 1
output y[..., D] = x * rsqrt(mean[D](x^2) + eps) * s
update r = lerp(r, mean[...](x), 0.1)
"""


@cache
def package(text: str = ROWS) -> Package:
    return normgen.load(text).package


def without_backward() -> Package:
    return replace(package(GROUPS), backward=None)


def plan(record: PassRecord, binding: Binding, device: Machine) -> LaunchPlan:
    """One launch of every kernel, with all pointers, eps, and a workspace of [multiprocessors, D] floats."""
    present, lengths = dict(binding.operands), dict(binding.extents)
    launches, workspace = [], []
    for k in record.strategies[0].kernels:
        if 0 in (lengths[axis] for axis in (*k.kept, *k.inner)):
            continue
        reads = [o.tensor for o in k.reads if o.tensor in present]
        writes = [o.tensor for o in (*k.writes, *k.finals) if o.tensor in present]
        scratch = [c.name for c in k.columns]
        pointers = [o.tensor for o in (*k.reads, *k.writes, *k.finals)] + scratch
        values = (*(Slot("pointer", name) for name in pointers), Slot("scalar", "eps"))
        workspace += [(name, (device.multiprocessors, lengths["D"]), "f32") for name in scratch]
        size, layout = ((1, 1, 1), (32, 1, 1), 0), "P" * len(pointers) + "f"
        text = f"// the kernel {k.name}\n"
        launches.append(Launch(text, k.name, *size, layout, values, tuple(reads), (*writes, *scratch)))
    return LaunchPlan(tuple(launches), tuple(workspace))


@dataclass
class Recorder:
    """An executor that notes what it is asked to do: launches as (entry, argument values, buffers,
    stream)."""

    device: Machine = DEVICE
    compiled: list[str] = field(default_factory=list)
    launches: list[tuple[str, tuple[Any, ...], tuple[Buffer, ...], int]] = field(default_factory=list)

    def function(self, source: str, entry: str, shared: int) -> str:
        self.compiled.append(entry)
        return entry

    def launch(
        self, function: str, launch: Launch, packed: bytes, buffers: tuple[Buffer, ...], stream: int
    ) -> None:
        self.launches.append((function, struct.unpack(launch.format, packed), buffers, stream))

    def prepare(self, function: str, launch: Launch) -> Any:
        return partial(self.launch, function, launch)

    def last(self) -> tuple[Any, ...]:
        """The argument values of the last launch, in order."""
        return self.launches[-1][1]


def norm(given: Package | None = None, recorder: Recorder | None = None) -> Norm:
    """A norm that plans and runs by the stubs."""
    executor = recorder or Recorder()
    return Norm(given or package(), executors=lambda device: executor, planner=plan)
