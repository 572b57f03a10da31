"""Exchanges between processes of one node, on the host alone: through a file that all have in memory.

Ranks compare by it what they are about to do, at each call: so the host waits for the hosts of its peers, and
for no device.
"""

from __future__ import annotations

import mmap
import os
import socket
import tempfile
import time
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from normgen.runtime.ranks.group import PeerFault

# Of Unix alone.
fcntl: Any = import_module("fcntl") if find_spec("fcntl") else None

_MOST = 4096 - 8  # bytes that a rank tells at once, behind 8 that tell that they are there
_SLOT = 4096
_MARK = 16  # random bytes at the end of a file, by which it is known
_SHARED = Path("/dev/shm")  # memory, where there is such a folder
_EAGER = 0.001  # seconds for which a rank that waits asks again at once
_PAUSE = 5e-5
_LOOKS = 0.5  # seconds after which it looks whether the others are still there


def node_name() -> str:
    """What tells this machine from others, and one start of it from the next."""
    found = socket.gethostname()
    with suppress(OSError):
        found += Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return found


def new_file(ranks: int) -> tuple[str, str]:
    """A file for so many ranks, and the mark by which it is known; empty texts where there can be none."""
    if fcntl is None:
        return "", ""
    try:
        folder = _SHARED if os.access(_SHARED, os.W_OK) else None
        handle, path = tempfile.mkstemp(prefix="normgen-", dir=folder)
        with open(handle, "wb") as file:
            mark = os.urandom(_MARK)
            file.write(bytes(2 * ranks * _SLOT) + mark)
    except OSError:
        return "", ""
    return path, mark.hex()


class NodeRanks:
    """The ranks of a group that are all on one node, as one of them sees them.

    A slot is [exchange & 1][rank], of bytes behind a tag: the number of the exchange, and a checksum, since
    processors may show a tag sooner than what was stored before it. Two halves suffice: a rank stores what it
    tells in exchange e + 2 once it has read e + 1, which its peers store once they have read e.

    A rank holds a lock of the file, which the system takes from it when it ends, in whatever way.
    """

    def __init__(self, path: str, mark: str, rank: int, size: int, seconds: float) -> None:
        """`path`, `mark`: what `new_file` gave one of them. `seconds`: how long to wait for others. OSError
        where this process does not see the file."""
        self.rank, self.size, self._seconds = rank, size, seconds
        self._file = os.open(path, os.O_RDWR)
        try:
            self._memory = mmap.mmap(self._file, 2 * size * _SLOT + _MARK)
            if self._memory[-_MARK:].hex() != mark:
                raise OSError(f"{path} is a different file on this rank")
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)
        except (OSError, ValueError) as fault:
            os.close(self._file)
            raise OSError(str(fault)) from fault
        self._tags = memoryview(self._memory)[: 2 * size * _SLOT].cast("Q")
        self._epoch = 0
        self._fault = ""

    def gather(self, array: NDArray[np.generic], what: str) -> NDArray[np.generic] | None:
        """What all ranks give, of the same shape and type, in an array with a first axis of ranks; None where
        that is too large. `PeerFault` where one has ended, or does not come in time, and ever after. `what`:
        the ranks, for messages."""
        if array.nbytes > _MOST:
            return None
        if self._fault:
            raise PeerFault(self._fault)
        told = array.tobytes()
        self._epoch += 1
        where = self._place(self.rank)
        self._memory[where + 8 : where + 8 + len(told)] = told
        self._tags[where // 8] = self._tag(told)
        try:
            every = self._every(len(told), what)
        except PeerFault as fault:
            self._fault = str(fault)
            raise
        return np.frombuffer(b"".join(every), array.dtype).reshape(self.size, *array.shape)

    def _place(self, rank: int) -> int:
        return ((self._epoch & 1) * self.size + rank) * _SLOT

    def _tag(self, told: bytes) -> int:
        return (self._epoch & 0xFFFFFFFF) << 32 | crc32(told, self._epoch & 0xFFFFFFFF)

    def _told(self, rank: int, size: int) -> bytes | None:
        """What a rank tells in this exchange; None before it does."""
        place = self._place(rank)
        told = self._memory[place + 8 : place + 8 + size]
        return told if self._tags[place // 8] == self._tag(told) else None

    def _every(self, size: int, what: str) -> list[bytes]:
        """What all ranks tell in this exchange."""
        found: dict[int, bytes] = {}
        start = time.monotonic()
        look = start + _LOOKS
        while True:
            for rank in range(self.size):
                if rank not in found and (told := self._told(rank, size)) is not None:
                    found[rank] = told
            if len(found) == self.size:
                return [found[rank] for rank in range(self.size)]
            now = time.monotonic()
            if now > look:
                look = now + _LOOKS
                self._check([rank for rank in range(self.size) if rank not in found], size, what)
                if now - start > self._seconds:
                    late = ", ".join(str(rank) for rank in range(self.size) if rank not in found)
                    raise PeerFault(
                        f"{what}: timed out: rank {late} made no call within {self._seconds:g} s. If it only "
                        "needs more time, raise NORMGEN_RANKS_TIMEOUT"
                    )
            time.sleep(0 if now - start < _EAGER else _PAUSE)

    def _check(self, missing: list[int], size: int, what: str) -> None:
        """`PeerFault` where one of these has ended, and has told nothing before."""
        for rank in missing:
            if self._has_ended(rank) and self._told(rank, size) is None:
                raise PeerFault(f"{what}: the process of rank {rank} has ended")

    def _has_ended(self, rank: int) -> bool:
        if rank == self.rank:
            return False
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)
        except OSError:
            return False
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, rank)
        return True
