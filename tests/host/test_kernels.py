"""Sound kernels run on the host executor: right values, no false alarms, the same bits in any order."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest

from normgen.devices.host.executor import HostExecutor
from normgen.launching.launch import Buffer, Launch
from tests.host.harness import read, run, update, write
from tests.host.sound import SOUND, kernel, normal
from tests.memory import sparse

ELEMENTS = {"float": np.float32, "__half": np.float16, "__nv_bfloat16": ml_dtypes.bfloat16}
ORDERS = [(0, 0), (1, 0), (2, 1), (2, 2)]


def executors() -> list[HostExecutor]:
    return [HostExecutor(), HostExecutor(contracted=True)] + [HostExecutor(True, *order) for order in ORDERS]


def forward(
    executor: HostExecutor,
    x: np.ndarray,
    w: np.ndarray,
    b: np.ndarray,
    y: np.ndarray | None = None,
    element: str = "float",
    threads: int = 64,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Layer normalization of rows: y, mu and rstd."""
    rows, n = x.shape
    made = (np.empty_like(x) if y is None else y, np.zeros(rows, np.float32), np.zeros(rows, np.float32))
    given = (*map(read, (x, w, b)), *map(write, made), rows, 1e-5)
    run(executor, kernel("forward", element, n, threads), "forward", rows, threads, *given)
    return made


@pytest.mark.parametrize(
    ("element", "n", "threads"),
    [
        ("float", 8, 32),
        ("float", 1000, 128),
        ("float", 4096, 256),
        ("__half", 1000, 64),
        ("__nv_bfloat16", 1000, 128),
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
        y, mu, r = forward(executor, x, w, b, None, element, threads)
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


def test_cluster_reads_its_peers_shared_memory() -> None:
    x = normal(2, 4096)
    for executor in executors():
        y = np.empty_like(x)
        SOUND["cluster"].run(executor, "", read(x), write(y), 4096, 1e-5)
        np.testing.assert_allclose(
            y, x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True)), atol=1e-4
        )


def test_last_block_adds_what_all_released() -> None:
    x = normal(100, 64)
    for executor in executors():
        parts, out, counter = np.empty((8, 64), np.float32), np.empty(64, np.float32), np.zeros(1, np.uint32)
        SOUND["last_block"].run(executor, "", read(x), write(parts), write(out), update(counter), 100, 64)
        np.testing.assert_allclose(out, x.sum(0), atol=1e-4)
        assert counter[0] == 0


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 20])
def test_pipeline_of_asynchronous_copies(rows: int) -> None:
    x = normal(rows, 64, 4)
    for executor in executors():
        y = np.empty_like(x)
        SOUND["pipeline"].run(executor, "", read(x), write(y), rows)
        np.testing.assert_array_equal(y, 2 * x)


def test_tile_exchanged_after_asynchronous_copies() -> None:
    x = normal(4, 64)
    for executor in executors():
        y = np.empty_like(x)
        SOUND["exchange"].run(executor, "", read(x), write(y), 4)
        np.testing.assert_array_equal(y, x[:, ::-1])


def test_barriers_of_warps_and_of_some_warps() -> None:
    x = normal(128)
    for executor in executors():
        y = np.empty_like(x)
        SOUND["pairs"].run(executor, "", read(x), write(y))
        np.testing.assert_array_equal(y, x.reshape(2, 64)[:, ::-1].ravel())
        y = np.empty(32, np.float32)
        SOUND["warp"].run(executor, "", read(x[:32]), write(y))
        np.testing.assert_array_equal(y, x[31::-1])


def test_lock_handed_from_block_to_block() -> None:
    for executor in (HostExecutor(), HostExecutor(True)):
        turn, y = np.zeros(1, np.int32), np.zeros(1, np.float32)
        SOUND["lock"].run(executor, "", update(turn), update(y))
        assert (turn[0], y[0]) == (4, 4)


def test_in_place() -> None:
    x, w, b = normal(4, 512), normal(512), normal(512)
    separate, _, _ = forward(HostExecutor(True), x, w, b)
    both, _, _ = forward(HostExecutor(True), x, w, b, y=x)
    np.testing.assert_array_equal(separate, both)


def test_traffic_is_counted() -> None:
    rows, n = 6, 512
    executor = HostExecutor(True)
    forward(executor, normal(rows, n), normal(n), normal(n))
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


@pytest.mark.parametrize("checked", [False, True])
def test_more_than_two_to_the_31_elements(checked: bool) -> None:
    n = 1000
    rows = 2**31 // n + 50
    x, y = sparse((rows, n), np.float32), sparse((rows, n), np.float32)
    x[-2:] = normal(2, n)
    w, b = np.ones(n, np.float32), np.zeros(n, np.float32)
    _, mu, r = forward(HostExecutor(checked, blocks=slice(-2, None)), x, w, b, y, threads=128)
    np.testing.assert_allclose(mu[-2:], x[-2:].mean(1), atol=1e-5)
    assert not mu[:-2].any()
    np.testing.assert_allclose(y[-1], (x[-1] - mu[-1]) * r[-1], atol=1e-5)


def test_executors_may_be_shared_between_threads() -> None:
    executor = HostExecutor(True)
    x, w, b = normal(3, 512), normal(512), normal(512)

    def call(threads: int) -> bytes:
        return forward(executor, x, w, b, threads=threads)[0].tobytes()

    sizes = [32, 64, 128] * 4
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(call, sizes))
    for (size, bits), (other, other_bits) in itertools.combinations(zip(sizes, together, strict=True), 2):
        assert size != other or bits == other_bits
