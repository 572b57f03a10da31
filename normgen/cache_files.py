"""Files and folders that several processes share: which can be trusted, how to read and how to lock them.

Anyone who may write where compiled kernels are kept can make this process run code. So a folder is used only
if it belongs to this user and no one else may write there. A file must be as private, and a regular file: a
FIFO or a device would block its reader.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

if sys.platform != "win32":
    import fcntl

# An owner that neither finishes nor dies (a lock server gone) must not stop everyone: then go on without the
# lock, which only costs a second compile.
LOCK_PATIENCE = 900.0
# A file that is used again is marked so, if the last mark is older than this.
_MARK_EVERY = 3600.0

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_PLAIN = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NO_WAITING = getattr(os, "O_NONBLOCK", 0)


def make_private(directory: Path) -> None:
    """Make a directory that only its user may enter, unless it is there."""
    if not directory.is_dir():
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(mode=0o700, exist_ok=True)


def why_not_trusted(directory: Path) -> str:
    """Why others have a say in what a directory holds, and what to do about it, or "".

    OSError where it cannot be looked at.
    """
    status = directory.stat()
    if sys.platform == "win32":
        return ""
    link = directory.lstat()
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in (os.geteuid(), 0):
        return f"{directory} is a symbolic link that belongs to another user: remove it"
    if status.st_uid != os.geteuid():
        return f"{directory} belongs to another user: set NORMGEN_CACHE_DIR to a directory of your own"
    if status.st_mode & _OTHERS_WRITE:
        who = "everyone" if status.st_mode & stat.S_IWOTH else "its group"
        return f"{directory} can be written by {who}: chmod go-w {directory}"
    return ""


def read_plain(path: Path) -> tuple[bytes, os.stat_result]:
    """The contents of a file, and its status; OSError if it is not a regular file."""
    handle = os.open(path, os.O_RDONLY | _PLAIN | _NO_WAITING)
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "no plain file", str(path))
        return file.read(), status


def read_private(path: Path) -> bytes | None:
    """The contents of a plain file that no one else may write, or None. Marks it as used now."""
    try:
        content, status = read_plain(path)
    except OSError:
        return None
    if sys.platform != "win32" and (status.st_uid != os.geteuid() or status.st_mode & _OTHERS_WRITE):
        return None
    if time.time() - status.st_mtime > _MARK_EVERY:
        with suppress(OSError):
            os.utime(path)
    return content


def write_whole(path: Path, content: bytes) -> None:
    """Let a file appear at once with all its content, or not at all."""
    handle, name = tempfile.mkstemp(prefix=path.name + ".", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name)
        raise


def remove(path: Path) -> bool:
    """Remove whatever is at `path`, a directory with all in it; whether anything was there."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except FileNotFoundError:
        return False
    return True


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file at `path`, which is removed on release.

    The lock is the kernel's (`flock`), so it ends with its owner. A process that gets the lock of a removed
    file tries again: others lock a new file of that name.
    """
    if sys.platform == "win32":
        yield
        return
    handle, held = _lock(path, time.monotonic() + LOCK_PATIENCE)
    try:
        yield
    finally:
        # Unlocked by name and not by closing alone: a forked child may hold a copy of the handle.
        with suppress(OSError):
            if held:
                path.unlink()
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def remove_idle_lock(path: Path) -> None:
    """Remove the lock file at `path` if no one holds it: what an owner left that was killed."""
    if sys.platform == "win32":
        return
    with suppress(OSError):
        handle, held = _lock(path, time.monotonic())
        if held:
            path.unlink()
        os.close(handle)


def _lock(path: Path, deadline: float) -> tuple[int, bool]:
    """An open lock file, and whether it is locked: not after the deadline, nor where locks are unknown."""
    pause = 0.001
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | _PLAIN, 0o600)
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return handle, False
                time.sleep(pause)
                pause = min(2 * pause, 0.05)
            except OSError:  # a file system without locks
                return handle, False
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), path.lstat()):
                return handle, True
        os.close(handle)
