"""Sound kernels with their calls, and faults to plant in them, one at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from normgen.devices.host.executor import HostExecutor
from tests.host import standins
from tests.host.harness import read, run, update, write

ROWS, N, THREADS = 4, 1000, 128  # 250 vectors for 128 threads: the last round is partial
RANDOM = np.random.default_rng(3)


def normal(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape, dtype=np.float32)


def run_forward(executor: HostExecutor, source: str, x: np.ndarray | None = None) -> None:
    w, b, y = normal(N), normal(N), np.empty((ROWS, N), np.float32)
    x = normal(ROWS, N) if x is None else x
    mu, rstd = np.empty(ROWS, np.float32), np.empty(ROWS, np.float32)
    run(
        executor,
        source,
        "forward",
        ROWS,
        THREADS,
        read(x),
        read(w),
        read(b),
        write(y),
        write(mu),
        write(rstd),
        ROWS,
        1e-5,
    )


def run_backward(executor: HostExecutor, source: str) -> None:
    dx, parts = np.empty((ROWS, N), np.float32), np.empty((2, N), np.float32)
    run(
        executor,
        source,
        "backward",
        2,
        THREADS,
        read(normal(ROWS, N)),
        read(normal(N)),
        read(normal(ROWS, N)),
        read(normal(ROWS)),
        write(dx),
        write(parts),
        ROWS,
    )


def run_finalise(executor: HostExecutor, source: str, shared: int = standins.TILE_BYTES) -> None:
    dw = np.empty(N, np.float32)
    run(executor, source, "finalise", -(-N // 32), 256, read(normal(16, N)), write(dw), 16, shared=shared)


def run_cluster(executor: HostExecutor, source: str) -> None:
    y = np.empty((2, 4096), np.float32)
    run(executor, source, "cluster", 8, 128, read(normal(2, 4096)), write(y), 4096, 1e-5, cluster=4)


def run_last_block(executor: HostExecutor, source: str) -> None:
    parts, out, counter = np.empty((8, 64), np.float32), np.empty(64, np.float32), np.zeros(1, np.uint32)
    x = normal(32, 64)
    run(executor, source, "last_block", 8, 64, read(x), write(parts), write(out), update(counter), 32, 64)


def run_lock(executor: HostExecutor, source: str) -> None:
    run(executor, source, "lock", 4, 32, update(np.zeros(1, np.int32)), update(np.zeros(1, np.float32)))


def run_ring(executor: HostExecutor, source: str) -> None:
    x, y = normal(12, 64, 4), np.empty((12, 64, 4), np.float32)
    run(executor, source, "ring", 3, 64, read(x), write(y), 12, shared=standins.RING_BYTES)


def run_exchange(executor: HostExecutor, source: str) -> None:
    run(
        executor,
        source,
        "exchange",
        1,
        64,
        read(normal(4, 64)),
        write(np.empty((4, 64), np.float32)),
        4,
        shared=256,
    )


def run_pairs(executor: HostExecutor, source: str) -> None:
    run(executor, source, "pairs", 1, 128, read(normal(128)), write(np.empty(128, np.float32)))


def run_warp(executor: HostExecutor, source: str) -> None:
    run(executor, source, "warp", 1, 32, read(normal(32)), write(np.empty(32, np.float32)))


def run_accumulate(executor: HostExecutor, source: str) -> None:
    run(executor, source, "accumulate", 4, 32, read(normal(128)), update(np.zeros(1, np.float32)))


def run_accumulate_into_nothing(executor: HostExecutor, source: str) -> None:
    run(executor, source, "accumulate", 4, 32, read(normal(128)), write(np.empty(1, np.float32)))


FORWARD = standins.forward("float", N, THREADS)
BACKWARD = standins.backward("float", N, THREADS)
FINALISE = standins.finalise("float", N)
SOUND: dict[str, tuple[str, Callable[[HostExecutor, str], None]]] = {
    "forward": (FORWARD, run_forward),
    "backward": (BACKWARD, run_backward),
    "finalise": (FINALISE, run_finalise),
    "cluster": (standins.CLUSTER, run_cluster),
    "last block": (standins.LAST_BLOCK, run_last_block),
    "lock": (standins.LOCK, run_lock),
    "ring": (standins.RING, run_ring),
    "exchange": (standins.EXCHANGE, run_exchange),
    "pairs": (standins.PAIRS, run_pairs),
    "warp": (standins.WARP, run_warp),
    "accumulate": (standins.ACCUMULATE, run_accumulate),
}


@dataclass(frozen=True)
class Fault:
    """In `kernel`, `what` becomes `instead`, once. The report must say `expected` and quote `line`."""

    name: str
    kernel: str
    what: str
    instead: str
    expected: str
    line: str = ""


FAULTS = [
    Fault(
        "no barrier before a read",
        "forward",
        "__syncthreads();  // B0",
        "((void)0);  // B0",
        "race on shared memory",
    ),
    Fault(
        "no barrier before reuse",
        "forward",
        "__syncthreads();  // B1",
        "((void)0);  // B1",
        "race on shared memory",
        "partials[warp] = v",
    ),
    Fault(
        "some threads leave before a barrier",
        "forward",
        "load_row(v, x + row * N);",
        "if (threadIdx.x >= 100) return; load_row(v, x + row * N);",
        "deadlock in block",
    ),
    Fault(
        "whole warps leave before a barrier",
        "forward",
        "load_row(v, x + row * N);",
        "if (threadIdx.x >= 96) return; load_row(v, x + row * N);",
        "barrier divergence",
        "__syncthreads();  // B0",
    ),
    Fault(
        "a barrier in a branch",
        "forward",
        "const float mean = block_sum(s, partials) * (1.f / N);",
        "float mean = 0.f; if (threadIdx.x < 96) mean = block_sum(s, partials) * (1.f / N);",
        "barrier divergence",
    ),
    Fault(
        "a full-mask shuffle in a branch",
        "forward",
        "v = warp_sum(v);\n  if",
        "if ((threadIdx.x & 31) < 16) v = warp_sum(v);\n  if",
        "deadlock",
    ),
    Fault(
        "a shuffle from a lane outside the mask",
        "forward",
        "__shfl_xor_sync(0xffffffffu",
        "__shfl_xor_sync(0xffffu << (threadIdx.x & 16)",
        "which is not in mask",
        "__shfl_xor_sync(0xffffu",
    ),
    Fault(
        "lanes of one mask at different shuffles",
        "forward",
        "v = warp_sum(v);\n  if",
        "if ((threadIdx.x & 31) < 16) v = __shfl_xor_sync(0xffffffffu, v, 1);\n"
        "  else v = __shfl_xor_sync(0xffffffffu, v, 2);\n  if",
        "warp divergence",
    ),
    Fault(
        "no guard on the tail's loads",
        "forward",
        "if (c < VECTORS) {\n      Pack pack;\n      pack.words",
        "if (true) {\n      Pack pack;\n      pack.words",
        "illegal address",
        "pack.words = *reinterpret_cast",
    ),
    Fault(
        "memory named beyond the last row",
        "forward",
        "load_row(v, x + row * N);",
        "normgen_named(x + row * N, (N + 1) * sizeof(*x)); load_row(v, x + row * N);",
        "illegal address",
        "normgen_named",
    ),
    Fault(
        "padding read that nobody wrote",
        "finalise",
        "s += tile[k * 33 + (threadIdx.x & 31)]",
        "s += tile[k * 33 + (threadIdx.x & 31) + 1]",
        "uninitialised shared memory",
        "s += tile",
    ),
    Fault(
        "a static array overrun",
        "forward",
        "partials[warp] = v",
        "partials[warp + 1] = v",
        "past a static __shared__ array",
        "partials[warp + 1] = v",
    ),
    Fault(
        "the tail is not stored",
        "forward",
        "store_row(y + row * N, v);",
        "if (threadIdx.x < 120) store_row(y + row * N, v);",
        "elements of y are never written",
    ),
    Fault(
        "an input is written",
        "forward",
        "store_row(y + row * N, v);",
        "store_row(y + row * N, v); store_row((T*)x + row * N, v);",
        "write to read-only x",
    ),
    Fault(
        "every thread stores one element",
        "forward",
        "if (threadIdx.x == 0) { mu",
        "{ mu",
        "race on global memory",
        "mu[row] = mean",
    ),
    Fault(
        "an element is stored twice, with a barrier in between",
        "forward",
        "if (threadIdx.x == 0) { mu[row] = mean;",
        "if (threadIdx.x == 1) mu[row] = 0; __syncthreads(); if (threadIdx.x == 0) { mu[row] = mean;",
        "written by two threads",
    ),
    Fault(
        "an endless loop",
        "forward",
        "float v[EACH][WIDTH], gain",
        "volatile int q = 0; while (q == 0) { if (partials[0] == 5.f) q = 1; } float v[EACH][WIDTH], gain",
        "step limit",
    ),
    Fault(
        "an endless loop that touches no memory",
        "forward",
        "float s = 0.f;",
        "float s = 0.f; for (int q = 0; q < rows;) q += threadIdx.x > 2000;",
        "step limit",
    ),
    Fault(
        "32-bit overflow of an index",
        "forward",
        "const long long row = blockIdx.x;",
        "const int row = blockIdx.x; if ((row + 1) * 2000000000 == rows) return;",
        "signed integer overflow in a multiplication",
        "2000000000",
    ),
    Fault(
        "a shift too far",
        "forward",
        "const long long row = blockIdx.x;",
        "const long long row = blockIdx.x + 0 * (1 << (rows + 40));",
        "shift by",
    ),
    Fault(
        "no barrier behind the tile",
        "finalise",
        "__syncthreads();  // B2",
        "((void)0);  // B2",
        "race on shared memory",
    ),
    Fault(
        "blocks store one row of partials",
        "backward",
        "parts + (long long)blockIdx.x * N",
        "parts",
        "race on global memory",
        "parts + c * WIDTH",
    ),
    Fault(
        "no barrier of a warp",
        "warp",
        "__syncwarp();  // S0",
        "((void)0);  // S0",
        "race on shared memory",
        "tile[31 - threadIdx.x]",
    ),
    Fault(
        "no barrier of some warps",
        "pairs",
        "normgen_named_barrier(pair + 1, 64);",
        "((void)0);",
        "race on shared memory",
    ),
    Fault("a named barrier waits for too many", "pairs", "(pair + 1, 64)", "(pair + 1, 96)", "deadlock"),
    Fault("two groups at one named barrier", "pairs", "(pair + 1, 64)", "(1, 64)", "race on shared memory"),
    Fault(
        "no fence before the counter",
        "last block",
        "__threadfence();  // F0",
        "((void)0);  // F0",
        "race on global memory",
    ),
    Fault(
        "no barrier before the counter",
        "last block",
        "__syncthreads();  // B0",
        "((void)0);  // B0",
        "race on global memory",
    ),
    Fault(
        "no barrier behind the counter",
        "last block",
        "__syncthreads();  // B1",
        "((void)0);  // B1",
        "shared memory",
    ),
    Fault(
        "a lock without a fence",
        "lock",
        "__threadfence();  // F0",
        "((void)0);  // F0",
        "race on global memory",
    ),
    Fault(
        "no cluster barrier before a remote read",
        "cluster",
        "team.sync();  // C0",
        "((void)0);  // C0",
        "remote shared memory",
    ),
    Fault(
        "no cluster barrier before the exit",
        "cluster",
        "team.sync();  // C1",
        "((void)0);  // C1",
        "may exit while a peer",
    ),
    Fault(
        "a rank too high",
        "cluster",
        "map_shared_rank(&sum, k)",
        "map_shared_rank(&sum, k + 1)",
        "no block of that rank",
    ),
    Fault(
        "no wait for a copy",
        "ring",
        "normgen_async_wait(STAGES - 1);  // W0",
        "((void)0);  // W0",
        "asynchronous copy",
    ),
    Fault("a wait for one group too few", "ring", "wait(STAGES - 1)", "wait(STAGES)", "asynchronous copy"),
    Fault(
        "a slot filled before it is read", "ring", "(slot + STAGES - 1) % STAGES", "slot", "asynchronous copy"
    ),
    Fault(
        "an exit before a copy is done",
        "exchange",
        "// B1",
        "\n normgen_async_copy(&smem[threadIdx.x], x + threadIdx.x, 4);",
        "without waiting",
    ),
    Fault(
        "no wait before the tile is shared",
        "exchange",
        "normgen_async_wait(0);  // W0",
        "((void)0);  // W0",
        "asynchronous copy",
    ),
    Fault(
        "no barrier behind the wait",
        "exchange",
        "__syncthreads();  // B0",
        "((void)0);  // B0",
        "shared memory",
    ),
    Fault(
        "no barrier before the next copy",
        "exchange",
        "__syncthreads();  // B1",
        "((void)0);  // B1",
        "shared memory",
    ),
    Fault(
        "the wait behind the barrier",
        "exchange",
        "wait(0);  // W0\n    __syncthreads();",
        "commit(); __syncthreads(); normgen_async_wait(1);",
        "race on shared memory",
    ),
]
