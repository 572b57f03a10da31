"""Achieved bandwidth of rows norms on a GPU, as a fraction of the fastest copy of the same bytes in the same
run.

    python bench/bandwidth.py --out bench/results/h200/bandwidth.json rmsnorm layernorm

Forward is held against a copy (1 read + 1 write), backward against a triad (2 reads + 1 write). Caches are
cold: buffers rotate through more than three times the second-level cache. Times are medians of batches
between events; compile time, allocation and Python's share of a call are left out (launches are prepared).
"""

from __future__ import annotations

import argparse
import json
import statistics
import struct
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

import normgen
from normgen.dtypes import DTYPES
from normgen.runtime.calling import Call
from normgen.runtime.cuda import CudaExecutor
from normgen.runtime.launch import plan_launches
from normgen.runtime.launches import Binding, Launch, Operand, Slot
from normgen.runtime.records import PassRecord
from normgen.runtime.rows import schedule_rows

CEILING = Path(__file__).parent / "ceiling.cu"
ROTATION_BYTES = 400 << 20
BATCH, BATCHES = 10, 24


class Timer:
    """Medians of batches of launches between two events on the default stream."""

    def __init__(self, executor: CudaExecutor) -> None:
        self._executor = executor

    def microseconds(self, launch: Callable[[int], None]) -> float:
        import pycuda.driver as cuda

        with self._executor.context:
            for i in range(6):
                launch(i)
            marks = [(cuda.Event(), cuda.Event()) for _ in range(BATCHES)]
            count = 0
            for begin, end in marks:
                begin.record()
                for _ in range(BATCH):
                    launch(count)
                    count += 1
                end.record()
            self._executor.context.synchronize()
            return statistics.median(begin.time_till(end) for begin, end in marks) * 1000 / BATCH


def binding_of(record: PassRecord, extents: dict[str, int], dtype: str, dtypes: dict[str, str]) -> Binding:
    """Contiguous arrays of the given lengths; every operand present, every result wanted."""
    operands = {}
    for tensor in (*record.reads, *record.writes):
        strides, step = {}, 1
        for axis in reversed([a for dim in tensor.dims for a in dim]):
            strides[axis] = step
            step *= extents[axis]
        name = tensor.dtype or dtypes.get(tensor.name, dtype)
        operands[tensor.name] = Operand(name, tuple(reversed(strides.items())), 16)
    return Binding(tuple(extents.items()), tuple(operands.items()))


