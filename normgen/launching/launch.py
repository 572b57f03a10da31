"""What a call is made of: plain frozen records of the runtime, none of which a compiled norm holds.

A `Binding` says how a call's arrays lie in memory; with a `Machine` it determines a `LaunchPlan`: the kernels
to run, their text, grid and arguments.  Nothing here touches a device.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

from normgen.cache_results import Late
from normgen.locks import cached_property
from normgen.package.constants import Constants


@dataclass(frozen=True, slots=True)
class Operand:
    """An array as a call gives it. `strides`: elements per step of each axis that the tensor has, by axis
    name.

    `alignment`: the largest power of two, 16 at most, that divides its address in bytes.
    """

    dtype: str
    strides: tuple[tuple[str, int], ...]
    alignment: int


@dataclass(frozen=True, slots=True)
class Binding:
    """A call, without its pointers: hashable, the key of the launch plan cache.

    `extents`: length of every axis that is known; `operands`: every tensor present, read or written. A tensor
    of the pass that is missing here was left out (a param with its default, an absent cotangent) or is not
    wanted (a gradient, a save).
    `accumulate`: parameter gradients are added to what `out` holds.
    """

    extents: tuple[tuple[str, int], ...]
    operands: tuple[tuple[str, Operand], ...]
    accumulate: bool = False


def resized(binding: Binding, lengths: Mapping[str, int]) -> Binding:
    """A call with other lengths of these axes. Operands that are packed stay so."""
    before = dict(binding.extents)
    after = before | dict(lengths)

    def strides(operand: Operand) -> tuple[tuple[str, int], ...]:
        found, old, new = [], 1, 1
        for axis, step in reversed(operand.strides):
            if step != old:
                return operand.strides
            found.append((axis, new))
            old, new = old * before[axis], new * after[axis]
        return tuple(reversed(found))

    operands = tuple((name, replace(each, strides=strides(each))) for name, each in binding.operands)
    return replace(binding, extents=tuple(after.items()), operands=operands)


@dataclass(frozen=True, slots=True)
class Slot:
    """A launch argument that is filled in at the call: `kind` is pointer (of a tensor or workspace) or scalar
    (a float attr).
    """

    kind: str
    name: str

    def filled(self, addresses: Mapping[str, int], numbers: Mapping[str, float]) -> int | float:
        return addresses.get(self.name, 0) if self.kind == "pointer" else numbers[self.name]


@dataclass(frozen=True)
class Printed:
    """The text of a form for what a launch gives it, printed when it is asked for."""

    text: Late[str]
    given: Constants

    @cached_property
    def source(self) -> str:
        """The text."""
        return self.text(self.given)


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch. `format` is the `struct` format of `values`, in native alignment: the kernel's
    parameter layout.

    `cluster`: blocks per cluster. `reads` and `writes` name the tensors and workspaces that it touches.
    `programmatic`: the kernel waits by itself for what came before, and may be started earlier. `clears`: a
    workspace that it fills with zeros, which is all zeros again when the plan has run, so that it need not
    run where that is known.
    """

    text: Printed | str
    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    format: str
    values: tuple[int | float | Slot, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    cluster: int = 1
    programmatic: bool = False
    clears: str = ""

    @property
    def source(self) -> str:
        """The text of its kernel."""
        return self.text if isinstance(self.text, str) else self.text.source

    def packed(self, addresses: Mapping[str, int], numbers: Mapping[str, float]) -> bytes:
        """The parameters in memory, with slots filled in; a pointer without an address is null."""
        values = [v.filled(addresses, numbers) if isinstance(v, Slot) else v for v in self.values]
        return struct.pack(self.format, *values)


@lru_cache(maxsize=256)
def parameters_of(source: str, entry: str, count: int) -> tuple[str, ...]:
    """The names of a kernel's parameters, as far as they can be read off its text."""
    found = re.search(rf"\b{re.escape(entry)}\s*\(([^)]*)\)", source)
    names = [re.findall(r"\w+", part)[-1:] for part in found[1].split(",")] if found else []
    if len(names) != count or not all(names):
        return tuple(f"parameter {i}" for i in range(count))
    return tuple(name[0] for name in names)


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """The launches of one pass for one binding, in order, with the scratch memory they share.

    `workspace`: (name, shape, dtype) of each scratch array. `tell`: how each kernel runs, for those who ask.
    `alike` tells launches with every text, entry and shared memory of calls that differ from this one in the
    number of their rows and take the same strategy; only of kernels that work on rows.
    """

    launches: tuple[Launch, ...]
    workspace: tuple[tuple[str, tuple[int, ...], str], ...] = ()
    tell: Callable[[], tuple[str, ...]] = field(default=tuple, compare=False, repr=False)
    alike: Callable[[], tuple[Launch, ...]] = field(default=tuple, compare=False, repr=False)

    @property
    def notes(self) -> tuple[str, ...]:
        """A line for each kernel, and one where the plan was tuned."""
        return self.tell()

    @property
    def zeros(self) -> frozenset[str]:
        """The scratch arrays that are zeros between one run and the next."""
        return frozenset(launch.clears for launch in self.launches if launch.clears)

    @property
    def repeated(self) -> tuple[Launch, ...]:
        """The launches where these are zeros already."""
        return tuple(launch for launch in self.launches if not launch.clears)


class Buffer(NamedTuple):
    """Memory that a launch touches, for the host executor's checks. `access`: read, write (undefined before),
    update. A named tuple, since every call makes several.
    """

    pointer: int
    bytes: int
    itemsize: int
    access: str


# Names where arrays lie and launches run: HOST, ("cuda", ordinal) for the primary context of a device, and
# another word with the ordinal for any other context.
DeviceKey = tuple[str, int]
HOST: DeviceKey = ("host", 0)

# The stream handles that CUDA and the array protocols reserve.
DEFAULT_STREAM = 0
LEGACY_STREAM = 1


class StreamObject(int):
    """The handle of a stream, with the object that it is of, where a launcher takes no handle."""

    owner: Any

    def __new__(cls, handle: int, owner: Any) -> StreamObject:
        made = super().__new__(cls, handle)
        made.owner = owner
        return made


# Runs or enqueues a launch with these arguments, packed, on this memory, on this stream.
Fire = Callable[[bytes, tuple[Buffer, ...], int], None]
