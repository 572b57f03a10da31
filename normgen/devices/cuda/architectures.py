"""Facts of hardware by architecture: what all devices of a compute capability have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

HOST = "host"


@dataclass(frozen=True, slots=True)
class Architecture:
    """What the devices of an architecture have in common; bytes of shared memory, and threads."""

    cluster: int  # blocks of a cluster, at most; 1 where there are no clusters
    programmatic: bool  # whether a kernel may start before the one ahead of it ends
    shared_per_block: int
    shared_per_multiprocessor: int
    threads_per_multiprocessor: int


_AMPERE = Architecture(1, False, 166912, 167936, 2048)
_SMALL_AMPERE = Architecture(1, False, 101376, 102400, 1536)
_HOPPER = Architecture(16, True, 232448, 233472, 2048)
_SMALL_BLACKWELL = Architecture(8, True, 101376, 102400, 1536)

_KNOWN: Mapping[str, Architecture] = MappingProxyType(
    {
        "sm_80": _AMPERE,
        "sm_86": _SMALL_AMPERE,
        "sm_89": _SMALL_AMPERE,
        "sm_90": _HOPPER,
        "sm_100": _HOPPER,
        "sm_103": _HOPPER,
        "sm_120": _SMALL_BLACKWELL,
        "sm_121": _SMALL_BLACKWELL,
        HOST: _HOPPER,  # the host executor runs what any device may
    }
)
_CLUSTERS_SINCE = 90  # with 8 blocks at least, on every device


def architecture(arch: str) -> Architecture:
    """The facts of an architecture like `sm_90` or `sm_90a`; of one that is not known the least that those of
    its age have."""
    known = _KNOWN.get(arch.rstrip("af"))
    if known is not None:
        return known
    return _SMALL_BLACKWELL if int(arch[3:].rstrip("af")) >= _CLUSTERS_SINCE else _SMALL_AMPERE
