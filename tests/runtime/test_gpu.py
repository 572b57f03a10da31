"""The runtime on a real device, where there is one: what an imitation cannot show."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from normgen import arrays
from normgen.arrays.device_array import DeviceArray
from normgen.devices.cuda import executor as cuda
from normgen.devices.cuda.executor import CudaExecutor
from normgen.errors import DriverError, MachineError
from normgen.launching.launch import Launch
from tests.threads import at_once

pytestmark = pytest.mark.gpu
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING

ADD = """
extern "C" __global__ void add(float* x, float value, int n) {
    extern __shared__ char smem[];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += value;
}
"""
CLUSTER = """
extern "C" __global__ void __cluster_dims__(16, 1, 1) ranks(float* x, float value, int n) {
    unsigned int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm volatile("barrier.cluster.arrive; barrier.cluster.wait;" ::: "memory");
    if (threadIdx.x == 0) x[blockIdx.x] = value * rank;
}
"""


@pytest.fixture
def executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CudaExecutor]:
    monkeypatch.setenv("NORMGEN_CACHE_DIR", str(tmp_path / "cache"))
    try:
        found = cuda.executor_of(("cuda", 0))
        found.driver.compiler.toolchain()
    except MachineError as reason:
        pytest.skip(f"no device to run on: {reason}")
    yield found


def run(executor: CudaExecutor, x: DeviceArray, value: float, stream: int = 0, **more: Any) -> None:
    text, shared = more.get("text", ADD), more.get("shared", 0)
    entry, cluster = ("add", 1) if text is ADD else ("ranks", 16)
    launch = Launch(text, entry, (16, 1, 1), (64, 1, 1), shared, "Pfi", (), (), (), cluster)
    function = executor.function(text, entry, shared)
    executor.launch(function, launch, struct.pack("Pfi", x.pointer, value, x.shape[0]), (), stream)


def test_kernels_run(executor: CudaExecutor) -> None:
    x = DeviceArray.of(np.arange(1000, dtype=np.float32))
    run(executor, x, 2.0)
    run(executor, x, 1.0, shared=executor.device.shared_per_block)
    assert (x.get() == np.arange(1000) + 3).all()
    report = executor.function(ADD, "add", 0).report
    assert 0 < report.registers < 64 and report.local == 0
    if executor.device.clusters:
        x = DeviceArray.of(np.zeros(16, np.float32))
        run(executor, x, 2.0, text=CLUSTER)
        assert (x.get() == 2 * np.arange(16)).all()
    zeroed = arrays.zeros(arrays.view(DeviceArray((1,), "f32", ("cuda", 0))), (77,), "bf16")
    assert not zeroed.get().astype(np.float32).any()
    assert cuda.default_driver().device_of(zeroed.pointer) == 0
    with pytest.raises(DriverError, match="memory"):
        DeviceArray((1 << 48,), "f32", ("cuda", 0))


def test_streams_and_threads(executor: CudaExecutor) -> None:
    x = DeviceArray.of(np.zeros(1000, np.float32))
    # Of the driver itself, as another library's are.
    library, streams = ctypes.CDLL("libcuda.so.1"), [ctypes.c_void_p() for _ in range(3)]
    with executor.context:
        for stream in streams:
            assert library.cuStreamCreate(ctypes.byref(stream), NON_BLOCKING) == 0
    handles = [0, *(stream.value or 0 for stream in streams)]
    assert all(handles[1:])
    if executor.driver.name == "pycuda":  # which launches on its own by itself
        from pycuda.driver import Stream

        with executor.context:
            handles.append(arrays.stream_handle(Stream(NON_BLOCKING)))

    def work(handle: int) -> None:
        for _ in range(50):
            run(executor, x, 1.0, handle)
            executor.context.synchronize()

    for handle in handles:  # one after another: the additions of two streams would race
        at_once(partial(work, handle))
    run(executor, x, 1.0, handles[1])
    executor.context.wait(handles[2], handles[1])
    run(executor, x, 1.0, handles[2])
    assert (x.get() == 50 * len(handles) + 2).all()
    if executor.device.clusters:
        x = DeviceArray.of(np.zeros(16, np.float32))
        run(executor, x, 2.0, handles[1], text=CLUSTER)
        executor.context.synchronize()
        assert (x.get() == 2 * np.arange(16)).all()
    with executor.context:
        handles.clear()
        for stream in streams:
            assert library.cuStreamDestroy_v2(stream) == 0
