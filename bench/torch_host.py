"""Host time of a call from PyTorch, in microseconds, beside PyTorch's own norm. Nothing waits for a kernel.

`python bench/torch_host.py --out FILE.csv` times RMSNorm and a batch norm on a GPU, without gradients and
through autograd, by each launcher. All calls take turns, so that what else the machine does falls on each
alike. A row has the least and the middle of many batches.
"""

from __future__ import annotations

import argparse
import csv
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from commits import commit_of_tree

import normgen.torch as nt
from normgen.torch.native import EXTENSION

CALLS, BATCHES = 50, 60
ROWS, COLUMNS = 64, 4096  # small, so that the device is never what is waited for
IMAGES = (8, 64, 14, 14)
TIMES = ("least_us", "median_us", "pytorch_least_us", "pytorch_median_us")
FIELDS = ("device", "launcher", "call", *TIMES, "commit")


def calls() -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """By name: a call of normgen, and PyTorch's that does the same."""
    x = torch.randn(ROWS, COLUMNS, device="cuda", dtype=torch.bfloat16)
    w, dy = torch.ones(COLUMNS, device="cuda", dtype=torch.bfloat16), torch.randn_like(x)
    trained = x.clone().requires_grad_(), w.clone().requires_grad_()
    function, module = nt.load("rmsnorm"), nt.nn.RMSNorm(COLUMNS, eps=1e-6, device="cuda", dtype=x.dtype)
    their_module = torch.nn.RMSNorm(COLUMNS, eps=1e-6, device="cuda", dtype=x.dtype)

    def theirs(x: Any, w: Any) -> Any:
        return torch.nn.functional.rms_norm(x, (COLUMNS,), w, 1e-6)

    def gradients(norm: Callable[[Any, Any], Any]) -> Callable[[], Any]:
        return lambda: torch.autograd.grad(norm(*trained), trained, dy)

    def backward(norm: Callable[[Any, Any], Any]) -> Callable[[], Any]:
        for _ in range(3):  # the first is recorded in Python, where calls are prepared
            y = norm(*trained)
        return lambda: torch.autograd.grad(y, trained, dy, retain_graph=True)

    def alone(call: Callable[[], Any]) -> Callable[[], Any]:
        """Without the thread that autograd has for a device, to which each call is handed over and back."""

        def in_this_thread() -> Any:
            with torch.autograd.set_multithreading_enabled(False):
                return call()

        return in_this_thread

    images = torch.randn(IMAGES, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    cotangent = torch.randn_like(images)
    batches = [home.BatchNorm2d(IMAGES[1], device="cuda") for home in (nt.nn, torch.nn)]

    def step(norm: Any) -> Callable[[], Any]:
        return lambda: torch.autograd.grad(norm(images), (images, norm.weight, norm.bias), cotangent)

    def without(module: Any) -> Callable[[], Any]:
        def call() -> Any:
            with torch.no_grad():
                return module(x)

        return call

    return {
        "forward without gradients": (lambda: function(x, w), lambda: theirs(x, w)),
        "module without gradients": (without(module), without(their_module)),
        "forward, recorded": (lambda: function(*trained), lambda: theirs(*trained)),
        "forward and backward": (gradients(function), gradients(theirs)),
        "backward": (backward(function), backward(theirs)),
        "backward, in the caller's thread": (alone(backward(function)), alone(backward(theirs))),
        "batch norm, recorded": (lambda: batches[0](images), lambda: batches[1](images)),
        "batch norm, forward and backward": (step(batches[0]), step(batches[1])),
    }


def measured(without_extension: bool) -> Iterator[dict[str, Any]]:
    """A row for each call."""
    if without_extension:
        EXTENSION.fault = "it is left out"
    elif EXTENSION.build() is None:
        print(f"without the extension in C++: {EXTENSION.fault}", file=sys.stderr)
    pairs = calls()
    seen: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in pairs}
    for _ in range(BATCHES):
        for name, pair in pairs.items():
            for call, times in zip(pair, seen[name], strict=True):
                times.append(_batch(call))
    for name, (ours, theirs) in seen.items():
        times = [of(batches) for batches in (ours, theirs) for of in (min, statistics.median)]
        found = {key: round(value, 2) for key, value in zip(TIMES, times, strict=True)}
        yield {"device": torch.cuda.get_device_name(), "call": name, **found}


def _batch(call: Callable[[], Any]) -> float:
    call()
    torch.cuda.synchronize()
    gc.disable()
    begin = time.perf_counter()
    for _ in range(CALLS):
        call()
    took = time.perf_counter() - begin
    gc.enable()
    torch.cuda.synchronize()
    return took / CALLS * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--launchers", default="pycuda,cuda-bindings", help="by comma; each in turn")
    parser.add_argument("--out", type=Path, help="a CSV file to write")
    parser.add_argument("--commit", default="", help="of the tree, where git cannot tell")
    parser.add_argument("--one", action="store_true", help="print what this process measures, as JSON")
    parser.add_argument("--without-extension", action="store_true", help="leave out what is in C++")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(list(measured(options.without_extension))))
        return
    commit = options.commit or commit_of_tree()
    rows = []
    for launcher in options.launchers.split(","):
        # A process for each: what a launcher has loaded is lost where another takes its place.
        command = [sys.executable, __file__, "--one"]
        if options.without_extension:
            command.append("--without-extension")
        told = subprocess.run(
            command, env={**os.environ, "NORMGEN_LAUNCHER": launcher}, stdout=subprocess.PIPE, check=True
        )
        for row in json.loads(told.stdout):
            rows.append({**row, "launcher": launcher, "commit": commit})
            ratio = row["median_us"] / row["pytorch_median_us"]
            print(
                f"{launcher:14} {row['call']:32} {row['least_us']:8.2f} {row['median_us']:8.2f}   "
                f"PyTorch {row['pytorch_least_us']:8.2f} {row['pytorch_median_us']:8.2f}   {ratio:5.2f}"
            )
    if options.out:
        with options.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
