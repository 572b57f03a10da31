"""How much a cache may hold: counting what is written, and removing what was not used for longest.

A file in the cache says how many bytes its entries have, and each entry that is written is added to it. The
entries themselves are looked at only where the sum goes over the limit, or the file is missing or damaged. So
the count may be off until then, by what processes wrote that were killed, or wrote at the same time.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from normgen.cache_files import locked, read_private, remove, remove_idle_lock, write_whole
from normgen.errors import warn_once

VARIABLE = "NORMGEN_CACHE_LIMIT"
USUAL_LIMIT = 1 << 30

_COUNT = "size"
_LOCK = ".lock"
_BUILD = ".build-"
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
# What is left over when a cache is full, so that it is not full again at once.
_KEPT = 0.8
# A build does not take longer; what is older was left by a process that was killed.
_LONGEST_BUILD = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of a cache. `used`: when, in seconds since the epoch, to an hour."""

    path: Path
    bytes: int
    used: float


def parse_size(text: str) -> int:
    """The bytes that a text such as "500M", "2 GiB" or "1.5g" says, in powers of 1024; ValueError."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a size: write, for instance, 500M or 2G")
    return int(float(found[1]) * (1 << _UNITS[found[2].upper()]))


def size_limit() -> int:
    """The value of NORMGEN_CACHE_LIMIT, by default 1 GiB; 0: no limit."""
    given = os.environ.get(VARIABLE)
    if not given:
        return USUAL_LIMIT
    try:
        return parse_size(given)
    except ValueError as fault:
        warn_once(f"{VARIABLE}: {fault}; the limit is 1 GiB")
        return USUAL_LIMIT


def entries(root: Path) -> Iterator[Entry]:
    """The entries of a cache, and those that were put aside, without locks."""
    for path, status in _files(root):
        if stat.S_ISREG(status.st_mode) and path.suffix != _LOCK:
            yield Entry(path, status.st_size, status.st_mtime)


def count_written(root: Path, written: int, path: Path) -> None:
    """Count an entry of `written` bytes that is now at `path`; remove others where there is too much."""
    with suppress(OSError), locked(root / (_COUNT + _LOCK)):
        limit = size_limit()
        counted = _read_count(root)
        total = sum(entry.bytes for entry in entries(root)) if counted is None else counted + written
        if limit and total > limit:
            total, _ = _remove_oldest(root, int(limit * _KEPT), path)
        write_whole(root / _COUNT, b"%d" % total)


def prune(root: Path, limit: int | None) -> int:
    """Remove what killed processes left, and the entries that were not used for longest until the others have
    `limit` bytes or less (None: any amount).

    Returns how many entries went. Safe while other processes use the cache.
    """
    with locked(root / (_COUNT + _LOCK)):
        for path, status in list(_files(root)):
            if path.suffix == _LOCK:
                remove_idle_lock(path)
            elif _BUILD in path.name and time.time() - status.st_mtime > _LONGEST_BUILD:
                remove(path)
        total, removed = _remove_oldest(root, limit, None)
        write_whole(root / _COUNT, b"%d" % total)
    return removed


def _remove_oldest(root: Path, limit: int | None, keep: Path | None) -> tuple[int, int]:
    """Remove entries but `keep`, least recently used first; the bytes that are left, and how many went."""
    found = sorted(entries(root), key=lambda entry: entry.used)
    total, removed = sum(entry.bytes for entry in found), 0
    for entry in found:
        if limit is None or total <= limit:
            break
        if entry.path != keep:
            with suppress(OSError):
                removed += remove(entry.path)
                total -= entry.bytes
    return total, removed


def _files(root: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for folder in sorted(root.glob("??")):
        with suppress(OSError), os.scandir(folder) as found:
            for file in found:
                with suppress(OSError):
                    yield Path(file.path), file.stat(follow_symlinks=False)


def _read_count(root: Path) -> int | None:
    content = read_private(root / _COUNT)
    return int(content) if content is not None and re.fullmatch(rb"\d{1,18}", content) else None
