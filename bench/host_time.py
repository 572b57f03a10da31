"""Host time of one call, in microseconds: checked, and by a plan. Nothing here waits for a kernel.

`python bench/host_time.py` times PyTorch tensors and PyCUDA arrays, whichever is installed, on a GPU; with
`--recording`, PyCUDA arrays over the library of the tests that records launches and runs none, which shows
the share of Python and needs no GPU. Each figure is the fastest of many batches, so that other work on the
machine shows as little as can be.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import normgen
from normgen.dtypes import DTYPES

CALLS = 50  # of a batch: few enough that no queue of launches fills up
Make = Callable[..., Any]
# What a call is given, and what it writes, by name.
Arrays = Callable[[Make], tuple[dict[str, Any], dict[str, Any]]]


def rows(*results: str) -> Arrays:
    def arrays(make: Make) -> tuple[dict[str, Any], dict[str, Any]]:
        shapes = {"w": (4096,), "dw": (4096,), "rstd": (64,)}
        given = ("x", "w") if "y" in results else ("dy", "x", "w", "rstd")
        made = {
            name: make(shapes.get(name, (64, 4096)), "f32" if name == "rstd" else "bf16")
            for name in (*given, *results)
        }
        return {name: made[name] for name in given}, {name: made[name] for name in results}

    return arrays


def images(*shape: int, states: tuple[str, ...] = ()) -> Arrays:
    def arrays(make: Make) -> tuple[dict[str, Any], dict[str, Any]]:
        given = {name: make((shape[1],), "f32") for name in ("w", "b", *states)}
        return {"x": make(shape, "bf16"), **given}, {"y": make(shape, "bf16")}

    return arrays


CASES: tuple[tuple[str, str, dict[str, int], Arrays], ...] = (
    ("rmsnorm", "forward", {}, rows("y", "rstd")),
    ("rmsnorm", "backward", {}, rows("dx", "dw")),
    ("layernorm2d", "forward", {}, images(8, 96, 14, 14)),
    ("groupnorm", "forward", {"groups": 32}, images(8, 320, 16, 16)),
    ("batchnorm", "forward", {}, images(8, 64, 14, 14, states=("running_mean", "running_var"))),
)


def torch_arrays() -> tuple[Make, Callable[[], None]]:
    import torch

    def make(shape: tuple[int, ...], dtype: str) -> Any:
        return torch.zeros(shape, dtype=getattr(torch, DTYPES[dtype].numpy_name), device="cuda")

    return make, torch.cuda.synchronize


def pycuda_arrays() -> tuple[Make, Callable[[], None]]:
    import pycuda.autoinit  # noqa: F401
    from pycuda import driver, gpuarray

    return lambda shape, dtype: gpuarray.GPUArray(shape, DTYPES[dtype].numpy), driver.Context.synchronize


LIBRARIES = {"torch": torch_arrays, "pycuda": pycuda_arrays}


def microseconds(run: Callable[[], Any], wait: Callable[[], None], batches: int) -> float:
    """The time of one call in the fastest batch."""
    best = float("inf")
    gc.disable()
    try:
        for _ in range(batches):
            run()
            wait()
            begin = time.perf_counter_ns()
            for _ in range(CALLS):
                run()
            best = min(best, (time.perf_counter_ns() - begin) / CALLS / 1000)
            wait()
    finally:
        gc.enable()
    return best


def measure(library: str, batches: int) -> Iterator[str]:
    """A line of the table for every case."""
    make, wait = LIBRARIES[library]()
    for spec, direction, attrs, arrays in CASES:
        norm = normgen.load(spec, **attrs)
        given, out = arrays(make)
        save = {} if direction == "backward" or "rstd" in out else {"save": False}
        call = getattr(norm, direction)
        plan = norm.plan(direction, **given, **save, out=out)
        in_order = [given[name] for name in plan.args]
        checked = microseconds(lambda: call(**given, **save, out=out), wait, batches)  # noqa: B023
        planned = microseconds(lambda: plan(*in_order), wait, batches)  # noqa: B023
        yield f"{library:8} {spec:12} {direction:9} {checked:8.2f} {planned:8.2f}"


def on_recording_library(arguments: list[str]) -> int:
    """Run this program where libcuda records."""
    from tests.fakes import machine

    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        machine.build(root / "lib")
        machine.Machine(root, "pycuda").nvcc()
        settings = {
            **os.environ,
            "LD_LIBRARY_PATH": str(root / "lib"),
            "CUDA_HOME": str(root / "cuda"),
            "NORMGEN_CACHE_DIR": str(root / "cache"),
        }
        settings.pop("FAKE_CUDA_LOG", None)
        command = [sys.executable, __file__, "--libraries", "pycuda", *arguments]
        return subprocess.run(command, env=settings, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--recording", action="store_true", help="without a GPU, over a library that records")
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--libraries", nargs="+", choices=LIBRARIES)
    options = parser.parse_args()
    if options.recording:
        return on_recording_library(["--batches", str(options.batches)])
    installed = [name for name in LIBRARIES if importlib.util.find_spec(name) is not None]
    print(f"{'library':8} {'spec':12} {'direction':9} {'checked':>8} {'plan':>8}   us a call")
    for library in options.libraries or installed:
        for line in measure(library, options.batches):
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
