"""What is known of devices, in one table: all that a plan assumes of the machine that it is for.

A driver fills in a `Machine` from what it is told; planning ahead of any device takes one of the table. What
all devices of an architecture have in common is looked up by it and is a property here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

# Of every CUDA device; bytes unless stated.
RESERVED_SHARED = 1024  # what the driver takes of a multiprocessor's shared memory for each block
ORDINARY_SHARED = 48 * 1024  # shared memory that a block may have without asking, its static arrays included
PORTABLE_CLUSTER = 8  # blocks that a cluster may have without asking
REGISTER_BYTES = 4
REGISTERS_PER_THREAD, REGISTER_UNIT = 255, 8  # at most, and how many are given out together
WARP = 32  # threads
QUARTERS = 4  # of a multiprocessor, each with a scheduler and registers of its own
LINE, SECTOR = 128, 32  # memory that one fetch brings to the cache, and its smallest part
# The fraction of multiprocessors that clusters of so many blocks find place on, on an H200: the blocks of one
# are on one GPC, of which some have 16 multiprocessors and some 18.
PLACED: Mapping[int, float] = MappingProxyType({1: 1.0, 2: 1.0, 4: 120 / 132, 8: 120 / 132, 16: 112 / 132})


@dataclass(frozen=True, slots=True)
class Architecture:
    """What the devices of one compute capability have in common."""

    max_cluster: int  # blocks; 1 where there are no clusters
    programmatic: bool  # a kernel may start before the one ahead of it ends
    shared_per_block: int  # bytes
    shared_per_multiprocessor: int  # bytes
    threads_per_multiprocessor: int
    fitted: bool = False  # estimates of registers were fitted to what its compiler takes
    hungry: bool = False  # its compiler is known to take more than the estimates


_AMPERE = Architecture(1, False, 166912, 167936, 2048)
_SMALL_AMPERE = Architecture(1, False, 101376, 102400, 1536)
_HOPPER = Architecture(16, True, 232448, 233472, 2048)
_SMALL_BLACKWELL = Architecture(8, True, 101376, 102400, 1536)
_HOST = "host"

_ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        "sm_80": _AMPERE,
        "sm_86": _SMALL_AMPERE,
        "sm_89": _SMALL_AMPERE,
        "sm_90": replace(_HOPPER, fitted=True),
        "sm_100": replace(_HOPPER, hungry=True),
        "sm_103": _HOPPER,
        "sm_120": _SMALL_BLACKWELL,
        "sm_121": _SMALL_BLACKWELL,
        _HOST: _HOPPER,  # the host executor runs what any device may
    }
)
_CLUSTERS_SINCE = 90  # with 8 blocks at least, on every device


def number_of(arch: str) -> int:
    """The number of an architecture, 90 of sm_90a; that of the device that the host executor imitates."""
    return _CLUSTERS_SINCE if arch == _HOST else int(arch[3:].rstrip("af"))


OLDEST = "sm_80"  # bf16, and copies from memory to shared memory


def is_too_old(arch: str) -> bool:
    """Whether kernels cannot be for an architecture."""
    return number_of(arch) < number_of(OLDEST)


def too_old(arch: str, device: str = "") -> str:
    """What is said of an architecture that is too old, or of a device that has it."""
    which = f"{device} ({arch})" if device else arch
    return (
        f"normgen needs a GPU of compute capability {OLDEST[3]}.{OLDEST[4]} or newer "
        f"(A100, RTX 30, L4, H100, B200, ...); {which} is older"
    )


def architecture(arch: str) -> Architecture:
    """The facts of an architecture like `sm_90` or `sm_90a`; of one that is not known the least that those of
    its age have."""
    known = _ARCHITECTURES.get(arch.rstrip("af"))
    if known is not None:
        return known
    return _SMALL_BLACKWELL if number_of(arch) >= _CLUSTERS_SINCE else _SMALL_AMPERE


@dataclass(frozen=True, slots=True)
class Machine:
    """What a schedule must know of a device. Rates are those of an H200 where nothing better is known."""

    name: str
    arch: str  # such as sm_90, or host
    multiprocessors: int
    shared_per_block: int  # bytes
    shared_per_multiprocessor: int  # bytes
    registers_per_multiprocessor: int = 65536
    threads_per_multiprocessor: int = 2048
    programmatic: bool = False  # its launcher can let a kernel start before the one ahead of it ends
    cache: int = 0  # bytes of the second level; 0 where that is not known
    bandwidth: float = 4e6  # bytes per microsecond, from and to memory
    launch_latency: float = 2.0  # microseconds from one kernel's end to where the next is under way
    peer_latency: float = 2.8  # microseconds until a kernel has what its peers tell it, under load

    @property
    def host(self) -> bool:
        """Whether this is the CPU, whose executor imitates a device: registers and places never run out."""
        return self.arch == _HOST

    @property
    def clusters(self) -> bool:
        """Whether blocks may form clusters."""
        return self.max_cluster > 1

    @property
    def max_cluster(self) -> int:
        """Blocks of a cluster, at most; 1 where there are no clusters."""
        return architecture(self.arch).max_cluster

    @property
    def fitted(self) -> bool:
        """Whether estimates of registers were fitted to what its compiler takes."""
        return architecture(self.arch).fitted

    @property
    def hungry(self) -> bool:
        """Whether its compiler is known to take more registers than the estimates."""
        return architecture(self.arch).hungry

    def registers(self, threads: Any) -> Any:
        """Registers that each of so many threads of a multiprocessor may have, before what one may have at
        most. Of numbers, and of arrays of them."""
        return self.registers_per_multiprocessor // threads // REGISTER_UNIT * REGISTER_UNIT

    def warps(self, registers: int) -> int:
        """Warps that a multiprocessor has registers for, with so many per thread."""
        return QUARTERS * (self.registers_per_multiprocessor // QUARTERS // (WARP * registers))

    def blocks(self, shared: int) -> int:
        """Blocks that a multiprocessor has shared memory for, with so many bytes each."""
        return self.shared_per_multiprocessor // (shared + RESERVED_SHARED)

    def resident(self, threads: int, registers: int, shared: int = 0) -> int:
        """Blocks of so many threads that a multiprocessor has room for. `registers`: of a thread; `shared`:
        bytes of a block."""
        by_registers = WARP * self.warps(registers) // threads
        return min(by_registers, self.blocks(shared), self.threads_per_multiprocessor // threads)

    def share(self, blocks: int, threads: int, registers: int, shared: int) -> float:
        """What so many blocks take of the places that the device has for such ones: more than 1 where not all
        of them run at the same time."""
        return blocks / (self.multiprocessors * max(1, self.resident(threads, registers, shared)))


def machine_of(arch: str, name: str = "", multiprocessors: int = 48, cache: int = 0) -> Machine:
    """A device of an architecture, by default one of the smallest."""
    facts = architecture(arch)
    return Machine(
        name or f"a device of {arch}",
        arch,
        multiprocessors,
        facts.shared_per_block,
        facts.shared_per_multiprocessor,
        threads_per_multiprocessor=facts.threads_per_multiprocessor,
        cache=cache,
    )


# What planning takes for granted where it is told no device.
USUAL_MACHINE = machine_of("sm_90", "NVIDIA H200", 132, 60 << 20)
# Few multiprocessors, so that persistent kernels walk over several rows also on small arrays, of which the
# cache holds few. Kernels run one after the other, and are checked as if they started early.
HOST_MACHINE = replace(machine_of(_HOST, "host", 3, 4096), programmatic=True)

# By a word of what drivers call them.
_NAMED: Mapping[str, Machine] = MappingProxyType(
    {"H100": machine_of("sm_90", "NVIDIA H100", 132, 50 << 20), "H200": USUAL_MACHINE}
)
# Bytes per microsecond, from and to memory.
_BANDWIDTHS: Mapping[str, float] = MappingProxyType({"H100": 2.9e6, "H200": 4.1e6})

_USUAL: Mapping[str, Machine] = MappingProxyType(
    {
        "sm_80": machine_of("sm_80", "NVIDIA A100", 108, 40 << 20),
        "sm_90": USUAL_MACHINE,
        "sm_100": machine_of("sm_100", "NVIDIA B200", 148, 126 << 20),
        _HOST: HOST_MACHINE,
    }
)


def bandwidth_of(device: Machine) -> float:
    """Bytes per microsecond, from and to memory: of a device that is not known what it says itself."""
    return next((each for word, each in _BANDWIDTHS.items() if word in device.name), device.bandwidth)


def machine_named(name: str) -> Machine:
    """A device by what its driver calls it. ValueError where it is not known here."""
    known = next((each for word, each in _NAMED.items() if word in name), None)
    if known is None:
        raise ValueError(f"{name} is not known; known devices are {', '.join(_NAMED)}")
    return replace(known, name=name)


def usual_machine(arch: str) -> Machine:
    """The usual device of an architecture, for planning without one."""
    known = _USUAL.get(arch.rstrip("af"))
    return machine_of(arch) if known is None else replace(known, arch=arch)
