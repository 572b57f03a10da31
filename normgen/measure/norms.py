"""A norm at given sizes on the GPU that is there: its time, that of the ceiling, and the host's share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from normgen.arrays.device_array import DeviceArray
from normgen.arrays.views import View
from normgen.devices.cuda.executor import CudaExecutor, executor_of
from normgen.dtypes import DTYPES
from normgen.launching.launch import Binding, DeviceKey, LaunchPlan
from normgen.measure.arithmetic import Bytes, least_bytes, operand_bytes, rho, sets_for
from normgen.measure.ceiling import Ceiling
from normgen.measure.clock import DriverClock
from normgen.measure.plans import measure_plan
from normgen.measure.timing import BATCHES, Timing, measure
from normgen.package.direction import Direction, directions
from normgen.package.records import Package
from normgen.runtime.calls.sizes import Sizes, bind_sizes, stand_ins
from normgen.runtime.norm import Norm
from normgen.runtime.planning.choose import plan_launches
from normgen.runtime.planning.tuned import plan_tuned

_BESIDE = 0.1  # how far from a default values are drawn
_TILE = 1 << 22  # values that are drawn; longer arrays repeat them, which no cache holds either


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured. `sizes`: the length of each axis; `strategy`: a name, or "" for what a call would
    run."""

    direction: str
    sizes: Sizes
    dtype: str
    strategy: str = ""


@dataclass(frozen=True, slots=True)
class Measured:
    """A case and its times in microseconds: `timing.us` of all its launches, `timing.host_us` of one call
    into given arrays. `notes`: what ran, and why.
    """

    case: Case
    bytes: Bytes
    timing: Timing
    ceiling_us: float
    notes: tuple[str, ...]

    @property
    def rho(self) -> float:
        """The time of the fastest copy or triad of the least bytes over that of the launches."""
        return rho(self.ceiling_us, self.timing.us)


class Bench:
    """What measures norms on one device: the primary context of `device`. DeviceMissing without one."""

    def __init__(self, device: DeviceKey = ("cuda", 0)) -> None:
        self.device = device
        self.executor: CudaExecutor = executor_of(device)
        self.clock = DriverClock(self.executor)
        self.ceiling = Ceiling(self.executor, self.clock)

    def measure(
        self,
        package: Package,
        case: Case,
        numbers: Mapping[str, float] | None = None,
        batches: int = BATCHES,
    ) -> Measured:
        """One case of a norm. `numbers`: float attrs that have no default. ValueError for sizes that are
        wrong or missing."""
        direction = direction_of(package, case.direction)
        least = least_bytes(direction, contiguous_binding(direction, case.sizes, case.dtype))
        given = numbers_of(package, numbers)
        plan = self.plan(package, case)
        sets = self.buffers(package, case, numbers)
        timing = measure_plan(self.executor, self.clock, plan, [s.addresses for s in sets], given, batches)
        called = measure(self.clock, lambda i: sets[i % len(sets)].call(), len(sets), batches)
        return Measured(
            case=case,
            bytes=least,
            timing=Timing(timing.us, called.host_us, timing.method, timing.why),
            ceiling_us=self.ceiling.microseconds(least.ceiling, least.total),
            notes=plan.notes,
        )

    def plan(self, package: Package, case: Case) -> LaunchPlan:
        """The launches of a case on this device."""
        direction = direction_of(package, case.direction)
        binding = contiguous_binding(direction, case.sizes, case.dtype)
        planner = _planner(case)
        return planner(direction.record, binding, self.executor.device)

    def buffers(
        self, package: Package, case: Case, numbers: Mapping[str, float] | None = None
    ) -> list[Buffers]:
        """As many sets of arrays for a case as keep the cache cold, each filled and called once."""
        direction = direction_of(package, case.direction)
        binding = contiguous_binding(direction, case.sizes, case.dtype)
        count = sets_for(sum(operand_bytes(binding).values()), self.executor.device.cache)
        norm = Norm(package, planner=_planner(case))
        given = numbers_of(package, numbers)
        return [Buffers(norm, case, given, self.device) for _ in range(count)]


def numbers_of(package: Package, given: Mapping[str, float] | None = None) -> dict[str, float]:
    """The float attrs of a call: those given, and the defaults of the others."""
    return {a.name: a.default for a in package.attrs if a.default is not None} | dict(given or {})


def _planner(case: Case) -> Callable[..., LaunchPlan]:
    """A named strategy by the estimates alone; else whatever a call would run."""
    return partial(plan_launches, strategy=case.strategy) if case.strategy else plan_tuned


def contiguous_binding(direction: Direction, sizes: Sizes, dtypes: str | Mapping[str, str]) -> Binding:
    """A call with contiguous arrays of these lengths, every operand present and every result wanted."""
    return bind_sizes(direction, sizes, dtypes).binding


class Buffers:
    """The arrays of one call of a case, and the call. `operands` and `results` by name."""

    def __init__(self, norm: Norm, case: Case, numbers: Mapping[str, float], device: DeviceKey) -> None:
        forward = direction_of(norm.package, "forward")
        views = stand_ins(forward, case.sizes, case.dtype, 16, device)
        operands: dict[str, Any] = {name: _draw(forward, name, view, device) for name, view in views.items()}
        attrs: dict[str, Any] = dict(numbers)
        results = norm.forward(**operands, **attrs)._asdict()
        self._run: Any = norm.forward
        if case.direction == "backward":
            backward = direction_of(norm.package, "backward")
            wanted = stand_ins(backward, case.sizes, case.dtype, 16, device)
            known = operands | results
            operands = {n: known.get(n) or _draw(backward, n, v, device) for n, v in wanted.items()}
            results = norm.backward(**operands, **attrs)._asdict()
            self._run = norm.backward
        self.operands: dict[str, DeviceArray] = operands
        self.results = {name: array for name, array in results.items() if array is not None}
        self._arguments = {**operands, **attrs, "out": self.results}
        self.addresses = {name: a.pointer for name, a in (operands | self.results).items()}

    def call(self) -> None:
        """Queue the call, into the arrays of the set."""
        self._run(**self._arguments)


def direction_of(package: Package, name: str) -> Direction:
    """A direction by name; ValueError where the norm has none."""
    forward, backward = directions(package)
    if name == "forward":
        return forward
    if backward is None:
        raise ValueError(f"{package.name} has no backward: no output of it can be differentiated")
    return backward


def _draw(direction: Direction, name: str, view: View, device: DeviceKey) -> DeviceArray:
    count = prod(view.shape)
    tile = drawn(name, direction.operands[name].default, min(count, _TILE))
    tile = tile.astype(DTYPES[view.dtype].numpy)
    return DeviceArray.of(np.resize(tile, count).reshape(view.shape), device)


def drawn(name: str, default: float | None, count: int) -> NDArray[np.float32]:
    """Random values, others for each name: N(0, 1) for what is normalized and for cotangents, near its
    default for the rest. (A cotangent that equals x has gradients of 0 but for rounding, in which no two
    kernels agree.)
    """
    generator = np.random.default_rng(crc32(name.encode()))
    values = generator.standard_normal(count, dtype=np.float32)
    return values if default is None else default + np.float32(_BESIDE) * values
