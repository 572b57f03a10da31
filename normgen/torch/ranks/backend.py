"""Which backend ranks exchange numbers by: peer memory, or the collectives of torch.distributed.

All ranks of a group choose the same one in their first call: each sends which backend it asks for, which node
and device it has, and whether it can access the memory of all others.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from normgen.runtime.ranks.node import node_name
from normgen.runtime.ranks.peer_memory import MOST_RANKS
from normgen.torch.ranks.store import RankStore
from normgen.torch.ranks.transport import CudaTransport

VARIABLE = "NORMGEN_RANKS_BACKEND"
# (peer-memory: in separate kernels; in-kernel: within the norm's kernel, if it can; auto: within kernels that
# leave room for others that wait)
AUTO, PEER_MEMORY, IN_KERNEL, COLLECTIVE = "auto", "peer-memory", "in-kernel", "collective"
BACKENDS = (AUTO, PEER_MEMORY, IN_KERNEL, COLLECTIVE)
USUAL = AUTO  # if the variable is unset
UNDECIDED = "undecided: ranks agree in their first exchange"
_WHAT = "choosing a backend"


@dataclass(frozen=True, slots=True)
class Facts:
    """What a rank sends about itself. `lacks`: why it cannot use peer memory; `device`: identifies its device
    on its node."""

    wish: str
    node: str
    lacks: str
    device: str


def wish() -> str:
    """What NORMGEN_RANKS_BACKEND asks for. ValueError where there is no such backend."""
    found = os.environ.get(VARIABLE, USUAL)
    if found not in BACKENDS:
        raise ValueError(f"{VARIABLE} must be {', '.join(BACKENDS[:-1])} or {BACKENDS[-1]} but is {found}")
    return found


def refusal(transport: CudaTransport, store: RankStore, size: int) -> str:
    """Why ranks do not use peer memory; empty if they do. The same on all ranks."""
    if size == 1:
        return "there is one rank"
    lacks = transport.lacks()
    mine = Facts(wish(), node_name(), lacks, "" if lacks else transport.name())
    every = [Facts(**json.loads(text)) for text in store.told(json.dumps(asdict(mine)), _WHAT)]
    against = unfit(every)
    if against:
        return against
    peer = transport.unreachable([each.device for each in every])
    told = store.told("" if peer is None else str(peer), _WHAT)
    for rank, text in enumerate(told):
        if text:
            return f"rank {rank} cannot access the memory of rank {text}"
    return ""


def unfit(every: Sequence[Facts]) -> str:
    """Why ranks with these facts cannot use peer memory; empty if the facts do not forbid it."""
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
