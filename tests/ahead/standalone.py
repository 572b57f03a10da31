"""A launcher of exported kernels by their JSON alone, as one who has never seen normgen writes it.

It follows docs/binaries.md and imports nothing of normgen.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

FORMATS = {"pointer": "<Q", "int32": "<i", "int64": "<q", "uint32": "<I", "float32": "<f"}


@dataclass(frozen=True)
class Launched:
    """A launch. `binary`: the digest of its kernel."""

    binary: str
    entry: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int
    cluster: int
    early: bool
    packed: bytes


@dataclass
class Launcher:
    """The kernels of a direction, from all of its JSONs. `scratch`: the address and the bytes of each scratch
    array of the last call."""

    kernels: Sequence[Mapping[str, Any]]
    scratch: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def needs_all_multiprocessors(self) -> int:
        """How many multiprocessors a device must have; 0 where that does not matter."""
        every = {kernel["needs_all_multiprocessors"] for kernel in self.kernels}
        assert len(every) == 1
        return self.kernels[0]["planned_for"]["multiprocessors"] if every.pop() else 0

    def launches(
        self, sizes: Mapping[str, int], arrays: Mapping[str, int], attrs: Mapping[str, float]
    ) -> list[Launched]:
        """What a call launches, in order. `arrays`: addresses by name."""
        self.scratch = {}
        steps: dict[int, Launched] = {}
        count = 0
        for kernel in self.kernels:
            assert set(sizes) == set(kernel["run_time_sizes"])
            for launch in kernel["launches"]:
                if all(formula(condition, sizes) for condition in launch["when"]):
                    count = launch["steps"]
                    assert launch["step"] not in steps, "two entries fit"
                    steps[launch["step"]] = self._launch(kernel, launch, sizes, arrays, attrs)
        assert sorted(steps) == list(range(1, count + 1))
        return [steps[step] for step in sorted(steps)]

    def _launch(
        self,
        kernel: Mapping[str, Any],
        launch: Mapping[str, Any],
        sizes: Mapping[str, int],
        arrays: Mapping[str, int],
        attrs: Mapping[str, float],
    ) -> Launched:
        for each in launch["scratch"]:
            place = (1 << 46) + (len(self.scratch) << 36), formula(each["bytes"], sizes)
            assert self.scratch.setdefault(each["name"], place)[1] == place[1]
        packed = bytearray(kernel["argument_bytes"])
        end = 0
        for argument, value in zip(kernel["arguments"], launch["values"], strict=True):
            code, offset = FORMATS[argument["type"]], argument["offset"]
            assert offset >= end and offset % struct.calcsize(code) == 0
            end = offset + struct.calcsize(code)
            found: float
            if argument["type"] == "pointer":
                kind, _, name = value.rpartition(" ")
                found = 0 if value == "0" else self.scratch[name][0] if kind == "scratch" else arrays[name]
            else:
                found = attrs[value] if argument["type"] == "float32" else formula(value, sizes)
            struct.pack_into(code, packed, offset, found)
        assert end == len(packed)
        early = kernel["launch_attributes"]["programmatic_stream_serialization"]
        return Launched(
            kernel["binary"]["sha256"],
            kernel["entry"],
            tuple(formula(each, sizes) for each in launch["grid"]),
            tuple(kernel["block"]),
            kernel["dynamic_shared_memory"],
            kernel["cluster"][0],
            early,
            bytes(packed),
        )


def formula(text: str, sizes: Mapping[str, int]) -> int:
    """The value of a formula, or whether a condition holds."""
    return int(eval(text, {"__builtins__": {}}, dict(sizes)))
