"""A norm of CuPy arrays. It runs on their GPU, on CuPy's current stream, and returns CuPy arrays.

    pip install cupy-cuda13x 'normgen[cuda-bindings]'
    python examples/cupy_norm.py

No CUDA toolkit is needed. The first call compiles; later processes load the kernels from the cache.
"""

from __future__ import annotations

try:
    import cupy as cp
except ImportError as missing:
    raise SystemExit(f"this example needs CuPy: pip install cupy-cuda13x ({missing})") from None

import normgen


def forward_and_backward(x: cp.ndarray, w: cp.ndarray, dy: cp.ndarray) -> tuple[cp.ndarray, ...]:
    """LayerNorm without a bias: its output and both gradients."""
    norm = normgen.load("layernorm")
    y, mu, rstd = norm.forward(x, w, eps=1e-5)
    dx, dw, _ = norm.backward(dy=dy, x=x, w=w, mu=mu, rstd=rstd)  # no bias was given
    return y, dx, dw


def main() -> None:
    # The norm runs on CuPy's current stream.
    with cp.cuda.Stream(non_blocking=True):
        x = cp.random.standard_normal((4096, 8192)).astype(cp.float16)
        w, dy = cp.ones(8192, cp.float16), cp.ones((4096, 8192), cp.float16)
        y, dx, dw = forward_and_backward(x, w, dy)

        wide = x.astype(cp.float32)
        wanted = (wide - wide.mean(-1, keepdims=True)) / cp.sqrt(wide.var(-1, keepdims=True) + 1e-5)
        print("largest error of y:", float(cp.abs(y - wanted).max()))
    print("dx", dx.shape, dx.dtype, " dw", dw.shape, dw.dtype)


if __name__ == "__main__":
    main()
