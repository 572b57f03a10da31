"""Which launcher and which compiler are taken, by what is installed and by what is asked for."""

from __future__ import annotations

import pytest

from normgen.devices.cuda import executor as cuda
from normgen.devices.cuda import toolchains
from normgen.devices.cuda.compile import Nvcc
from normgen.devices.cuda.nvrtc import Nvrtc
from normgen.devices.cuda.pycuda import PyCudaCompiler
from normgen.errors import DeviceMissing, MachineError, ToolchainMissing
from tests.fakes.driver import FakeDriver

ALL = ("pycuda", "cuda-bindings", "nvcc", "nvrtc")
# What is installed, the launcher and the compiler that are asked for, and what is taken.
TAKEN = [
    (ALL, "", "", "pycuda nvcc"),
    (("pycuda", "nvcc"), "", "", "pycuda nvcc"),
    (("pycuda", "cuda-bindings", "nvrtc"), "", "", "cuda-bindings nvrtc"),
    (("cuda-bindings", "nvcc", "nvrtc"), "", "", "cuda-bindings nvrtc"),
    (("cuda-bindings", "nvrtc"), "", "", "cuda-bindings nvrtc"),
    (("cuda-bindings", "nvcc"), "", "", "cuda-bindings nvcc"),
    (ALL, "pycuda", "", "pycuda nvcc"),
    (ALL, "cuda-bindings", "", "cuda-bindings nvrtc"),
    (ALL, "", "nvcc", "pycuda nvcc"),
    (ALL, "", "nvrtc", "cuda-bindings nvrtc"),
    (ALL, "pycuda", "nvrtc", "pycuda nvrtc"),
    (ALL, "cuda-bindings", "nvcc", "cuda-bindings nvcc"),
    (("pycuda", "cuda-bindings", "nvrtc"), "pycuda", "", "pycuda nvrtc"),
    (("cuda-bindings", "nvcc", "nvrtc"), "", "nvcc", "cuda-bindings nvcc"),
    # Where something is missing, what pip alone installs is wanted, unless something else is asked for.
    ((), "", "", "cuda-bindings nvrtc"),
    (("pycuda",), "", "", "cuda-bindings nvrtc"),
    (("nvcc",), "", "", "cuda-bindings nvrtc"),
    ((), "pycuda", "", "pycuda nvrtc"),
    ((), "", "nvcc", "cuda-bindings nvcc"),
]  # fmt: skip


@pytest.fixture
def installed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only these parts are installed, and no variable asks for any."""
    there = getattr(request, "param", ALL)
    monkeypatch.setattr(toolchains, "_INSTALLED", {part: lambda part=part: part in there for part in ALL})
    for variable in (toolchains.LAUNCHER_VARIABLE, toolchains.COMPILER_VARIABLE):
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.parametrize("how", ["arguments", "variables"])
@pytest.mark.parametrize(("installed", "launcher", "compiler", "taken"), TAKEN, indirect=["installed"])
def test_the_rule(
    installed: None, launcher: str, compiler: str, taken: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "variables":
        monkeypatch.setenv(toolchains.LAUNCHER_VARIABLE, launcher)
        monkeypatch.setenv(toolchains.COMPILER_VARIABLE, compiler)
        found = toolchains.chosen()
    else:
        found = toolchains.chosen(launcher or None, compiler or None)
    assert f"{found.launcher} {found.compiler}" == taken


@pytest.mark.parametrize(
    ("launcher", "compiler", "kind"),
    [
        ("pycuda", "nvcc", PyCudaCompiler),
        ("pycuda", "nvrtc", Nvrtc),
        ("cuda-bindings", "nvcc", Nvcc),
        ("cuda-bindings", "nvrtc", Nvrtc),
    ],
)
def test_a_driver_has_its_compiler(installed: None, launcher: str, compiler: str, kind: type) -> None:
    made = toolchains.make_driver(launcher, compiler)
    assert made.name == launcher
    assert type(made.compiler) is kind


@pytest.mark.parametrize("installed", [("nvrtc",), ("nvcc",), ALL, ()], indirect=True, ids=str)
def test_compiling_ahead_takes_no_launcher(
    installed: None, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = request.node.callspec.params["installed"]
    assert toolchains.compiler_ahead().name == ("nvcc" if "nvcc" in there else "nvrtc")
    monkeypatch.setenv(toolchains.COMPILER_VARIABLE, "nvrtc")
    assert toolchains.compiler_ahead().name == "nvrtc"


@pytest.mark.parametrize(
    ("arguments", "kind", "said"),
    [
        (("rocm", None), DeviceMissing, "there are pycuda and cuda-bindings (NORMGEN_LAUNCHER)"),
        ((None, "clang"), ToolchainMissing, "there are nvcc and nvrtc (NORMGEN_COMPILER)"),
    ],
)
def test_a_name_that_there_is_not(
    installed: None, arguments: tuple[str, str], kind: type[MachineError], said: str
) -> None:
    with pytest.raises(kind) as caught:
        cuda.use_driver(*arguments)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_driver_of_ones_own_has_its_own_compiler() -> None:
    with pytest.raises(ValueError, match="own compiler"):
        cuda.use_driver(FakeDriver(), "nvcc")


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
        "the CUDA driver is too old: it knows CUDA 12.8, and kernels are compiled by nvcc of CUDA 13.0: "
        "update the driver, or install a compiler of CUDA 12"
    )
