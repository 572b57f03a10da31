"""Entries of the cache that are sound on disk and yet do not load: they are put aside and built again.

A process loads a runtime once, and kernels find it by its name: so whatever loads one here has a process of
its own.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from normgen.cache import _TRAILER, Cache, _seal, default_cache
from normgen.devices.host import compile as host_compile
from normgen.devices.host.executor import HostExecutor
from normgen.devices.host.load import Unloadable, read_whole
from normgen.errors import ToolchainMissing

pytestmark = pytest.mark.kernels

ROOT = Path(__file__).parents[2]
TEXT = """
extern __shared__ float4 smem[];
__global__ void one(float* x) { smem[0].x = 1.0f; x[0] = smem[0].x; }
"""
PROGRAM = f"""
import sys
from pathlib import Path
from normgen.cache import Cache
from normgen.devices.host.executor import HostExecutor
print(HostExecutor(cache=Cache(Path(sys.argv[1]))).function({TEXT!r}, "one", 0).entry)
"""


@pytest.fixture
def entries(tmp_path: Path) -> dict[str, Path]:
    """The entries of one kernel by what they are, in a cache of one's own."""
    usual, compiler = default_cache(), host_compile.find_compiler()
    made = {
        "runtime": host_compile.build_runtime(usual, compiler),
        "shared": host_compile._build_shared(usual, compiler),
        "kernel": host_compile.build_kernel(usual, compiler, TEXT, "one", False, False),
    }
    here = {name: tmp_path / "c" / path.relative_to(usual.root) for name, path in made.items()}
    for name, path in here.items():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.copy(made[name], path)
    path.parents[1].chmod(0o700)
    return here


HARMS: dict[str, Callable[[bytes], bytes]] = {
    "text": lambda content: b"not a program, and yet what was once built " * 100,
    "cut": lambda content: content[: len(content) // 2],
    "header alone": lambda content: content[:64],
    "other machine": lambda content: content[:18] + (183).to_bytes(2, "little") + content[20:],  # EM_AARCH64
}


def replace(path: Path, harm: Callable[[bytes], bytes]) -> None:
    """Harm what is in an entry, and leave it sound as an entry."""
    path.write_bytes(harm(path.read_bytes()[: -_TRAILER.size]))
    _seal(path)


def test_what_does_not_load_is_told(entries: dict[str, Path]) -> None:
    sound = entries["kernel"].read_bytes()
    for harm in HARMS.values():
        entries["kernel"].write_bytes(sound)
        read_whole(entries["kernel"])
        replace(entries["kernel"], harm)
        with pytest.raises(Unloadable):
            read_whole(entries["kernel"])


@pytest.mark.parametrize(
    ("what", "harm"), [("runtime", "text"), ("shared", "cut"), ("kernel", "header alone"), ("kernel", "")]
)
def test_what_does_not_load_is_built_again(entries: dict[str, Path], what: str, harm: str) -> None:
    """Nor does another library in a kernel's place."""
    runtime = entries["runtime"].read_bytes()[: -_TRAILER.size]
    replace(entries[what], HARMS[harm] if harm else lambda _: runtime)
    if what == "shared":
        entries["kernel"].unlink()  # only a build reads it
    command = [sys.executable, "-c", PROGRAM, str(entries["kernel"].parents[1])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "one\n"), done.stderr
    assert done.stderr.count("\n") == 1 and "building it again" in done.stderr
    assert entries[what].with_name(entries[what].name + ".damaged").exists()
    read_whole(entries[what])


@pytest.mark.parametrize("removed", [False, True], ids=["refused", "removed"])
def test_an_entry_is_built_again(
    entries: dict[str, Path], monkeypatch: pytest.MonkeyPatch, removed: bool
) -> None:
    """Once where it does not load, then one line says so; but others may remove it before it is loaded."""
    calls: list[Path] = []

    def load_function(runtime: object, path: Path, *_: object) -> Path:
        calls.append(path)
        assert path.exists()
        if removed and len(calls) == 3:
            return path
        if removed:
            path.unlink()
        raise Unloadable(path, "this file system runs no programs")

    monkeypatch.setattr("normgen.devices.host.executor.load_runtime", lambda path: path)
    monkeypatch.setattr("normgen.devices.host.executor.load_function", load_function)
    executor = HostExecutor(cache=Cache(entries["kernel"].parents[1]))
    if removed:
        assert executor.function(TEXT, "one", 0) == entries["kernel"]
    else:
        with pytest.raises(ToolchainMissing, match=r"built does not load.*runs no programs") as caught:
            executor.function(TEXT, "one", 0)
        assert "\n" not in str(caught.value)
    assert calls == [entries["kernel"]] * (3 if removed else 2)


def test_parts_of_a_kernel_may_go_while_it_is_compiled(
    entries: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they do where another process fills the cache, or clears it."""
    run = host_compile._run

    def compile_and_clear(command: list[str], *texts: str) -> None:
        run(command, *texts)
        for name in ("runtime", "shared"):
            entries[name].unlink(missing_ok=True)

    monkeypatch.setattr(host_compile, "_run", compile_and_clear)
    entries["kernel"].unlink()
    cache = Cache(entries["kernel"].parents[1])
    made = host_compile.build_kernel(cache, host_compile.find_compiler(), TEXT, "one", False, False)
    assert made == entries["kernel"] and not entries["runtime"].exists()
    read_whole(made)
