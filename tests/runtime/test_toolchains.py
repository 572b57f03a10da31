"""Which launcher and which compiler are taken, by what is installed and by what is asked for."""

from __future__ import annotations

import pytest

from normgen.devices import inventory
from normgen.devices.cuda import executor as cuda
from normgen.devices.cuda import toolchains
from normgen.devices.cuda.compile import Nvcc
from normgen.devices.cuda.nvrtc import Nvrtc
from normgen.devices.cuda.pycuda_compiler import PyCudaCompiler
from normgen.errors import DeviceMissing, MachineError, ToolchainMissing
from tests.fakes.driver import FakeDriver

ALL = ("pycuda", "cuda-bindings", "nvcc", "nvrtc")
# What is installed, the launcher and the compiler that are asked for, and what is taken.
TAKEN = [
    (ALL, "", "", "pycuda nvcc"),
    (("pycuda", "cuda-bindings", "nvrtc"), "", "", "cuda-bindings nvrtc"),
    (("cuda-bindings", "nvcc", "nvrtc"), "", "", "cuda-bindings nvrtc"),
    (("cuda-bindings", "nvcc"), "", "", "cuda-bindings nvcc"),
    (ALL, "cuda-bindings", "", "cuda-bindings nvrtc"),
    (ALL, "", "nvrtc", "cuda-bindings nvrtc"),
    (ALL, "pycuda", "nvrtc", "pycuda nvrtc"),
    (ALL, "cuda-bindings", "nvcc", "cuda-bindings nvcc"),
    (("pycuda", "cuda-bindings", "nvrtc"), "pycuda", "", "pycuda nvrtc"),
    (("cuda-bindings", "nvcc", "nvrtc"), "", "nvcc", "cuda-bindings nvcc"),
    # Where something is missing, what pip alone installs is wanted, unless something else is asked for.
    ((), "", "", "cuda-bindings nvrtc"),
    (("pycuda",), "", "", "cuda-bindings nvrtc"),
    ((), "pycuda", "", "pycuda nvrtc"),
    ((), "", "nvcc", "cuda-bindings nvcc"),
]  # fmt: skip


def install(patch: pytest.MonkeyPatch, there: tuple[str, ...] = ALL) -> None:
    """Only these parts are installed, and no variable asks for any."""
    patch.setattr(toolchains, "installed", there.__contains__)
    for variable in (toolchains.LAUNCHER_VARIABLE, toolchains.COMPILER_VARIABLE):
        patch.delenv(variable, raising=False)


@pytest.mark.parametrize(("there", "launcher", "compiler", "taken"), TAKEN)
def test_the_rule(
    there: tuple[str, ...], launcher: str, compiler: str, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By arguments, and by variables."""
    install(monkeypatch, there)
    found = toolchains.chosen(launcher or None, compiler or None)
    monkeypatch.setenv(toolchains.LAUNCHER_VARIABLE, launcher)
    monkeypatch.setenv(toolchains.COMPILER_VARIABLE, compiler)
    assert found == toolchains.chosen() and f"{found.launcher} {found.compiler}" == taken


def test_a_driver_has_its_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    for launcher, compiler, kind in (
        ("pycuda", "nvcc", PyCudaCompiler),
        ("cuda-bindings", "nvcc", Nvcc),
        ("cuda-bindings", "nvrtc", Nvrtc),
    ):
        made = toolchains.make_driver(launcher, compiler)
        assert made.name == launcher and type(made.compiler) is kind
    with pytest.raises(ValueError, match="a driver object has its own compiler"):
        cuda.use_driver(FakeDriver(), "nvcc")


def test_compiling_ahead_takes_no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for there, taken in ((("nvrtc",), "nvrtc"), (("nvcc",), "nvcc"), (ALL, "nvcc"), ((), "nvrtc")):
        install(monkeypatch, there)
        assert toolchains.compiler_ahead().name == taken
        monkeypatch.setenv(toolchains.COMPILER_VARIABLE, "nvrtc")
        assert toolchains.compiler_ahead().name == "nvrtc"


def test_a_name_that_there_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    with pytest.raises(DeviceMissing, match=r"use pycuda or cuda-bindings \(NORMGEN_LAUNCHER\)[^\n]*$"):
        cuda.use_driver("rocm", None)
    with pytest.raises(ToolchainMissing, match=r"use nvcc or nvrtc \(NORMGEN_COMPILER\)[^\n]*$"):
        cuda.use_driver(None, "clang")


def test_a_driver_that_is_too_old_says_so(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "compile", lambda source, arch: b"what it does not take")
    monkeypatch.setattr(type(driver), "name", "nvcc")
    executor = cuda.executor_of(("cuda", 0))
    with pytest.raises(MachineError, match="no kernel image"):  # of the same version: something else is wrong
        executor.function("text", "kernel", 0)
    versions = iter([(12, 8), (13, 0)])  # of the driver, of its compiler
    monkeypatch.setattr(driver, "version", lambda: next(versions))
    with pytest.raises(DeviceMissing) as caught:
        executor.function("text", "kernel", 0)
    assert str(caught.value) == (
        "the CUDA driver is too old: it supports CUDA 12.8, and kernels are compiled by nvcc of CUDA 13.0: "
        "update the driver, or install a compiler of CUDA 12"
    )


def test_a_row_of_the_table_is_all_that_a_launcher_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    row = toolchains.Toolchain("hip", "nvrtc", "cuda_bindings:CudaBindingsDriver", "nvrtc:Nvrtc")
    monkeypatch.setattr(toolchains, "TOOLCHAINS", (*toolchains.TOOLCHAINS, row))
    for module in (toolchains, inventory):
        monkeypatch.setattr(module, "LAUNCHERS", (*toolchains.LAUNCHERS[:2], "hip"))
    assert not toolchains.installed("hip")
    assert toolchains.chosen("hip") == row
    assert inventory.inventory()
