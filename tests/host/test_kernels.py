"""Sound kernels run on the host executor: right values, no false alarms, the same bits in any order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from normgen.devices.host.executor import HostExecutor
from normgen.launching.launch import Buffer, Launch
from tests.host.harness import read, run, update, write
from tests.host.sound import SOUND, kernel, normal

ELEMENTS = {"float": np.float32, "__half": np.float16, "__nv_bfloat16": ml_dtypes.bfloat16}
ORDERS = [(0, 0), (1, 0), (2, 1), (2, 2)]


def executors() -> list[HostExecutor]:
    return [HostExecutor(), HostExecutor(contracted=True)] + [HostExecutor(True, *order) for order in ORDERS]


def forward(
    executor: HostExecutor,
    x: np.ndarray,
    w: np.ndarray,
    b: np.ndarray,
    element: str = "float",
    threads: int = 64,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Layer normalization of rows: y, mu and rstd."""
    rows, n = x.shape
    made = (np.empty_like(x), np.zeros(rows, np.float32), np.zeros(rows, np.float32))
    given = (*map(read, (x, w, b)), *map(write, made), rows, 1e-5)
    run(executor, kernel("forward", element, n, threads), "forward", rows, threads, *given)
    return made


@pytest.mark.parametrize(
    ("element", "n", "threads"),
    [
        ("float", 1000, 128),
        ("__half", 1000, 64),
        ("__nv_bfloat16", 8, 32),
    ],
)
def test_forward(element: str, n: int, threads: int) -> None:
    rows, dtype = 5, ELEMENTS[element]
    x, w, b = normal(rows, n, dtype=dtype), normal(n, dtype=dtype), normal(n, dtype=dtype)
    exact = x.astype(np.float64)
    centred = exact - exact.mean(-1, keepdims=True)
    rstd = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    expected = centred * rstd * w.astype(np.float64) + b.astype(np.float64)
    ulp = float(ml_dtypes.finfo(dtype).eps)
    results = set()
    for executor in executors():
        y, mu, r = forward(executor, x, w, b, element, threads)
        np.testing.assert_allclose(y.astype(np.float64), expected, rtol=ulp, atol=max(ulp, 1e-6) * 4)
        np.testing.assert_allclose(r, rstd[:, 0], rtol=1e-6)
        if not executor.contracted:
            results.add(y.tobytes() + mu.tobytes() + r.tobytes())
    assert len(results) == 1  # plain and checked, in any order


def test_backward_and_second_stage() -> None:
    rows, n, threads, grid = 7, 1000, 128, 3
    x, w, dy = normal(rows, n), normal(n), normal(rows, n)
    rstd = (1 / np.sqrt((x.astype(np.float64) ** 2).mean(-1))).astype(np.float32)
    normalised = x.astype(np.float64) * rstd[:, None].astype(np.float64)
    g = dy.astype(np.float64) * w
    expected = rstd[:, None] * (g - normalised * (g * normalised).mean(-1, keepdims=True))
    results = set()
    for executor in executors():
        dx, parts, dw = np.empty_like(x), np.empty((grid, n), np.float32), np.empty_like(w)
        given = (*map(read, (x, w, dy, rstd)), write(dx), write(parts), rows)
        run(executor, kernel("backward", n=n, threads=threads), "backward", grid, threads, *given)
        SOUND["second_stage"].run(executor, "", read(parts), write(dw), grid)
        np.testing.assert_allclose(dx, expected, atol=1e-5)
        np.testing.assert_allclose(dw, (dy * normalised).sum(0), atol=1e-5)
        if not executor.contracted:
            results.add(dx.tobytes() + dw.tobytes())
    assert len(results) == 1


def test_quantise_with_atomics() -> None:
    rows, n = 3, 256
    x = normal(rows, n) * 50
    for executor in executors():
        y, largest = np.empty((rows, n), ml_dtypes.float8_e4m3fn), np.zeros(1, np.float32)
        given = (read(x), write(y), update(largest), 8.0)
        run(executor, kernel("quantise", n=n, threads=64), "quantise", rows, 64, *given)
        expected = np.clip(x * np.float32(8), -448, 448).astype(ml_dtypes.float8_e4m3fn)
        np.testing.assert_array_equal(y.view(np.uint8), expected.view(np.uint8))
        assert largest[0] == np.abs(x).max()


