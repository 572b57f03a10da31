"""Building PyCUDA: what is missing is said in one line, and a promised launcher is never skipped."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import types
from pathlib import Path
from typing import NoReturn

import pytest

from normgen.devices.cuda import compile as nvcc
from normgen.errors import ToolchainMissing
from tests.fakes import machine
from tools import build_pycuda

ROOT = Path(__file__).parent.parent


@pytest.fixture
def without_pycuda(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(build_pycuda.importlib.metadata, "version", version)
    monkeypatch.setattr(build_pycuda.sys, "platform", "linux")
    monkeypatch.setattr(build_pycuda.platform, "machine", lambda: "x86_64")


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    """What was said last, on stderr if there is any."""
    output, errors = capsys.readouterr()
    assert errors.count("\n") <= 1
    return errors or output.splitlines()[-1]


def test_what_is_installed_stays(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(build_pycuda.importlib.metadata, "version", lambda _: "2025.1")
    monkeypatch.setattr(build_pycuda, "_run", None)
    assert build_pycuda.main() == 0
    assert one_line(capsys) == "PyCUDA 2025.1 is already installed"


def test_what_is_missing_is_named(
    without_pycuda: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The headers of Python, a compiler, another system."""
    monkeypatch.setattr(shutil, "which", lambda name, **_: f"/usr/bin/{name}")
    monkeypatch.setattr(build_pycuda.sysconfig, "get_path", lambda _: "/nonexistent")
    assert build_pycuda.main() == 1
    assert "/nonexistent/Python.h not found" in one_line(capsys)
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    assert build_pycuda.main() == 1
    assert one_line(capsys).startswith("PyCUDA was not built: gcc and g++ not found")
    monkeypatch.setattr(build_pycuda.sys, "platform", "darwin")
    assert build_pycuda.main() == 0
    assert one_line(capsys) == "PyCUDA can be built on Linux x86-64 only; this is darwin x86_64"


@pytest.mark.parametrize("lacks", ["PyCUDA", "toolkit"])
def test_a_missing_network_is_named(
    without_pycuda: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    lacks: str,
) -> None:
    include = tmp_path / "include"
    include.mkdir()
    for name in build_pycuda.HEADERS:
        (include / name).write_text("CUresult cuInit(unsigned int);")
    monkeypatch.setattr(build_pycuda, "_has_nvcc", lambda: lacks == "PyCUDA")
    monkeypatch.setattr(build_pycuda, "toolkit_homes", lambda: (tmp_path,))
    for name, value in [("INDEX_URL", "http://127.0.0.1:9"), ("CONFIG_FILE", "/dev/null"), ("RETRIES", "1")]:
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    assert build_pycuda.main() == 1
    assert one_line(capsys).strip() == (
        "PyCUDA was not built: pip cannot reach a package index: check the network"
    )


def test_another_failure_keeps_what_was_written() -> None:
    reason = build_pycuda._reason(["pip", "wheel"], "checking\nx.cpp:1: fatal error: no such file\nmore\n")
    found = re.fullmatch(r"x.cpp:1: fatal error: no such file \(the whole output: (.*)\)", reason)
    assert found is not None
    kept = Path(found[1])
    assert kept.read_text().startswith("pip wheel\nchecking\n")
    kept.unlink()


def test_a_toolkit_of_wheels_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("cu13", "cu14"):
        home = tmp_path / "nvidia" / version
        for folder in ("bin", "include"):
            (home / folder).mkdir(parents=True)
        (home / "bin" / "nvcc").write_text("#!/bin/sh\n")
        (home / "bin" / "nvcc").chmod(0o755)
    for name in build_pycuda.HEADERS:
        (tmp_path / "nvidia" / "cu13" / "include" / name).write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(nvcc, "_USUAL_HOME", Path("/nonexistent"))
    assert nvcc.find_nvcc() == str(tmp_path / "nvidia" / "cu14" / "bin" / "nvcc")
    assert build_pycuda._headers() == tmp_path / "nvidia" / "cu13"
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "nvidia" / "cu13"))
    assert nvcc.find_nvcc() == str(tmp_path / "nvidia" / "cu13" / "bin" / "nvcc")


@pytest.mark.parametrize(
    ("promised", "supported", "outcome"),
    [
        ("pycuda cuda-bindings", True, pytest.fail.Exception),
        ("cuda-bindings", True, pytest.skip.Exception),
        ("pycuda", False, pytest.skip.Exception),
    ],
)
def test_a_promised_launcher_is_not_skipped(
    monkeypatch: pytest.MonkeyPatch, promised: str, supported: bool, outcome: type[BaseException]
) -> None:
    monkeypatch.setenv(machine.PROMISED, promised)
    monkeypatch.setattr(machine, "why_not", lambda _: "pycuda is not installed")
    monkeypatch.setattr(machine, "_supported", lambda: supported)
    request = types.SimpleNamespace(node=types.SimpleNamespace(user_properties=[]))
    with pytest.raises(outcome, match="pycuda is not installed"):
        machine.need("pycuda", request)  # type: ignore[arg-type]


@pytest.mark.parametrize("compiler", machine.COMPILERS)
@pytest.mark.parametrize("promised", ["cuda-bindings", ""])
def test_a_compiler_is_not_skipped_where_a_launcher_is_promised(
    monkeypatch: pytest.MonkeyPatch, compiler: str, promised: str
) -> None:
    def missing() -> NoReturn:
        raise ToolchainMissing("not installed")

    monkeypatch.setenv(machine.PROMISED, promised)
    monkeypatch.setattr(machine, "COMPILERS", {compiler: ("", missing)})
    monkeypatch.setattr(machine, "_supported", lambda: True)
    with pytest.raises((pytest.fail if promised else pytest.skip).Exception, match="not installed"):
        machine.need_compiler(compiler)


def test_make_test_builds_pycuda_and_promises_every_launcher() -> None:
    def plan(*arguments: str) -> str:
        # Without the variables of a `make` that runs this.
        settings = {"cwd": ROOT, "env": {"PATH": os.environ["PATH"]}}
        command = ["make", "-n", "-B", "test", *arguments]
        return subprocess.run(command, **settings, capture_output=True, text=True, check=True).stdout

    names = " ".join(machine.LAUNCHERS)
    assert "-m tools.build_pycuda" in plan() and f'{machine.PROMISED}="{names}"' in plan()
    assert "build_pycuda" not in plan("LAUNCHERS=cuda-bindings")
    assert "make test" in (ROOT / ".ci" / "run").read_text().splitlines()
