"""Norms with states that compute in NumPy: the interface of running statistics, without a compiler."""

from __future__ import annotations

import ctypes
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from normgen.launching.launch import Buffer, Launch, Slot
from normgen.launching.machine import Machine
from normgen.package.records import AxisRecord, Package, PassRecord
from normgen.runtime.norm import Norm
from tests.runtime import stubs
from tests.runtime.stubs import EPS, W, X, Y, fused, kernel, tensor

Arrays = dict[str, Any]
f32 = np.float32

R = tensor("r[D]", "state", dtype="f32", default=0.0)
MU = tensor("mu[D]", "save", dtype="f32")
DY = tensor("dy[..., D]", "cotangent", source="y")
DX, DW = tensor("dx[..., D]", "gradient", source="x"), tensor("dw[D]", "gradient", source="w")


@dataclass
class Computing:
    """An executor whose kernels are functions of the flat f32 arrays that a launch touches, by name; `added`
    says which results are added to. It notes what it is asked to compute, and takes `seconds` for it."""

    kernels: Mapping[str, Callable[[Arrays, set[str]], None]]
    seconds: float = 0.0
    device: Machine = stubs.DEVICE
    calls: list[tuple[str, frozenset[str], frozenset[str]]] = field(default_factory=list)

    def function(self, source: str, entry: str, shared: int) -> str:
        return entry

    def prepare(self, function: str, launch: Launch) -> Any:
        return partial(self.launch, function, launch)

    def launch(
        self, function: str, launch: Launch, packed: bytes, buffers: tuple[Buffer, ...], stream: int
    ) -> None:
        sizes = {buffer[0]: buffer for buffer in buffers}
        given: Arrays = {}
        added: set[str] = set()
        for slot, value in zip(launch.values, struct.unpack(launch.format, packed), strict=True):
            if isinstance(slot, Slot) and slot.kind == "pointer" and value in sizes:
                _, size, _, access = sizes[value]
                memory = (ctypes.c_float * (size // 4)).from_address(value)
                given[slot.name] = np.ctypeslib.as_array(memory)
                if access == "update":
                    added.add(slot.name)
        self.calls.append((function, frozenset(given), frozenset(added)))
        # What a launch reads it reads at once, and it writes at its end: `seconds` lie in between.
        copies = {name: array.copy() for name, array in given.items()}
        self.kernels[function](copies, added)
        time.sleep(self.seconds)
        for name, array in given.items():
            if name in launch.writes:
                array[:] = copies[name]


def _store(given: Arrays, added: set[str], name: str, value: Any) -> None:
    if name in given:
        given[name][:] = given[name] + value.ravel() if name in added else value.ravel()


def _forward(given: Arrays, training: bool) -> None:
    width = given["w"].size
    x = given["x"].reshape(-1, width)
    mu = x.mean(axis=0) if training else given["r"]
    _store(given, set(), "y", (x - mu) * given["w"])
    _store(given, set(), "mu", mu)
    if training and "r" in given:
        given["r"][:] = f32(0.75) * given["r"] + f32(0.25) * mu


def _backward(given: Arrays, added: set[str], training: bool) -> None:
    width = given["w"].size
    x, dy = given["x"].reshape(-1, width), given["dy"].reshape(-1, width)
    mu = given["mu"] if training else given["r"]
    _store(given, set(), "dx", (dy - (dy.mean(axis=0) if training else 0)) * given["w"])
    _store(given, added, "dw", (dy * (x - mu)).sum(axis=0))


def centred(training: bool = True) -> tuple[Norm, Computing]:
    """y = (x - mean over rows) * w, with a running mean r; or in evaluation, y = (x - r) * w."""
    saved = replace(MU, role="saved") if training else R
    writes = (Y, MU, R) if training else (Y,)
    forward = kernel("f", ("...",), ("D",), (X, W, R), writes)
    state = ("r",) if training else ("y",)
    forward = replace(
        forward,
        reads=tuple(
            replace(each, wanted_by=state if each.tensor == "r" else ("y",)) for each in forward.reads
        ),
    )
    reads = (DY, X, W, saved)
    package = Package(
        name="centred",
        doc="",
        spec="norm centred\n",
        attrs=(EPS,),
        axes=(AxisRecord("D"),),
        forward=PassRecord((X, W, R), writes, fused(forward)),
        backward=PassRecord(reads, (DX, DW), fused(kernel("g", ("...",), ("D",), reads, (DX,), (DW,)))),
        header="",
    )
    executor = Computing(
        {
            "f": lambda given, added: _forward(given, training),
            "g": lambda given, added: _backward(given, added, training),
        }
    )
    return Norm(package, executors=lambda device: executor, planner=stubs.plan), executor
