"""A norm of PyCUDA arrays: results in new arrays, in existing arrays, and by a plan.

    pip install 'normgen[cuda]'    # needs a CUDA toolkit; without one: python -m tools.build_pycuda
    python examples/pycuda_norm.py

A plan checks its arguments and chooses its kernels once. If all results are given it allocates nothing, so
its calls can be captured in a CUDA graph.
"""

from __future__ import annotations

import numpy as np

try:
    import pycuda.gpuarray as gpuarray
except ImportError as missing:
    raise SystemExit(
        "this example needs PyCUDA and a CUDA driver: pip install pycuda, or without a CUDA toolkit "
        f"python -m tools.build_pycuda ({missing})"
    ) from None

import normgen


def normalize(x: gpuarray.GPUArray, w: gpuarray.GPUArray) -> gpuarray.GPUArray:
    """RMSNorm into a new array."""
    return normgen.load("rmsnorm").forward(x, w, eps=1e-6, save=False).y


def normalize_often(
    batches: list[gpuarray.GPUArray], w: gpuarray.GPUArray, y: gpuarray.GPUArray, rstd: gpuarray.GPUArray
) -> None:
    """RMSNorm of each batch, into the same arrays: read `y` between two calls."""
    plan = normgen.load("rmsnorm").plan("forward", batches[0], w, eps=1e-6, out={"y": y, "rstd": rstd})
    for x in batches:
        plan(x, w)


def main() -> None:
    import pycuda.autoprimaryctx  # noqa: F401  the context that PyTorch and CuPy share

    host = np.random.default_rng(0).standard_normal((1024, 5120), np.float32)
    x, w = gpuarray.to_gpu(host), gpuarray.to_gpu(np.ones(5120, np.float32))
    wanted = host / np.sqrt((host**2).mean(-1, keepdims=True) + 1e-6)

    y = normalize(x, w)
    print("largest error:", np.abs(y.get() - wanted).max())

    y, rstd = gpuarray.empty_like(x), gpuarray.empty(1024, np.float32)
    normalize_often([x, x], w, y, rstd)
    print("by a plan:    ", np.abs(y.get() - wanted).max())


if __name__ == "__main__":
    main()
