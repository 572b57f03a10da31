"""The disk cache of compiled binaries: content-addressed, shared by processes, safe from half-written files.

An entry is one file: what the compiler wrote, then a trailer with its length and SHA-256 (ELF loaders ignore
what follows the last section, so a shared library loads from where it lies).  An entry appears by an atomic
rename and is checked when it is read; one that fails the check is put aside and built again.  A lock per key
keeps others from building the same thing.  Where a directory cannot be trusted (`cache_files`), the process
works in a private temporary one, after one warning.  `cache_limit` keeps it from growing for ever.
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
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

from normgen.cache_files import locked, make_private, read_private, remove, why_not_trusted
from normgen.cache_limit import count_written
from normgen.errors import warn_once
from normgen.locks import new_lock

_log = logging.getLogger("normgen")

_MAGIC = b"normgen1"
_TRAILER = struct.Struct("<Q32s8s")
_KEY = re.compile(r"[0-9a-f]{64}")
# Faults of the directory, not of the build: they send the process to a temporary directory.
_STORAGE_FAULTS = frozenset(
    getattr(errno, name)
    for name in (
        *("EACCES", "EPERM", "EROFS", "ENOSPC", "EDQUOT", "EIO", "ESTALE"),
        *("EEXIST", "ENOTDIR", "EISDIR", "ELOOP", "ENXIO"),
    )
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


class _Untrusted(Exception):
    """Others have a say in what a folder of the cache holds."""


class Cache:
    """One cache directory. `root` is where entries go: the directory given, or a temporary one instead."""

    def __init__(self, root: Path) -> None:
        self.root = root
        fault = _prepare(root)
        if fault:
            self._leave(root, fault)

    def get_or_build(self, key: str, build: Callable[[Path], object], suffix: str = "") -> Path:
        """The path of the entry `key`, a `digest`. If there is no sound one, `build(path)` writes it first.

        However many threads and processes ask, one builds and the others wait. `build` may use the directory
        of its path for intermediate files. If it raises, so does this, and no file is left.
        """
        assert _KEY.fullmatch(key), key
        root = self.root  # of this build; one within it may leave it meanwhile
        try:
            return self._get_or_build(key, build, suffix)
        except _Untrusted as fault:
            self._leave(root, str(fault))
        except OSError as fault:
            if fault.errno == errno.ENOENT and str(fault.filename).startswith(str(root)):
                pass  # someone cleared the cache at this moment: begin again
            elif fault.errno in _STORAGE_FAULTS and root != _temporary_root():
                self._leave(root, f"cannot write to the cache {root}: {fault.strerror}")
            else:
                raise
        return self._get_or_build(key, build, suffix)

    def get_or_build_bytes(self, key: str, build: Callable[[], bytes], suffix: str = "") -> bytes:
        """The contents of the entry `key`; what `build()` returns if there is no sound one."""
        built: list[bytes] = []

        def write(target: Path) -> None:
            built.append(build())
            target.write_bytes(built[-1])

        path = self.get_or_build(key, write, suffix)
        content = built[-1] if built else _read(path)
        if content is None:  # someone else damaged or removed it in between
            content = build()
        return content

    def path(self, key: str, suffix: str = "") -> Path:
        """Where the entry `key` is, or would be."""
        return self.root / key[:2] / (key + suffix)

    def discard(self, path: Path) -> None:
        """Put aside a file at the place of an entry that is not an entry, or that does not load."""
        aside = path.with_name(path.name + ".damaged")
        with suppress(FileNotFoundError):
            path.lstat()
            remove(aside)
            path.replace(aside)

    def _get_or_build(self, key: str, build: Callable[[Path], object], suffix: str) -> Path:
        path = self.path(key, suffix)
        make_private(path.parent)
        if fault := why_not_trusted(path.parent):
            raise _Untrusted(f"the cache's {fault}")
        if _read(path) is not None:
            return path
        with locked(path.with_name(path.name + ".lock")):
            if _read(path) is not None:
                return path
            if os.path.lexists(path):
                _log.warning("cache entry %s is damaged: building it again", path)
                self.discard(path)
            for left_by_the_dead in path.parent.glob(path.name + ".build-*"):
                shutil.rmtree(left_by_the_dead, ignore_errors=True)
            workplace = Path(tempfile.mkdtemp(prefix=path.name + ".build-", dir=path.parent))
            try:
                target = workplace / ("entry" + suffix)
                build(target)
                written = _seal(target)
                target.replace(path)
            finally:
                shutil.rmtree(workplace, ignore_errors=True)
        count_written(self.root, written, path)
        return path

    def _leave(self, root: Path, reason: str) -> None:
        """Use a temporary directory in place of `root` from now on."""
        if self.root != root:
            return
        self.root = _temporary_root()
        warn_once(f"{reason}; compiled kernels are kept in a temporary directory, for this process only")


def default_cache() -> Cache:
    """The process's cache: in NORMGEN_CACHE_DIR or the user's cache directory; NORMGEN_CACHE=0: temporary."""
    return _opened(_usual_root() or _temporary_root())


def usual_cache() -> Cache | None:
    """`default_cache` where it outlives the process and can be used, else None, and no warning."""
    root = _usual_root()
    return None if root is None or _prepare(root) else _opened(root)


def _usual_root() -> Path | None:
    if os.environ.get("NORMGEN_CACHE") == "0":
        return None
    given = os.environ.get("NORMGEN_CACHE_DIR")
    if given:
        return Path(given).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_cache_dir("normgen", appauthor=False)) / "v1"


_opened = cache(Cache)


def _prepare(root: Path) -> str:
    """Make the directory fit for use, or say why it is not."""
    try:
        make_private(root)
        fault = why_not_trusted(root)
    except OSError as error:
        return f"cannot use the cache {root}: {error.strerror}"
    if fault:
        return f"the cache {fault}"
    if not os.access(root, os.W_OK | os.X_OK):
        return f"cannot write to the cache {root}"
    return ""


def _seal(path: Path) -> int:
    """Append the trailer and force the file to disk: the rename must never publish less than all of it.

    Returns the bytes of the whole file, which only its user may write from now on.
    """
    content = path.read_bytes() if path.exists() or not path.parent.exists() else b""
    if not content:
        raise RuntimeError("the build wrote nothing")
    path.chmod(stat.S_IMODE(path.stat().st_mode) & ~(stat.S_IWGRP | stat.S_IWOTH))
    with path.open("ab") as file:
        file.write(_TRAILER.pack(len(content), hashlib.sha256(content).digest(), _MAGIC))
        file.flush()
        os.fsync(file.fileno())
    return len(content) + _TRAILER.size


def _read(path: Path) -> bytes | None:
    """The contents of a sound entry without its trailer, else None."""
    data = read_private(path)
    if data is None or len(data) <= _TRAILER.size:
        return None
    length, checksum, magic = _TRAILER.unpack_from(data, len(data) - _TRAILER.size)
    content = data[: -_TRAILER.size]
    if magic != _MAGIC or length != len(content) or checksum != hashlib.sha256(content).digest():
        return None
    return content


_temporary: Path | None = None
_temporary_guard = new_lock()


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
