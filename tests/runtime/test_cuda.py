"""The CUDA executor on a pure-Python driver."""

from __future__ import annotations

import logging
import struct
import time
from functools import partial
from pathlib import Path

import pytest

from normgen.cache import Cache, default_cache
from normgen.devices.cuda import executor as cuda
from normgen.devices.cuda.executor import CudaExecutor
from normgen.errors import CompileError, DeviceMissing
from normgen.launching.launch import Launch
from tests.fakes.driver import FakeDriver
from tests.threads import at_once


def launch_of(shared: int = 0, cluster: int = 1) -> Launch:
    return Launch("text", "kernel", (3, 1, 1), (64, 1, 1), shared, "PPi", (), (), (), cluster)


PACKED = struct.pack("PPi", 0x1234, 0, 7)


# The executor, on any driver.


def test_a_launch_arrives_as_it_was_packed(driver: FakeDriver) -> None:
    executor = CudaExecutor(1)
    assert executor.device.arch == "sm_90" and executor.context.index == 1
    function = executor.function("text", "kernel", 0)
    executor.launch(function, launch_of(), PACKED, (), 0x77)
    (launched,) = driver.launches
    assert (launched.context.index, launched.entry, launched.grid) == (1, "kernel", (3, 1, 1))
    assert (launched.packed, launched.stream, launched.block) == (PACKED, 0x77, (64, 1, 1))
    assert function.report.registers == 32


def test_compiles_once_in_memory_and_once_on_disk(driver: FakeDriver) -> None:
    executor = CudaExecutor(0)
    first = executor.function("text", "kernel", 0)
    assert executor.function("text", "kernel", 0) is first
    assert executor.function("text", "other", 0) is not first
    CudaExecutor(1).function("text", "kernel", 0)
    assert len(driver.compiled) == 1 and driver.loads == 2
    assert driver.compiled[0][1] == "sm_90"
    assert {"-O3", "-std=c++17"} <= set(driver.compiled[0][2])


@pytest.mark.parametrize("change", ["text", "arch", "compiler", "flags", "nothing"])
def test_whatever_changes_the_binary_changes_the_key(driver: FakeDriver, change: str) -> None:
    CudaExecutor(0).function("text", "kernel", 0)
    other = FakeDriver(arch="sm_100" if change == "arch" else "sm_90")
    other.built += " update" if change == "compiler" else ""
    if change == "flags":
        other.options = ("-O1",)
    CudaExecutor(0, other).function("text " if change == "text" else "text", "kernel", 0)
    assert len(other.compiled) == (0 if change == "nothing" else 1)


def test_many_threads_compile_a_text_once_and_texts_side_by_side(driver: FakeDriver) -> None:
    driver.compile_seconds = 0.2
    executor = CudaExecutor(0)
    begin = time.monotonic()
    at_once(*(partial(executor.function, f"text {i % 4}", "kernel", 0) for i in range(16)))
    assert len(driver.compiled) == 4 and driver.loads == 4
    assert time.monotonic() - begin < 0.7  # four compiles one after another take 0.8


def test_the_first_compile_says_so_once(driver: FakeDriver, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "normgen"):
        for _ in range(3):
            CudaExecutor(0).function("text", "kernel", 0)
    (record,) = caplog.records
    assert "compiled" in record.getMessage() and "\n" not in record.getMessage()


def test_a_failing_compile_leaves_no_entry_and_may_be_tried_again(driver: FakeDriver) -> None:
    driver.faults["text"] = "error: no"
    executor = CudaExecutor(0)
    for _ in range(2):
        with pytest.raises(CompileError, match="generated code does not compile"):
            executor.function("text", "kernel", 0)
    driver.faults.clear()
    executor.function("text", "kernel", 0)
    assert len(driver.compiled) == 3


def test_a_binary_that_the_driver_refuses_is_compiled_again(driver: FakeDriver) -> None:
    executor = CudaExecutor(0)
    default_cache().get_or_build_bytes(executor._key("text"), lambda: b"for another machine", ".cubin")
    executor.function("text", "kernel", 0)
    assert len(driver.compiled) == 1


def test_shared_memory_is_asked_for_as_needed(driver: FakeDriver) -> None:
    driver.static_shared = 1024
    executor = CudaExecutor(0)
    function = executor.function("text", "kernel", 47 * 1024)
    assert function.handle.shared == 0  # within the ordinary 48 KiB, of which 1 is static
    assert executor.function("text", "kernel", 47 * 1024 + 1) is function
    assert function.handle.shared == 47 * 1024 + 1
    executor.function("text", "kernel", 1000)
    assert function.handle.shared == 47 * 1024 + 1
    executor.function("text", "kernel", 226 * 1024)
    with pytest.raises(ValueError, match=r"kernel needs 231425 bytes of shared memory; Imaginary has 231424"):
        executor.function("text", "kernel", 226 * 1024 + 1)


@pytest.mark.parametrize(("cluster", "allowed"), [(1, False), (8, False), (16, True)])
def test_only_large_clusters_need_leave(driver: FakeDriver, cluster: int, allowed: bool) -> None:
    executor = CudaExecutor(0)
    function = executor.function("text", "kernel", 0)
    executor.launch(function, launch_of(cluster=cluster), PACKED)
    assert function.handle.large_clusters is allowed


def test_each_context_has_its_executor(driver: FakeDriver) -> None:
    assert cuda.executor_of(("cuda", 0)) is cuda.executor_of(("cuda", 0))
    assert cuda.executor_of(("cuda", 0)) is not cuda.executor_of(("cuda", 1))
    mine = driver.make_current(0)
    key = cuda.device_key(mine)
    assert key != ("cuda", 0) and key[1] == 0 and cuda.device_key(mine) == key
    assert cuda.executor_of(key).context is mine
    assert cuda.device_key(driver.primary(1)) == ("cuda", 1)


def test_no_such_device(driver: FakeDriver) -> None:
    with pytest.raises(DeviceMissing, match="no CUDA device 5: there are 2"):
        CudaExecutor(5)


def test_the_cache_of_an_executor_can_be_given(driver: FakeDriver, tmp_path: Path) -> None:
    root = tmp_path / "elsewhere"
    CudaExecutor(0, cache=Cache(root)).function("text", "kernel", 0)
    assert len(list(root.rglob("*.cubin"))) == 1
