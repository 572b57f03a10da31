"""Programmatic dependent launch: chains of small kernels in a CUDA graph, and backwards with a second-stage
reduction.

    python bench/dependent.py --out $OUT/dependent

One process for each way to launch: cuda-bindings without the permission to start early, and with it, and
PyCUDA, which has it too.
Every result is compared with that of the same launches one at a time, to the bit, and with float64. A chain
goes to and fro between two sets of arrays, each kernel with a weight of its own, so that what is read or
overwritten too early shows. Writes OUT.json and OUT.md; exits with 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

WAYS = {
    "cuda-bindings": ("cuda-bindings", False),
    "programmatic": ("cuda-bindings", True),
    "pycuda": ("pycuda", True),
}
KERNELS = 20  # of a chain
COLUMNS = 4096
ROWS = (1, 16, 128)
# What the next kernel of a chain takes of one, in the order of its inputs.
CHAINS = {"rmsnorm": ("y",), "add_rmsnorm": ("y", "h")}
ROUNDS = 30
BACKWARDS = tuple((name, 32768, columns) for name in ("rmsnorm", "layernorm") for columns in (512, 1024))
# Of relative l2 errors against float64: one rounding to bf16 is 2e-3 at most; a chain rounds each time.
BOUND, CHAIN_BOUND = 4e-3, 2e-2
Row = dict[str, Any]


def use(way: str) -> None:
    """Launch in this way from now on."""
    from normgen.devices.cuda import executor as cuda
    from normgen.devices.cuda.cuda_bindings import CudaBindingsDriver

    launcher, early = WAYS[way]
    cuda.use_driver("pycuda" if launcher == "pycuda" else CudaBindingsDriver(programmatic=early))
    found = cuda.executor_of(("cuda", 0)).device.programmatic
    if found != early:
        raise SystemExit(f"{way}: this device says {found} to launches that start early")


def chain(clock: Any, name: str, rows: int) -> Row:
    """Norms in a row, each of the results of the one before, as one CUDA graph."""
    import torch

    import normgen
    from normgen.measure.timing import measure

    norm, results = normgen.load(name), CHAINS[name]
    weights = [_random(COLUMNS) * 0.2 + 1 for _ in range(KERNELS)]
    start, *between = (tuple(_random(rows, COLUMNS) for _ in results) for _ in range(3))
    last = between[(KERNELS - 1) % 2]

    def link(k: int, sources: Any) -> None:
        out = dict(zip(results, between[k % 2], strict=True))
        norm.forward(*sources, weights[k % KERNELS], out=out, save=False)

    def run(each: Any = lambda: None) -> None:
        for k in range(KERNELS):
            link(k, between[(k - 1) % 2] if k else start)
            each()

    run(clock.wait)
    replay = clock.record(run)
    same, worst = True, 0.0
    for number in range(ROUNDS):
        for array in start:
            array.copy_(_random(rows, COLUMNS))
        run(clock.wait)
        expected = [array.clone() for array in last]
        for arrays in between:
            for array in arrays:
                array.fill_(float("nan"))
        replay()
        replay()
        clock.wait()
        same &= all(map(torch.equal, last, expected))
        if number == 0:
            truths = [_host(array) for array in start]
            for weight in weights:
                made = norm.reference.forward(*truths, _host(weight))
                truths = [getattr(made, result) for result in results]
            worst = max(map(_error, last, truths))
    timing = measure(clock, lambda i: link(i, between[(i - 1) % 2]), KERNELS)
    what = f"chain of {name} forwards, us a kernel"
    return _row(what, f"{rows}x{COLUMNS}", timing, same, worst, CHAIN_BOUND)


def backward(clock: Any, name: str, rows: int, columns: int) -> Row:
    """A backward with gradients of its parameters, on as many sets of arrays as keep the caches cold."""
    import torch

    import normgen
    from normgen.measure.arithmetic import sets_for
    from normgen.measure.timing import measure

    norm = normgen.load(name)
    count = sets_for(3 * rows * columns * 2, torch.cuda.get_device_properties(0).L2_cache_size)
    sets = []
    for _ in range(count):
        given = {"dy": _random(rows, columns), "x": _random(rows, columns), "w": _random(columns)}
        saved = norm.forward(given["x"], given["w"])
        given |= {n: getattr(saved, n) for n in norm.backward_args if n not in given}
        made = norm.backward(**given)
        clock.wait()
        sets.append((given, made, [gradient.clone() for gradient in made]))
    for _, made, _ in sets:
        for gradient in made:
            gradient.fill_(float("nan"))

    def run(i: int) -> None:
        given, made, _ = sets[i % count]
        norm.backward(**given, out=made._asdict())

    timing = measure(clock, run, count)
    same = all(torch.equal(g, e) for _, made, expected in sets for g, e in zip(made, expected, strict=True))
    given, made, _ = sets[0]
    truth = norm.reference.backward(**{n: _host(array) for n, array in given.items()})
    worst = max(_error(gradient, getattr(truth, n)) for n, gradient in made._asdict().items())
    return _row(f"{name} backward, us", f"{rows}x{columns}", timing, same, worst, BOUND)


def _row(what: str, size: str, timing: Any, same: bool, error: float, bound: float) -> Row:
    return {
        "what": what,
        "size": size,
        "us": timing.us,
        "method": timing.method,
        "same bits": same,
        "error": error,
        "right": same and error < bound,
    }


def _random(*shape: int) -> Any:
    import torch

    return torch.randn(shape, device="cuda", dtype=torch.float32).to(torch.bfloat16)


def _host(array: Any) -> Any:
    return array.float().cpu().numpy()


def _error(found: Any, truth: Any) -> float:
    """The l2 norm of the difference relative to that of the truth."""
    import numpy as np

    return float(np.linalg.norm(_host(found) - truth) / np.linalg.norm(truth))


def one(way: str) -> None:
    """Measure one way; a JSON line for each row."""
    import torch
    from clock import TorchClock

    torch.manual_seed(7)
    use(way)
    clock = TorchClock()
    for name in CHAINS:
        for rows in ROWS:
            print(json.dumps({"way": way, **chain(clock, name, rows)}), flush=True)
    for name, rows, columns in BACKWARDS:
        print(json.dumps({"way": way, **backward(clock, name, rows, columns)}), flush=True)


def table(rows: list[Row]) -> str:
    """Markdown: a line for each problem, a column for each way."""
    ways = list(dict.fromkeys(row["way"] for row in rows))
    lines = ["| | size | " + " | ".join(ways) + " |", "|---|---|" + "---:|" * len(ways)]
    for what, size in dict.fromkeys((row["what"], row["size"]) for row in rows):
        found = {row["way"]: row for row in rows if (row["what"], row["size"]) == (what, size)}
        cells = [_cell(found.get(way)) for way in ways]
        lines.append(f"| {what} | {size} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(row: Row | None) -> str:
    if row is None:
        return "not run"
    return f"{row['us']:.3f}" + ("" if row["right"] else f" WRONG ({row['error']:.1e})")


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--way", choices=WAYS, help="measure this one alone, and print JSON")
    given = parser.parse_args()
    if given.way:
        one(given.way)
        return
    rows, failed = [], False
    for way in WAYS:
        command = [sys.executable, __file__, "--way", way]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        rows += [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        failed |= done.returncode != 0
        print(f"{way}: exit {done.returncode}", flush=True)
    print(table(rows))
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")
        given.out.with_suffix(".md").write_text(table(rows))
    sys.exit(failed or not rows or not all(row["right"] for row in rows))


if __name__ == "__main__":
    main()
