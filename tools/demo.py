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
from rich.console import Console
from rich.table import Table

from normgen.runtime.errors import MachineError

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
    table = Table(title=f"{SPEC.stem} on {ROWS} x {COLUMNS}, against float64", title_justify="left")
    for heading in (
        "dtype",
        "array",
        "largest value",
        "largest error",
        "error, in ulps",
        "correctly rounded",
    ):
        table.add_column(heading, justify="left" if heading in ("dtype", "array") else "right")
    right = True
    for dtype in DTYPES:
        try:
            rows = errors(module, dtype)
        except MachineError as fault:
            print(fault, file=sys.stderr)
            return fault.exit_code
        for name, got, truth in rows:
            error = np.abs(got.astype(np.float64) - truth)
            # The distance between neighbours at the largest value: what an error is measured by.
            ulp = float(np.spacing(np.abs(truth).max().astype(np.float32))) * 2.0 ** (
                23 - mantissa(got.dtype)
            )
            equal = float(np.mean(got == truth.astype(np.float32).astype(got.dtype)))
            largest, worst = np.abs(truth).max(), error.max()
            right &= bool(worst / ulp < 1.0 if got.dtype != np.float32 else worst / ulp < 64.0)
            table.add_row(
                str(dtype), name, f"{largest:.4g}", f"{worst:.3g}", f"{worst / ulp:.2f}", f"{equal:.1%}"
            )
    Console().print(table)
    print(f"The module is {OUTPUT.name}/{SPEC.stem}.py: the derived mathematics and the CUDA text are in it.")
    if not right:
        print("An error is larger than it should be.", file=sys.stderr)
    return 0 if right else 1


def load(path: Path) -> ModuleType:
    """Import a module from its file."""
    found = importlib.util.spec_from_file_location(path.stem, path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[path.stem] = module
    found.loader.exec_module(module)
    return module


def errors(module: ModuleType, dtype: np.dtype) -> list[tuple[str, np.ndarray, np.ndarray]]:
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


def mantissa(dtype: np.dtype) -> int:
    """Explicit bits of the mantissa."""
    return int(ml_dtypes.finfo(dtype).nmant)


if __name__ == "__main__":
    sys.exit(main())
