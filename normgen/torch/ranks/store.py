"""An all-gather of texts between the processes of a group, through the group's store, on the host alone."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from datetime import timedelta
from typing import Any

from normgen.runtime.ranks.agreement import CURE
from normgen.runtime.ranks.group import PeerFault
from normgen.runtime.ranks.node import NodeRanks, new_file, node_name

VARIABLE = "NORMGEN_RANKS_TIMEOUT"
_SECONDS = 600.0
_LONGEST = 1e9  # seconds: stores and kernels count nanoseconds in 64 bits


def timeout(usual: float) -> float:
    """How many seconds ranks wait for each other: the value of NORMGEN_RANKS_TIMEOUT, or `usual` if it is
    unset. ValueError if the value is not a positive number of seconds."""
    given = os.environ.get(VARIABLE)
    if not given:
        return usual
    with suppress(ValueError):
        if 0 < (seconds := float(given)) <= _LONGEST:
            return seconds
    raise ValueError(f"{VARIABLE} must be seconds, more than 0 and at most {_LONGEST:.0f}, but is {given}")


class RankStore:
    """The store of a group, in which each rank leaves texts for the others: as many, in the same order.

    A store may outlive a group and keep the texts of an earlier group of the same name. Each rank therefore
    counts how often it has opened the store, and the count is part of every key.
    """

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._time = store.add(f"normgen/times/{rank}", 1)
        self._number = 0  # of texts so far
        self._fault = ""

    def told(self, text: str, what: str) -> list[str]:
        """The texts of all ranks, in the order of ranks. `PeerFault`, which names the missing ranks, if some
        leave none in time, and in every later call: a rank that is late finds texts that nobody answers.
        `what`: what ranks are doing, for messages."""
        if self._fault:
            raise PeerFault(self._fault)
        store, seconds = self._store, timeout(_SECONDS)
        keys = [f"normgen/{self._time}/{self._number}/{rank}" for rank in range(self._size)]
        self._number += 1
        store.set(keys[self._rank], text)
        try:
            store.wait(keys, timedelta(seconds=seconds))
        except RuntimeError as fault:
            missing = [str(rank) for rank, key in enumerate(keys) if not store.check([key])]
            self._fault = (
                f"{what}: rank {', '.join(missing)} made no call within {seconds:g} s, so the group is out "
                f"of step: create a new group. {CURE.capitalize()}; raise {VARIABLE} if they need more time"
            )
            raise PeerFault(self._fault) from fault
        return [store.get(key).decode() for key in keys]


def node_ranks(store: RankStore, rank: int, size: int, what: str) -> NodeRanks | None:
    """The ranks as separate processes of one node; None, on all ranks, if they are not. Raises the same as
    `RankStore.told`."""
    path, mark = new_file(size) if rank == 0 else ("", "")
    try:
        mine = {"node": node_name(), "process": os.getpid(), "path": path, "mark": mark}
        every = [json.loads(text) for text in store.told(json.dumps(mine), what)]
        path, mark = every[0]["path"], every[0]["mark"]
        nodes, processes = {each["node"] for each in every}, {each["process"] for each in every}
        if not path or len(nodes) > 1 or len(processes) < size:
            return None
        found, fault = None, ""
        try:
            found = NodeRanks(path, mark, rank, size, timeout(_SECONDS))
        except OSError as raised:
            fault = str(raised) or type(raised).__name__
        return None if any(store.told(fault, what)) else found
    finally:
        if rank == 0 and path:
            with suppress(OSError):
                os.unlink(path)
