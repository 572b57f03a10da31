"""The disk cache of compiled binaries: content-addressed, shared by processes, safe from half-written files.

An entry is one file: what the compiler wrote, then a trailer with its length and SHA-256 (ELF loaders ignore
what follows the last section, so a shared library loads from where it lies).  An entry appears by an atomic
rename and is checked when it is read; one that fails the check is put aside and built again.  A lock per key
keeps others from building the same thing; it is the kernel's (`flock`), so it dies with its owner.  Without a
trustworthy directory the process works in a private temporary one, after one warning.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import logging
import os
import re
import shutil
import stat
import struct
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

if sys.platform != "win32":
    import fcntl

_log = logging.getLogger("normgen")

_MAGIC = b"normgen1"
_TRAILER = struct.Struct("<Q32s8s")
_KEY = re.compile(r"[0-9a-f]{64}")
# An owner that neither finishes nor dies (a lock server gone) must not stop everyone: then build without the
# lock, which only costs a second compile.
_LOCK_PATIENCE = 900.0
# Faults of the directory, not of the build: they send the process to a temporary directory.
_STORAGE_FAULTS = frozenset(
    getattr(errno, name)
    for name in ("EACCES", "EPERM", "EROFS", "ENOSPC", "EDQUOT", "EIO", "ESTALE", "ENOTDIR")
    if hasattr(errno, name)
)


def digest(*parts: str | bytes) -> str:
    """The key of a build: SHA-256 of all that its result depends on, each part kept apart from the next."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(struct.pack("<Q", len(data)))
        total.update(data)
    return total.hexdigest()


class Cache:
    """One cache directory. `root` is where entries go: the directory given, or a temporary one instead."""

    def __init__(self, root: Path) -> None:
        self.root = root
        fault = _prepare(root)
        if fault:
            self._leave(fault)

    def get_or_build(self, key: str, build: Callable[[Path], None], suffix: str = "") -> Path:
        """The path of the entry `key`, a `digest`. If there is no sound one, `build(path)` writes it first.

        However many threads and processes ask, one builds and the others wait. `build` may use the directory
        of its path for intermediate files. What it raises is raised here, and leaves nothing behind.
        """
        assert _KEY.fullmatch(key), key
        try:
            return self._get_or_build(key, build, suffix)
        except OSError as fault:
            if fault.errno == errno.ENOENT and str(fault.filename).startswith(str(self.root)):
                pass  # someone cleared the cache at this moment: begin again
            elif fault.errno in _STORAGE_FAULTS and self.root != _temporary_root():
                self._leave(f"cannot write to the cache {self.root}: {fault.strerror}")
            else:
                raise
        return self._get_or_build(key, build, suffix)

    def get_or_build_bytes(self, key: str, build: Callable[[], bytes], suffix: str = "") -> bytes:
        """The contents of the entry `key`, built by `build()` if there is no sound one."""
        path = self.get_or_build(key, lambda target: _write(target, build()), suffix)
        content = _read(path)
        if content is None:  # someone else damaged or removed it in between
            content = build()
        return content

    def discard(self, key: str, suffix: str = "") -> None:
        """Put aside an entry that is sound on disk and yet of no use: the loader refused it."""
        path = self._path(key, suffix)
        if path.exists():
            path.replace(path.with_name(path.name + ".damaged"))

    def _path(self, key: str, suffix: str) -> Path:
        return self.root / key[:2] / (key + suffix)

    def _get_or_build(self, key: str, build: Callable[[Path], None], suffix: str) -> Path:
        path = self._path(key, suffix)
        if _read(path) is not None:
            return path
        make_private(path.parent)
        with locked(path.with_name(path.name + ".lock")):
            if _read(path) is not None:
                return path
            if path.exists():
                _log.warning("cache entry %s is damaged: building it again", path)
                self.discard(key, suffix)
            for left_by_the_dead in path.parent.glob(path.name + ".build-*"):
                shutil.rmtree(left_by_the_dead, ignore_errors=True)
            workplace = Path(tempfile.mkdtemp(prefix=path.name + ".build-", dir=path.parent))
            try:
                target = workplace / ("entry" + suffix)
                build(target)
                _seal(target)
                target.replace(path)
            finally:
                shutil.rmtree(workplace, ignore_errors=True)
        return path

    def _leave(self, reason: str) -> None:
        self.root = _temporary_root()
        _warn_once(f"{reason}; compiled kernels are kept in a temporary directory, for this process only")


def default_cache() -> Cache:
    """The process's cache: in NORMGEN_CACHE_DIR or the user's cache directory; NORMGEN_CACHE=0: temporary."""
    if os.environ.get("NORMGEN_CACHE") == "0":
        return _opened(_temporary_root())
    given = os.environ.get("NORMGEN_CACHE_DIR")
    if given:
        return _opened(Path(given).expanduser().absolute())
    import platformdirs

    return _opened(Path(platformdirs.user_cache_dir("normgen", appauthor=False)) / "v1")


_opened = cache(Cache)


def _prepare(root: Path) -> str:
    """Make the directory fit for use, or say why it is not: who can write there can make us run his code."""
    try:
        make_private(root)
        status = root.stat()
    except OSError as fault:
        return f"cannot use the cache {root}: {fault.strerror}"
    if sys.platform != "win32":
        if status.st_uid != os.geteuid():
            return f"the cache {root} belongs to another user"
        if status.st_mode & stat.S_IWOTH:
            return f"the cache {root} can be written by everyone"
    if not os.access(root, os.W_OK | os.X_OK):
        return f"cannot write to the cache {root}"
    return ""


def make_private(directory: Path) -> None:
    if not directory.is_dir():
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(mode=0o700, exist_ok=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file at `path`. It is never removed, or two owners could lock two files of one name."""
    if sys.platform == "win32":
        yield
        return
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        pause, deadline = 0.001, time.monotonic() + _LOCK_PATIENCE
        while time.monotonic() < deadline:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(pause)
                pause = min(2 * pause, 0.05)
            except OSError:  # a file system without locks
                break
        yield
    finally:
        # Unlocked by name and not by closing alone: a forked child may hold a copy of the handle.
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _seal(path: Path) -> None:
    """Append the trailer and force the file to disk: the rename must never publish less than all of it."""
    content = path.read_bytes() if path.exists() or not path.parent.exists() else b""
    if not content:
        raise RuntimeError("the build wrote nothing")
    with path.open("ab") as file:
        file.write(_TRAILER.pack(len(content), hashlib.sha256(content).digest(), _MAGIC))
        file.flush()
        os.fsync(file.fileno())


def _read(path: Path) -> bytes | None:
    """The contents of a sound entry without its trailer, else None."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if len(data) <= _TRAILER.size:
        return None
    length, checksum, magic = _TRAILER.unpack_from(data, len(data) - _TRAILER.size)
    content = data[: -_TRAILER.size]
    if magic != _MAGIC or length != len(content) or checksum != hashlib.sha256(content).digest():
        return None
    return content


_temporary: Path | None = None
_temporary_guard = threading.Lock()


def _temporary_root() -> Path:
    """A private directory of this process, removed when it exits."""
    global _temporary
    with _temporary_guard:
        if _temporary is None:
            _temporary = Path(tempfile.mkdtemp(prefix="normgen-"))
            atexit.register(_remove_if_ours, _temporary, os.getpid())
        return _temporary


def _remove_if_ours(directory: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked child leaves its parent's directory alone
        shutil.rmtree(directory, ignore_errors=True)


@cache
def _warn_once(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=2)
