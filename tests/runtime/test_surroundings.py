"""What calls meet that is none of their making: full disks, forks, old devices, arrays that say nonsense."""

from __future__ import annotations

import errno
import os
import re
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import normgen
from normgen.arrays import view
from normgen.cache import Cache, digest
from normgen.devices.cuda.executor import CudaExecutor
from normgen.errors import DeviceMissing
from normgen.runtime.norm import Norm
from normgen.runtime.planning.choose import Running
from tests.fakes.driver import FakeDriver

pytestmark = pytest.mark.kernels

NORM = normgen.load("norm ground\ninput x[..., D]\noutput y[..., D] = x * rsqrt(mean[D](x^2) + 1)")


def test_a_disk_that_is_full_within_a_build(tmp_path: Path) -> None:
    """A build that needs another entry of the cache, of whose directory nothing can be written any more."""
    cache, full = Cache(tmp_path / "c"), tmp_path / "c"

    def write(path: Path) -> None:
        if full in path.parents:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        path.write_bytes(b"binary")

    def outer(path: Path) -> None:
        cache.get_or_build(digest("inner"), write)
        write(path)

    with pytest.warns(RuntimeWarning, match="No space left"):
        path = cache.get_or_build(digest("outer"), outer)
    assert full not in path.parents and path.read_bytes().startswith(b"binary")
    assert cache.root in path.parents and cache.path(digest("inner")).exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform does not fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")
def test_a_child_that_forked_while_another_thread_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    parent, planning, done = os.getpid(), threading.Event(), threading.Event()
    usual = Running.space

    def space(self: Any, kernel: Any) -> Any:
        """Schedules that take the parent long to list."""
        if os.getpid() == parent:
            planning.set()
            done.wait(60)
        return usual(self, kernel)

    monkeypatch.setattr(Running, "space", space)
    norm, x = Norm(NORM.package), np.ones((2, 8), np.float32)
    thread = threading.Thread(target=norm.forward, args=(x,))
    thread.start()
    assert planning.wait(60)
    child = os.fork()
    if not child:
        code = 1
        try:
            code = 0 if norm.forward(x).y.shape == (2, 8) else 2
        finally:
            os._exit(code)
    try:
        deadline = time.monotonic() + 60
        found, status = os.waitpid(child, os.WNOHANG)
        while not found and time.monotonic() < deadline:
            time.sleep(0.02)
            found, status = os.waitpid(child, os.WNOHANG)
        if not found:
            os.kill(child, 9)
            os.waitpid(child, 0)
        assert found and status == 0, "the child hangs" if not found else status
    finally:
        done.set()
        thread.join()


def test_every_lock_is_one_that_children_find_open() -> None:
    package = Path(normgen.__file__).parent
    made = re.compile(r"threading\.R?Lock\(|functools import .*cached_property|functools\.cached_property")
    texts = ((path, path.read_text(encoding="utf-8")) for path in package.rglob("*.py"))
    assert [path.name for path, text in texts if made.search(text)] == ["locks.py"]


@pytest.mark.parametrize(("arch", "taken"), [("sm_75", False), ("sm_80", True), ("sm_121", True)])
def test_devices_that_are_too_old(arch: str, taken: bool) -> None:
    driver = FakeDriver(arch=arch)
    if taken:
        assert CudaExecutor(driver=driver).device.arch == arch
        return
    with pytest.raises(
        DeviceMissing, match=r"^normgen needs .* 8\.0 or newer .*; Imaginary \(sm_75\) is older$"
    ):
        CudaExecutor(driver=driver)


def test_sizes_of_any_whole_number() -> None:
    told = NORM.workspace("forward", {"...": 4, "D": 8})
    for sizes in ({"...": np.int64(4), "D": np.uint8(8)}, {"...": (np.int32(2), 2), "D": 8}):
        assert NORM.workspace("forward", sizes) == told
    for wrong in (8.0, "8", None, (2, 4.0)):
        with pytest.raises(TypeError, match=r"^sizes: D must be an int or a tuple of ints but is "):
            NORM.workspace("forward", {"...": 4, "D": wrong})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match=r"^sizes: D must not be negative but is -8$"):
        NORM.workspace("forward", {"...": 4, "D": -8})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"shape": None}, "is malformed"),
        ({"shape": (2.5,)}, "is malformed"),
        ({"data": 7}, "is malformed"),
        ({"data": (1, 2, 3)}, "is malformed"),
        ({"data": ("address", False)}, "is malformed"),
        ({"strides": 4}, "is malformed"),
        ({"strides": (4, 4, 4)}, "3 strides for 2 dimensions"),
        ({"stream": "x"}, "is malformed"),
        ({"typestr": ...}, "has no 'typestr'"),
        ({"shape": ...}, "has no 'shape'"),
        ({"data": ...}, "has no 'data'"),
        (None, "is malformed"),
    ],
)
def test_an_interface_that_says_nonsense(change: dict[str, Any] | None, said: str) -> None:
    whole = {"shape": (2, 8), "typestr": "<f4", "data": (256, False), "strides": None, "version": 3}
    told = None if change is None else {k: v for k, v in {**whole, **change}.items() if v is not ...}
    with pytest.raises(TypeError, match=f"its __cuda_array_interface__ {said}|{said}"):
        view(SimpleNamespace(__cuda_array_interface__=told), "x")
