"""The fake drivers refuse what a CUDA driver refuses: else nothing that launches wrongly fails a test."""

from __future__ import annotations

import pytest

from normgen.devices.cuda.executor import CudaExecutor
from normgen.errors import DriverError
from normgen.launching.launch import Launch
from tests.fakes.driver import FakeDriver
from tests.fakes.machine import Machine
from tests.runtime.test_launchers import PRELUDE

FINE: dict[str, object] = {"grid": (16, 1, 1), "block": (64, 1, 1)}
MOST = 227 * 1024 - 512  # dynamic shared memory beside 512 bytes of a kernel's own
X, YZ = 2**31 - 1, 65535
# The largest that is taken, and what is not: fields of a launch, what was allowed of shared memory, whether
# clusters may be large, and the architecture.
TAKEN = [
    {},
    {"grid": (X, YZ, YZ)},
    {"block": (1024, 1, 1)},
    {"block": (16, 1, 64)},
    {"shared": 48 * 1024 - 512},
    {"shared": 100_000, "allowed": 100_000},
    {"shared": MOST, "allowed": MOST},
    {"cluster": 8},
    {"cluster": 16, "large": True},
    {"arch": 8},
]
REFUSED = [
    {"grid": (X + 1, 1, 1)},
    {"grid": (1, YZ + 1, 1)},
    {"grid": (1, 1, YZ + 1)},
    {"grid": (0, 1, 1)},
    {"block": (1025, 1, 1)},
    {"block": (512, 2, 2)},
    {"block": (0, 1, 1)},
    {"shared": 48 * 1024 - 511},
    {"shared": 100_001, "allowed": 100_000},
    {"allowed": MOST + 1},
    {"cluster": 16},
    {"cluster": 32, "large": True, "grid": (32, 1, 1)},
    {"cluster": 8, "grid": (12, 1, 1)},
    {"cluster": 2, "arch": 8},
    {"large": True, "arch": 8},
]
CASES = [(case, True) for case in TAKEN] + [(case, False) for case in REFUSED]


@pytest.mark.parametrize(("case", "taken"), CASES, ids=str)
def test_the_pure_python_driver(driver: FakeDriver, case: dict[str, object], taken: bool) -> None:
    arch = f"sm_{case.get('arch', 9)}0"
    fake = FakeDriver(arch=arch)
    fake.static_shared = 512
    executor = CudaExecutor(0, fake)
    told = FINE | case
    size = told["grid"], told["block"], told.get("shared", 0)
    launch = Launch("text", "kernel", *size, "i", (), (), (), told.get("cluster", 1))  # type: ignore[arg-type]
    handle = executor.function("text", "kernel", 0).handle

    def start() -> None:
        if "allowed" in told:
            executor.context.allow_shared(handle, told["allowed"])  # type: ignore[arg-type]
        if "large" in told:
            executor.context.allow_large_clusters(handle)
        executor.context.launcher(executor.function("text", "kernel", 0), launch)(bytes(4), (), 0)

    if taken:
        start()
    else:
        with pytest.raises(DriverError):
            start()
    assert len(fake.launches) == taken


def test_the_recording_library(machine: Machine) -> None:
    """By what the launchers call of it, and by a launch that is cooperative: as many blocks as fit."""
    code = f"""
    cases = {CASES!r}
    executor = CudaExecutor(0)
    major = int(executor.device.arch[3])
    for case, taken in [each for each in cases if each[0].get("arch", 9) == major]:
        told = {FINE!r} | case
        cluster = told.get("cluster", 1)
        text = f"void __cluster_dims__({{cluster}}, 1, 1) kernel"
        module = executor.context.load(executor.binary(text))
        function = executor.context.function(module, "kernel")
        launch = Launch(
            text, "kernel", told["grid"], told["block"], told.get("shared", 0), "PPi", (), (), (), cluster)
        class Loaded: handle = function
        for stream in (0, 0xabc0):
            try:
                if "allowed" in told: executor.context.allow_shared(function, told["allowed"])
                if "large" in told: executor.context.allow_large_clusters(function)
                executor.context.launcher(Loaded, launch)(packed, (), stream)
                found = True
            except DriverError:
                found = False
            assert found is taken, case
    """
    for major, count in (("9", 2 * len([c for c, t in CASES if t]) - 2), ("8", 2)):
        machine.check(PRELUDE + code, FAKE_CUDA_MAJOR=major)
        made = [line for line in machine.log if line.startswith("launch")]
        assert len(made) == count
        (machine.root / "log").unlink()
    machine.check(PRELUDE + COOPERATIVE)


COOPERATIVE = """
    import ctypes
    from normgen.devices.launch_kernel import Attribute, Configuration
    executor = CudaExecutor(0)
    function = executor.function("text", "kernel", 0)
    launch = launch_of()
    executor.launch(function, launch, packed)
    library = ctypes.CDLL("libcuda.so.1")
    def code(blocks, threads, shared):
        together = Attribute(2, 0, 1)
        told = Configuration((blocks, 1, 1), (threads, 1, 1), shared, None, ctypes.addressof(together), 1)
        handle = ctypes.c_void_p(function.handle.address)
        return library.cuLaunchKernelEx(ctypes.byref(told), handle, None, None)
    # 40 registers of a thread, 512 bytes of a block's own and 1024 of the driver's
    for fit, threads, shared in ((1, 1024, 0), (6, 256, 0), (4, 256, 48 * 1024)):
        if shared: executor.context.allow_shared(function.handle, shared)
        assert code(132 * fit, threads, shared) == 0
        assert code(132 * fit + 1, threads, shared) == 720
"""
