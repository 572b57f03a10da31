"""The disk cache: one build per key, whatever happens to processes, files and directories."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from normgen import cache_files
from normgen.cache import Cache, default_cache, digest
from tests.threads import at_once, forked

KEY = digest("a kernel", "its flags")
pytestmark = pytest.mark.usefixtures("afresh")


def writer(content: bytes, calls: list[int]) -> Callable[[Path], None]:
    def build(path: Path) -> None:
        calls.append(1)
        path.write_bytes(content)

    return build


def test_the_second_request_is_a_hit(tmp_path: Path) -> None:
    calls: list[int] = []
    cache = Cache(tmp_path / "c")
    first = cache.get_or_build(KEY, writer(b"binary", calls), ".bin")
    again = Cache(tmp_path / "c").get_or_build(KEY, writer(b"other", calls), ".bin")
    assert first == again and first.suffix == ".bin" and first.read_bytes().startswith(b"binary")
    assert cache.get_or_build_bytes(KEY, lambda: b"never", ".bin") == b"binary" and len(calls) == 1
    assert digest("ab", "c") != digest("a", "bc") != digest("abc")
    assert digest("ab", b"c") == digest(b"ab", "c")


def test_a_damaged_entry_is_put_aside_and_built_again(tmp_path: Path) -> None:
    calls: list[int] = []
    cache, build = Cache(tmp_path / "c"), writer(b"binary" * 100, calls)
    entry = cache.get_or_build(KEY, build)
    data = entry.read_bytes()
    for damaged in (b"", data[:600], data[:100] + bytes([data[100] ^ 1]) + data[101:], data + b"!"):
        entry.write_bytes(damaged)
        calls.clear()
        assert cache.get_or_build(KEY, build) == entry and len(calls) == 1
        assert cache.get_or_build_bytes(KEY, lambda: b"never") == b"binary" * 100
        assert entry.with_name(entry.name + ".damaged").read_bytes() == damaged


def test_a_failing_build_leaves_nothing(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "c")

    def fails(path: Path) -> None:
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.get_or_build(KEY, fails)
    with pytest.raises(RuntimeError, match="wrote nothing"):
        cache.get_or_build(KEY, lambda path: None)
    assert not [p for p in (tmp_path / "c").rglob("*") if p.is_file() or "build" in p.name]
    assert cache.get_or_build_bytes(KEY, lambda: b"good") == b"good"


def test_eight_processes_on_a_cold_key_build_once(tmp_path: Path) -> None:
    start, log = multiprocessing.get_context("fork").Barrier(8), tmp_path / "log"

    def build(path: Path) -> None:
        with log.open("a") as file:
            file.write("built\n")
        time.sleep(0.2)
        path.write_bytes(b"binary")

    def work() -> None:
        start.wait(30)
        assert Cache(tmp_path / "c").get_or_build(KEY, build).read_bytes().startswith(b"binary")

    forked(*[work] * 8)
    assert log.read_text() == "built\n"


def test_threads_build_a_key_once_and_different_keys_at_the_same_time(tmp_path: Path) -> None:
    cache, calls = Cache(tmp_path / "c"), []
    meet = threading.Barrier(2, timeout=60)

    def build(path: Path) -> None:
        calls.append(1)
        meet.wait()  # breaks, and fails the build, unless both builds are under way together
        path.write_bytes(b"binary")

    at_once(*(partial(cache.get_or_build, digest(name), build) for name in "abababab"))
    assert len(calls) == 2


def test_a_killed_builder_stops_nobody(tmp_path: Path) -> None:
    code = f"""
        import sys, time
        from pathlib import Path
        from normgen.cache import Cache
        def build(path):
            path.write_bytes(b"half")
            print("building", flush=True)
            time.sleep(60)
        Cache(Path({str(tmp_path / "c")!r})).get_or_build({KEY!r}, build)
    """
    child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline() == b"building\n"

    def kill() -> None:
        time.sleep(0.1)
        assert not calls, "who waits does not build"
        child.kill()
        child.wait()

    calls: list[int] = []
    path, _ = at_once(lambda: Cache(tmp_path / "c").get_or_build(KEY, writer(b"whole", calls)), kill)
    assert path.read_bytes().startswith(b"whole") and len(calls) == 1
    assert not list((tmp_path / "c").rglob("*build*"))


def test_a_held_lock_delays_but_does_not_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_files, "LOCK_PATIENCE", 0.2)
    path = tmp_path / "lock"
    with cache_files.locked(path):
        begin = time.monotonic()
        with cache_files.locked(path):
            assert 0.15 < time.monotonic() - begin < 60
        cache_files.remove_idle_lock(path)
        assert path.exists()  # its holder's still
    assert not path.exists()


def test_a_lock_is_held_by_one_and_leaves_no_file(tmp_path: Path) -> None:
    inside: list[int] = []

    def work() -> None:
        for _ in range(20):
            with cache_files.locked(tmp_path / "lock"):
                inside.append(1)
                time.sleep(0.0005)
                assert len(inside) == 1
                inside.pop()

    at_once(*[work] * 4)
    assert not list(tmp_path.iterdir())


def test_a_cache_cleared_during_a_build_is_no_fault(tmp_path: Path) -> None:
    calls: list[int] = []

    def build(path: Path) -> None:
        writer(b"binary", calls)(path)
        if len(calls) == 1:
            shutil.rmtree(tmp_path / "c")

    assert Cache(tmp_path / "c").get_or_build(KEY, build).read_bytes().startswith(b"binary")


def test_a_full_disk_sends_the_build_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fsync

    def full(handle: int) -> None:
        monkeypatch.setattr(os, "fsync", real)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(RuntimeWarning, match="No space left"):
        path = Cache(tmp_path / "c").get_or_build(KEY, lambda path: path.write_bytes(b"binary"))
    assert tmp_path not in path.parents
    assert path.read_bytes().startswith(b"binary")
    assert not list((tmp_path / "c").rglob("*build*"))


def test_where_the_default_cache_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NORMGEN_CACHE", raising=False)
    monkeypatch.setenv("NORMGEN_CACHE_DIR", str(tmp_path / "mine"))
    assert default_cache().root == tmp_path / "mine" and default_cache() is default_cache()
    monkeypatch.delenv("NORMGEN_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    if sys.platform == "linux":
        assert default_cache().root == tmp_path / "xdg" / "normgen" / "v1"
    monkeypatch.setenv("NORMGEN_CACHE", "0")
    code = "from normgen.cache import default_cache; print(default_cache().root)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    root = Path(done.stdout.strip())  # which goes with its process
    assert done.returncode == 0 and root.name.startswith("normgen-") and not root.exists()
