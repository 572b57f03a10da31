"""Which engine exchanges what ranks tell: words in peers' memory, or the collectives of torch.distributed.

All ranks of a group come to the same one, in their first call: each tells what it wishes and where it is, and
whether it reaches the memory of all others.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from normgen.runtime.ranks.node import node_name
from normgen.runtime.ranks.words import MOST_RANKS
from normgen.torch.ranks.board import Board
from normgen.torch.ranks.sites import Site

VARIABLE = "NORMGEN_RANKS_ENGINE"
# (words: by kernels of their own; words within: by the kernels that need them, where there are such; auto: by
# such of these as leave room for others that wait)
AUTO, WORDS, WITHIN, COLLECTIVE = "auto", "words", "words-within", "collective"
ENGINES = (AUTO, WORDS, WITHIN, COLLECTIVE)
USUAL = AUTO  # where the variable says nothing
UNDECIDED = "undecided: ranks agree in their first exchange"
_WHAT = "choosing an engine"


@dataclass(frozen=True, slots=True)
class Facts:
    """What a rank tells of itself. `lacks`: why it cannot exchange words; `device`: what tells its device
    from others of its node."""

    wish: str
    node: str
    lacks: str
    device: str


def wish() -> str:
    """What NORMGEN_RANKS_ENGINE asks for. ValueError where there is no such engine."""
    found = os.environ.get(VARIABLE, USUAL)
    if found not in ENGINES:
        raise ValueError(f"{VARIABLE} must be {', '.join(ENGINES[:-1])} or {ENGINES[-1]} but is {found}")
    return found


def refusal(site: Site, board: Board, size: int) -> str:
    """Why ranks do not exchange words; empty where they do. The same on all ranks."""
    if size == 1:
        return "there is one rank"
    lacks = site.lacks()
    mine = Facts(wish(), node_name(), lacks, "" if lacks else site.name())
    every = [Facts(**json.loads(text)) for text in board.told(json.dumps(asdict(mine)), _WHAT)]
    against = unfit(every)
    if against:
        return against
    peer = site.unreachable([each.device for each in every])
    told = board.told("" if peer is None else str(peer), _WHAT)
    for rank, text in enumerate(told):
        if text:
            return f"rank {rank} cannot access the memory of rank {text}"
    return ""


def unfit(every: Sequence[Facts]) -> str:
    """Why ranks of which this is known do not exchange words; empty where that cannot be told from it."""
    first = every[0]
    for rank, each in enumerate(every):
        if each.wish == COLLECTIVE:
            return f"rank {rank} sets {VARIABLE}={COLLECTIVE}"
        if each.lacks:
            return f"rank {rank}: {each.lacks}"
        if each.node != first.node:
            return f"rank {rank} is on a different node than rank 0"
    if len(every) > MOST_RANKS:
        return f"there are {len(every)} ranks, and peer memory is used by at most {MOST_RANKS}"
    devices = [each.device for each in every]
    for rank, device in enumerate(devices):
        if (other := devices.index(device)) != rank:
            return f"ranks {other} and {rank} share a device"
    return ""
