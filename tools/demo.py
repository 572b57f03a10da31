"""`make demo`: compile a spec, import the module that comes out, run it both ways, and compare with float64.

The truth is written out here by hand, in NumPy, so that nothing of normgen checks itself.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import ml_dtypes
import numpy as np

from normgen.cli.table import print_columns
from normgen.errors import MachineError

ROOT = Path(__file__).parent.parent
SPEC = ROOT / "specs" / "rmsnorm.norm"
OUTPUT = ROOT / "demo-output"
ROWS, COLUMNS, EPS = 64, 4096, 1e-6
DTYPES = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


def main() -> int:
    """Returns the exit code: 0 where every error is as small as the element type allows."""
    command = ["compile", str(SPEC.relative_to(ROOT)), "-o", OUTPUT.name]
    print("$ normgen", *command, flush=True)
    done = subprocess.run([sys.executable, "-m", "normgen", *command], cwd=ROOT, check=False)
    if done.returncode:
        return done.returncode
    module = load(OUTPUT / f"{SPEC.stem}.py")
    lines, right = [], True
    for dtype in DTYPES:
        try:
            results = run(module, dtype)
        except MachineError as fault:
            print(fault, file=sys.stderr)
            return fault.exit_code
        for name, got, truth in results:
            line, good = compare(got, truth)
            lines.append((str(dtype), name, str(got.dtype), *line, "" if good else "TOO LARGE"))
            right &= good
    print(
        f"\nErrors on {ROWS} x {COLUMNS}, against float64. An ulp is the distance between neighbours at the"
    )
    print("largest value; storing a result rounds it by up to half of one.\n")
    headings = ("INPUT", "RESULT", "DTYPE", "LARGEST", "ERROR", "ULPS", "CORRECTLY ROUNDED", "")
    print_columns(headings, lines, right=headings[3:7])
    print(
        f"\nThe module is {OUTPUT.name}/{SPEC.stem}.py: the mathematics and the CUDA text are in it to read."
    )
    return 0 if right else 1


def compare(got: np.ndarray, truth: np.ndarray) -> tuple[tuple[str, ...], bool]:
    """The cells of one line of the table, and whether the error is as small as the element type allows."""
    largest = np.abs(truth).max()
    worst = np.abs(got.astype(np.float64) - truth).max()
    bits = int(ml_dtypes.finfo(got.dtype).nmant)
    ulps = worst / 2.0 ** (np.floor(np.log2(largest)) - bits)
    equal = np.mean(got == truth.astype(np.float32).astype(got.dtype))
    allowed = 8 if got.dtype == np.float32 else 0.6
    return (f"{largest:.4g}", f"{worst:.2g}", f"{ulps:.2f}", f"{equal:.1%}"), bool(ulps < allowed)


def load(path: Path) -> ModuleType:
    """Import a module from its file."""
    found = importlib.util.spec_from_file_location(path.stem, path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[path.stem] = module
    found.loader.exec_module(module)
    return module


def run(module: ModuleType, dtype: np.dtype) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """(name, what the kernels made, the truth in float64) of every result, on random input."""
    random = np.random.default_rng(0)
    x = random.standard_normal((ROWS, COLUMNS)).astype(dtype)
    w = random.uniform(0.5, 1.5, COLUMNS).astype(dtype)
    dy = random.standard_normal((ROWS, COLUMNS)).astype(dtype)

    forward = module.forward(x, w, eps=EPS)
    backward = module.backward(dy=dy, x=x, w=w, rstd=forward.rstd, eps=EPS)

    x64, w64, dy64 = (array.astype(np.float64) for array in (x, w, dy))
    rstd = 1 / np.sqrt((x64**2).mean(axis=1, keepdims=True) + EPS)
    g = dy64 * w64
    dx = rstd * (g - x64 * rstd**2 * (g * x64).mean(axis=1, keepdims=True))
    dw = (dy64 * x64 * rstd).sum(axis=0)
    return [
        ("y", forward.y, x64 * rstd * w64),
        ("rstd", forward.rstd, rstd[:, 0]),
        ("dx", backward.dx, dx),
        ("dw", backward.dw, dw),
    ]


if __name__ == "__main__":
    sys.exit(main())
