"""Fixtures of the runtime's tests: an imaginary CUDA driver, and a machine to run the real launchers on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from normgen import cache
from normgen.devices.cuda import executor as cuda
from normgen.errors import warn_once
from tests.fakes import machine as machines
from tests.fakes.arrays import install
from tests.fakes.driver import FakeDriver


@pytest.fixture
def afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has opened no cache and warned of nothing."""
    cache._opened.cache_clear()
    warn_once.cache_clear()
    monkeypatch.setattr(cache, "_temporary", None)


@pytest.fixture
def driver(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeDriver]:
    """The pure-Python driver, in use, with a cache of its own; two devices."""
    monkeypatch.setenv("NORMGEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("NORMGEN_CACHE", raising=False)
    fake = FakeDriver(devices=2)
    cuda.use_driver(fake)
    request.node.user_properties.append((machines.RAN_ON, "the pure-Python driver"))
    yield fake
    cuda.use_driver(None)


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch, driver: FakeDriver) -> Iterator[dict[int, int]]:
    """Every array library over the imaginary driver, with the current stream of each device, to be set.

    Nothing is copied between host and device, and nobody waits for the device.
    """
    yield install(monkeypatch, driver)
    assert not (driver.copies or driver.stack or driver.synchronized)


@pytest.fixture(scope="session")
def _library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("machine") / "lib"
    machines.build(directory)
    return directory


@pytest.fixture
def pycuda_machine(request: pytest.FixtureRequest, tmp_path: Path) -> machines.Machine:
    """The real PyCUDA over the recording libcuda, with nvcc replaced by a script."""
    return _machine(request, tmp_path, "pycuda")


@pytest.fixture
def bindings_machine(request: pytest.FixtureRequest, tmp_path: Path) -> machines.Machine:
    """The real cuda-bindings over the same."""
    return _machine(request, tmp_path, "cuda-bindings")


@pytest.fixture(params=machines.LAUNCHERS)
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> machines.Machine:
    """Each launcher in turn."""
    return _machine(request, tmp_path, request.param)


def _machine(request: pytest.FixtureRequest, directory: Path, launcher: str) -> machines.Machine:
    machines.need(launcher, request)
    (directory / "lib").symlink_to(request.getfixturevalue("_library"))
    made = machines.Machine(directory, launcher)
    made.nvcc()
    return made