# A kernel that writes an array like the one it reads: the shape, what it writes, and its further arguments.
WRITTEN: list[tuple[str, tuple[int, ...], Callable[[Any], Any], tuple[Any, ...]]] = [
    ("cluster", (2, 4096), lambda x: x / np.sqrt((x**2).mean(-1, keepdims=True)), (4096, 1e-5)),
    *(("pipeline", (rows, 64, 4), lambda x: 2 * x, (rows,)) for rows in (1, 2, 20)),
    ("exchange", (4, 64), lambda x: x[:, ::-1], (4,)),
    ("pairs", (128,), lambda x: x.reshape(2, 64)[:, ::-1].ravel(), ()),
    ("warp", (32,), lambda x: x[::-1], ()),
]


@pytest.mark.parametrize(("name", "shape", "expected", "rest"), WRITTEN)
def test_threads_exchange_values(
    name: str, shape: tuple[int, ...], expected: Callable[[Any], Any], rest: tuple[Any, ...]
) -> None:
    x = normal(*shape)
    for executor in executors():
        y = np.empty_like(x)
        SOUND[name].run(executor, "", read(x), write(y), *rest)
        np.testing.assert_allclose(y, expected(x.astype(np.float64)), atol=1e-4 if name == "cluster" else 0)


def test_blocks_add_what_all_released() -> None:
    x = normal(100, 64)
    for executor in executors():
        parts, out, counter = np.empty((8, 64), np.float32), np.empty(64, np.float32), np.zeros(1, np.uint32)
        SOUND["last_block"].run(executor, "", read(x), write(parts), write(out), update(counter), 100, 64)
        np.testing.assert_allclose(out, x.sum(0), atol=1e-4)
        assert counter[0] == 0
        total = np.zeros(1, np.float32)
        SOUND["accumulate"].run(executor, "", read(x.ravel()[:128]), update(total))
        np.testing.assert_allclose(total, x.ravel()[:128].sum(), atol=1e-4)
    for executor in (HostExecutor(), HostExecutor(True)):
        turn, y = np.zeros(1, np.int32), np.zeros(1, np.float32)
        SOUND["lock"].run(executor, "", update(turn), update(y))  # handed from block to block in order
        assert (turn[0], y[0]) == (4, 4)


def test_traffic_is_counted() -> None:
    rows, n = 6, 1000
    executor = HostExecutor(True)
    forward(executor, normal(rows, n), normal(n), normal(n), threads=128)
    row, all_rows = 4 * n, 4 * n * rows
    seen = {t.name: (t.read, t.written, t.distinct_read, t.distinct_written) for t in executor.traffic}
    assert seen == {
        "x": (all_rows, 0, all_rows, 0),
        "w": (all_rows, 0, row, 0),
        "b": (all_rows, 0, row, 0),
        "y": (0, all_rows, 0, all_rows),
        "mu": (0, 4 * rows, 0, 4 * rows),
        "rstd": (0, 4 * rows, 0, 4 * rows),
    }
    assert executor.history[-1] == ("forward", executor.traffic)


def test_three_dimensional_launch_and_votes() -> None:
    for executor in executors():
        out = np.empty(2 * 3 * 2 * 64, np.int32)
        launch = Launch(kernel("indices"), "indices", (2, 3, 2), (4, 4, 4), 0, "P", (), (), ())
        function = executor.function(kernel("indices"), "indices", 0)
        buffers = (Buffer(out.ctypes.data, out.nbytes, 4, "write"),)
        executor.launch(function, launch, out.ctypes.data.to_bytes(8, "little"), buffers, 0)
        np.testing.assert_array_equal(out, np.arange(out.size))


def test_shuffles_with_widths() -> None:
    lane = np.arange(32)
    expected = [
        lane // 8 * 8 + 3,
        lane ^ 5,
        np.where(lane % 8 + 3 < 8, lane + 3, lane),
        np.where(lane % 8 >= 3, lane - 3, lane),
    ]
    out = np.empty(128, np.int32)
    run(HostExecutor(True), kernel("shuffles"), "shuffles", 1, 32, write(out))
    np.testing.assert_array_equal(out.reshape(4, 32), expected)
