"""`make demo`: explain and compile a spec, run the module forward and backward, and compare with float64.

The reference is written out here by hand, in NumPy, so that normgen does not check itself.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

from normgen import bundled
from normgen.cli.table import print_columns
from normgen.errors import MachineError

ROOT = Path(__file__).parent.parent
OUTPUT = "demo-output"
ROWS, COLUMNS, EPS = 64, 4096, 1e-6
DTYPES = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
NEXT = f"""
Next, to type:

  . .venv/bin/activate
  normgen new my_norm             write a spec of your own
  normgen explain rmsnorm         see its kernels and their predicted times on a GPU
  normgen check rmsnorm --quick   compare with float64 and check every memory access
  less {OUTPUT}/rmsnorm.py     read the generated module
"""


def main() -> int:
    """Returns the exit code: 0 where every error is as small as the element type allows."""
    print("The spec of RMSNorm:\n")
    print(textwrap.indent(bundled.read("rmsnorm").text, "  "))
    print("The derivative, which normgen works out (normgen explain rmsnorm --emit grad):\n")
    derived = normgen("explain", "rmsnorm", "--emit", "grad", capture_output=True, text=True).stdout
    print(textwrap.indent(derived[derived.index("gradient") :], "  "))
    print("$ normgen compile rmsnorm -o", OUTPUT, flush=True)
    done = normgen("compile", "rmsnorm", "-o", OUTPUT)
    if done.returncode:
        return done.returncode
    module = load(ROOT / OUTPUT / "rmsnorm.py")
    print(
        f"\nLargest errors of the kernels against float64, on the CPU, for {ROWS} rows of {COLUMNS} elements,"
    )
    print("in units in the last place. Rounding to the element type causes up to 0.5.\n", flush=True)
    lines, right = [], True
    for dtype in DTYPES:
        try:
            results = run(module, dtype)
        except MachineError as fault:
            print(fault, file=sys.stderr)
            return fault.exit_code
        errors = {name: ulps(got, truth) for name, got, truth in results}
        good = all(errors[name] < allowed(got.dtype) for name, got, _ in results)
        lines.append((str(dtype), *(f"{each:.2f}" for each in errors.values()), "" if good else "TOO LARGE"))
        right &= good
    print_columns(("INPUT", *errors, ""), lines, right=tuple(errors))
    print(NEXT, end="")
    return 0 if right else 1


def normgen(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """The command, from the checkout."""
    command = [sys.executable, "-m", "normgen", *arguments]
    return subprocess.run(command, cwd=ROOT, check=False, **options)


def ulps(got: np.ndarray, truth: np.ndarray) -> float:
    """The largest error, in units in the last place of the largest value."""
    worst = np.abs(got.astype(np.float64) - truth).max()
    bits = int(ml_dtypes.finfo(got.dtype).nmant)
    return float(worst / 2.0 ** (np.floor(np.log2(np.abs(truth).max())) - bits))


def allowed(dtype: np.dtype) -> float:
    """The bound on an error: sums of float32 round more than once, what is stored narrower once."""
    return 8 if dtype == np.float32 else 0.6


def load(path: Path) -> ModuleType:
    """Import a module from its file."""
    found = importlib.util.spec_from_file_location(path.stem, path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[path.stem] = module
    found.loader.exec_module(module)
    return module


def run(module: ModuleType, dtype: np.dtype) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """(name, result of the kernels, reference in float64) of every result, on random input."""
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
