"""The CUDA executor on a pure-Python driver."""

from __future__ import annotations

import logging
import struct
from functools import partial
from pathlib import Path

import pytest

from normgen.cache import Cache, default_cache
from normgen.devices.cuda import executor as cuda
from normgen.devices.cuda.executor import CudaExecutor
from normgen.errors import CompileError
from normgen.launching.launch import Launch
from tests.fakes.driver import FakeDriver
from tests.threads import at_once


def test_compiles_once_in_memory_and_once_on_disk(
    driver: FakeDriver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "elsewhere"
    executor = CudaExecutor(0, cache=Cache(root))
    with caplog.at_level(logging.INFO, "normgen"):
        first = executor.function("text", "kernel", 0)
        assert executor.function("text", "kernel", 0) is first
        assert executor.function("text", "other", 0) is not first
        CudaExecutor(1, cache=Cache(root)).function("text", "kernel", 0)
    assert len(driver.compiled) == 1 and driver.loads == 2 and len(list(root.rglob("*.cubin"))) == 1
    assert driver.compiled[0][1] == "sm_90" and {"-O3", "-std=c++17"} <= set(driver.compiled[0][2])
    (record,) = caplog.records
    assert "compiled" in record.getMessage() and "\n" not in record.getMessage()


def test_whatever_changes_the_binary_changes_the_key(driver: FakeDriver) -> None:
    CudaExecutor(0).function("text", "kernel", 0)
    for change in ("text", "arch", "compiler", "flags", "nothing"):
        other = FakeDriver(arch="sm_100" if change == "arch" else "sm_90")
        other.built += " update" if change == "compiler" else ""
        other.options = ("-O1",) if change == "flags" else other.options
        CudaExecutor(0, other).function("text " if change == "text" else "text", "kernel", 0)
        assert len(other.compiled) == (change != "nothing"), change


def test_many_threads_compile_a_text_once(driver: FakeDriver) -> None:
    driver.compile_seconds = 0.05
    executor = CudaExecutor(0)
    at_once(*(partial(executor.function, f"text {i % 4}", "kernel", 0) for i in range(16)))
    assert len(driver.compiled) == 4 and driver.loads == 4


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


def test_shared_memory_and_large_clusters_are_asked_for_as_needed(driver: FakeDriver) -> None:
    driver.static_shared = 1024
    executor = CudaExecutor(0)
    function = executor.function("text", "kernel", 47 * 1024)
    assert function.handle.shared == 0  # within the ordinary 48 KiB, of which 1 is static
    assert executor.function("text", "kernel", 47 * 1024 + 1) is function
    executor.function("text", "kernel", 1000)
    assert function.handle.shared == 47 * 1024 + 1
    executor.function("text", "kernel", 226 * 1024)
    with pytest.raises(ValueError, match=r"kernel needs 231425 bytes of shared memory; Imaginary has 231424"):
        executor.function("text", "kernel", 226 * 1024 + 1)
    for cluster, allowed in ((1, False), (8, False), (16, True)):
        launch = Launch("text", "kernel", (16, 1, 1), (64, 1, 1), 0, "PPi", (), (), (), cluster)
        executor.launch(function, launch, struct.pack("PPi", 0x1234, 0, 7))
        assert function.handle.large_clusters is allowed


def test_each_context_has_its_executor(driver: FakeDriver) -> None:
    assert cuda.executor_of(("cuda", 0)) is cuda.executor_of(("cuda", 0))
    assert cuda.executor_of(("cuda", 0)) is not cuda.executor_of(("cuda", 1))
    mine = driver.make_current(0)
    key = cuda.device_key(mine)
    assert key != ("cuda", 0) and key[1] == 0 and cuda.device_key(mine) == key
    assert cuda.executor_of(key).context is mine
    assert cuda.device_key(driver.primary(1)) == ("cuda", 1)
