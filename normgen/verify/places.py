"""Where kernels are checked: the host, with a check of every memory access and without, and a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from normgen.errors import CompileError, MachineError, NoDevice
from normgen.verify.events import NO_GPU
from normgen.verify.memory import HOST, Memory

SAMPLED = 3  # of so many groups of cases, the host runs one without checks too
CHECKED_ELEMENTS = 300_000  # beyond that, a case would take the checker seconds


@dataclass(frozen=True, slots=True)
class Place:
    """Where kernels run, and how arrays get there.

    `every`: of how many groups of cases this place takes one. `limit`: cases of more elements are left to
    the other places, which take every one of them. `threads`: any thread may run kernels here.
    """

    name: str
    executor: Any
    memory: Memory
    every: int = 1
    limit: int | None = None
    threads: bool = False

    def takes(self, group: int, elements: int) -> bool:
        """Whether a case of that group and size runs here."""
        if elements > CHECKED_ELEMENTS:
            return self.limit is None
        return group % self.every == 0


@dataclass(frozen=True, slots=True)
class Absent:
    """An executor that is not here: what that means in a few words, and what the machine said."""

    name: str
    missing: str
    reason: str


def find_places(wanted: tuple[str, ...] | None) -> tuple[list[Place], list[Absent]]:
    """The executors, and those that are not here: an error where they were asked for by name."""
    found: list[Place] = []
    missing: list[Absent] = []
    for name in wanted or ("host", "cuda"):
        try:
            found += MAKERS[name]()
        except MachineError as reason:
            if wanted is not None or isinstance(reason, CompileError):
                raise
            missing.append(Absent(name, _lacked(name, reason), str(reason)))
    return found, missing


def _lacked(name: str, reason: MachineError) -> str:
    if name == "host":
        return "kernels cannot run on this CPU"
    return NO_GPU if isinstance(reason, NoDevice) else "no usable GPU here"


def _host() -> list[Place]:
    from normgen.devices.host.compile import find_compiler
    from normgen.devices.host.executor import HostExecutor

    find_compiler()
    checked = Place("host, checked", HostExecutor(checked=True), HOST, limit=CHECKED_ELEMENTS, threads=True)
    return [checked, Place("host", HostExecutor(contracted=True), HOST, every=SAMPLED, threads=True)]


def _cuda() -> list[Place]:
    from normgen.devices.executors import executor_of
    from normgen.verify.memory import cuda

    executor = executor_of(("cuda", 0))
    return [Place("cuda", executor, cuda())]


MAKERS: dict[str, Callable[[], list[Place]]] = {"host": _host, "cuda": _cuda}