class Prepared:
    """A pass with its launches compiled and as many sets of buffers as keep the caches cold."""

    def __init__(
        self, executor: CudaExecutor, package: Any, direction: str, extents: dict[str, int], dtype: str
    ) -> None:
        record = getattr(package, direction)
        binding = binding_of(record, extents, dtype, {})
        self.executor = executor
        self.plan = plan_launches(record, binding, executor.device, package.header)
        call = Call(binding, executor.device, package.header)
        self.schedules = [schedule_rows(kernel, call)[0] for kernel in record.strategies[0].kernels]
        shapes = {
            t.name: tuple(extents[a] for dim in t.dims for a in dim) for t in (*record.reads, *record.writes)
        }
        operands = dict(binding.operands)
        self.bytes = sum(prod(shapes[n]) * DTYPES[o.dtype].bytes for n, o in operands.items())
        self.sets = max(2, min(64, ROTATION_BYTES // self.bytes + 1))
        rng = np.random.default_rng(0)
        scratch = {n: executor.context.allocate(4 * prod(shape)) for n, shape, _ in self.plan.workspace}
        self._keep: list[Any] = [scratch]
        self._packed: list[list[bytes]] = []
        for _ in range(self.sets):
            memory = dict(scratch)
            for n, o in operands.items():
                memory[n] = executor.context.allocate(prod(shapes[n]) * DTYPES[o.dtype].bytes)
                if any(t.name == n for t in record.reads):
                    executor.context.copy_in(memory[n].pointer, _random(rng, shapes[n], o.dtype, n))
            self._keep.append(memory)
            self._packed.append([self._pack(launch, memory) for launch in self.plan.launches])
        self._functions = [executor.function(x.source, x.entry, x.shared) for x in self.plan.launches]

    def _pack(self, launch: Launch, memory: dict[str, Any]) -> bytes:
        values = [
            (memory[v.name].pointer if v.kind == "pointer" else 1e-6) if isinstance(v, Slot) else v
            for v in launch.values
        ]
        return struct.pack(launch.format, *values)

    def run(self, k: int) -> None:
        packed = self._packed[k % self.sets]
        for function, launch, arguments in zip(self._functions, self.plan.launches, packed, strict=True):
            self.executor.launch(function, launch, arguments)

    def run_first(self, k: int) -> None:
        self.executor.launch(self._functions[0], self.plan.launches[0], self._packed[k % self.sets][0])

    def reports(self) -> list[Any]:
        return [self.executor.report(f) for f in self._functions]


_TILE: dict[tuple[str, int], np.ndarray[Any, Any]] = {}


def _random(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, name: str) -> np.ndarray[Any, Any]:
    """Random data; large arrays repeat a tile of 16 Mi values, which no cache holds either."""
    count = prod(shape)
    key = (dtype, min(count, 1 << 24))
    if name in ("mu", "rstd"):
        return (np.abs(rng.standard_normal(count)) * 0.1 + 0.9).astype(DTYPES[dtype].numpy)
    if key not in _TILE:
        _TILE[key] = rng.standard_normal(key[1], dtype=np.float32).astype(DTYPES[dtype].numpy)
    return np.resize(_TILE[key], count)


class Ceiling:
    """The fastest of several copies or triads, by bytes moved."""

    def __init__(self, executor: CudaExecutor, timer: Timer) -> None:
        self._executor, self._timer = executor, timer
        self._known: dict[tuple[str, int], float] = {}

    def microseconds(self, kind: str, total: int) -> float:
        """`kind`: copy or triad; `total`: bytes read and written."""
        if (kind, total) not in self._known:
            self._known[kind, total] = min(
                self._measure(kind, total, words, threads)
                for words, threads in ((1, 256), (1, 1024), (2, 256), (2, 1024), (4, 128), (4, 256))
            )
        return self._known[kind, total]

    def _measure(self, kind: str, total: int, words: int, threads: int) -> float:
        arrays = 2 if kind == "copy" else 3
        each = total // arrays // 16
        sets = max(2, min(64, ROTATION_BYTES // total + 1))
        memory = [[self._executor.context.allocate(each * 16) for _ in range(arrays)] for _ in range(sets)]
        source = f"#define WORDS {words}\n" + CEILING.read_text()
        function = self._executor.function(source, kind, 0)
        grid = (-(-each // (words * threads)), 1, 1)
        packed = [struct.pack("P" * arrays + "q", *(m.pointer for m in row), each) for row in memory]
        launch = Launch(source, kind, grid, (threads, 1, 1), 0, "", (), (), ())
        return self._timer.microseconds(lambda i: self._executor.launch(function, launch, packed[i % sets]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("specs", nargs="+")
    parser.add_argument("--shapes", default="32768x1024,32768x4096,8192x16384")
    parser.add_argument("--dtypes", default="bf16")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    executor = CudaExecutor(0)
    timer = Timer(executor)
    ceiling = Ceiling(executor, timer)
    rows = []
    for spec in given.specs:
        package = normgen.load(spec).package
        for shape in given.shapes.split(","):
            length, width = map(int, shape.split("x"))
            for dtype in given.dtypes.split(","):
                for direction in ("forward", "backward"):
                    p = Prepared(executor, package, direction, {"...": length, "D": width}, dtype)
                    us, first = timer.microseconds(p.run), timer.microseconds(p.run_first)
                    top = ceiling.microseconds("copy" if direction == "forward" else "triad", p.bytes)
                    s, report = p.schedules[0], p.reports()[0]
                    rows.append(
                        {
                            "op": spec, "direction": direction, "shape": [length, width], "dtype": dtype,
                            "us": round(us, 2), "main_us": round(first, 2), "bytes": p.bytes,
                            "ceiling_us": round(top, 2),
                            "rho": round(top / us, 4), "form": s.form, "team": s.team, "teams": s.teams,
                            "elements": s.items * s.vector, "blocks": s.blocks, "stages": s.stages,
                            "registers": report.registers, "spilled": report.local,
                        }
                    )  # fmt: skip
                    print(" ".join(f"{v}" for v in rows[-1].values()), flush=True)
                    del p
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        device = {"name": executor.device.name, "arch": executor.device.arch}
        given.out.write_text(json.dumps({"device": device, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
