"""Forward, backward and a plan on NumPy arrays, without a GPU or a framework.

    python examples/numpy_norm.py

Kernels run on the CPU as C++, and every memory access is checked. This is slow, and is meant for trying and
testing. The same calls take CuPy and PyCUDA arrays, and then run on their GPU.
"""

from __future__ import annotations

import numpy as np

import normgen

SPEC = """
norm l1norm "Divide every row by its mean magnitude."
attr   eps >= 0 = 1e-6
input  x[..., D]
param  w[D] = 1
save   scale[...] = 1 / (mean[D](abs(x)) + eps)
output y[..., D] = x * scale * w
"""


def main() -> None:
    random = np.random.default_rng(0)
    x, dy = random.standard_normal((2, 32, 256), np.float32)
    w = np.ones(256, np.float32)

    # A spec is a text, the path of a file, or the name of a bundled spec.
    norm = normgen.load(SPEC)

    # The forward returns outputs, then what it saves for the backward.
    y, scale = norm.forward(x, w, eps=1e-6)
    print("y", y.shape, y.dtype, " scale", scale.shape, scale.dtype)

    # The backward is derived. It takes the gradients of the outputs and the tensors it reads, by name.
    print("the backward reads", *norm.backward_args)
    dx, dw = norm.backward(dy=dy, x=x, w=w, scale=scale)

    # Compare both with the formulas in float64.
    wide, ones = x.astype(np.float64), dy.astype(np.float64)
    magnitude = np.abs(wide).mean(-1, keepdims=True) + 1e-6
    inner = (ones * wide).mean(-1, keepdims=True) / magnitude**2
    for name, got, wanted in (
        ("y", y, wide / magnitude),
        ("dx", dx, ones / magnitude - np.sign(wide) * inner),
        ("dw", dw, (ones * wide / magnitude).sum(0)),
    ):
        print(f"{name}: largest error {np.abs(got - wanted).max():.1e}")
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)

    # A plan checks its arguments and chooses its kernels once, then writes into existing arrays.
    plan = norm.plan("forward", x, w, out={"y": y, "scale": scale})
    for batch in (x, 2 * x):
        plan(batch, w)
    np.testing.assert_allclose(y, wide / magnitude, rtol=1e-5, atol=1e-5)  # scaling rows changes nothing


if __name__ == "__main__":
    main()
