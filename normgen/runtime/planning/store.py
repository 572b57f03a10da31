"""The store of schedules that were measured.

It is one small JSON file for the kernels of a pass on a kind of device, in the folder `tuned` of the cache. A
process looks into the folder once, and reads a file once, so that the same store always gives the same plans.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from normgen.cache import default_cache, digest
from normgen.cache_files import locked, make_private, read_plain, write_whole
from normgen.cache_results import sources
from normgen.errors import warn_once
from normgen.launching.knobs import Knobs
from normgen.launching.machine import Machine
from normgen.package.records import PassRecord
from normgen.runtime.planning.choose import Choice

FOLDER = "tuned"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Tuned:
    """A choice that was measured: its time in microseconds, and that of what the estimates would have
    taken."""

    choice: Choice
    microseconds: float
    usual: float


@dataclass(frozen=True, slots=True)
class Workload:
    """The kernels of a pass, as they are emitted, on a kind of device."""

    record: PassRecord
    device: Machine

    @property
    def kind(self) -> str:
        """A digest of the kind of device."""
        return digest(self.device.name, self.device.arch, str(self.device.multiprocessors))[:16]

    @property
    def kernels(self) -> str:
        """A digest of the kernels' records, and of what makes texts of them."""
        return digest(repr(self.record), sources())[:32]


def where(workload: Workload) -> Path:
    """The place of a workload."""
    return default_cache().root / FOLDER / f"{workload.kind}-{workload.kernels}.json"


def choices(workload: Workload) -> Mapping[str, Tuned]:
    """What is kept, by what of a call it is for."""
    if workload.kind not in _kinds(default_cache().root / FOLDER):
        return {}
    return _read(where(workload))


def put(workload: Workload, key: str, found: Tuned | None, title: str) -> None:
    """Keep what was measured for such a call, or forget what was kept. `title` says whose kernels they are,
    for people who read it. Any number of processes may write at once; plans that norms of this process have
    made already stay as they are."""
    path, device = where(workload), workload.device
    make_private(path.parent)
    with locked(path.with_name(path.name + ".lock")):
        kept = _load(path)
        kept.pop(key, None)
        if found is not None:
            kept[key] = found
        about = {"name": device.name, "arch": device.arch, "multiprocessors": device.multiprocessors}
        calls = {each: _written(choice) for each, choice in sorted(kept.items())}
        content = {"format": FORMAT, "device": about, "kernels": title, "calls": calls}
        write_whole(path, f"{json.dumps(content, indent=1)}\n".encode())
    look_again()


def look_again() -> None:
    """Look into the folder and the files anew."""
    _kinds.cache_clear()
    _read.cache_clear()


@cache
def _kinds(folder: Path) -> frozenset[str]:
    """The kinds of devices that there are files for."""
    return frozenset(path.name.partition("-")[0] for path in folder.glob("*.json"))


@cache
def _read(path: Path) -> Mapping[str, Tuned]:
    return _load(path)


def _load(path: Path) -> dict[str, Tuned]:
    """What a file holds, by call; nothing where it is missing, damaged, or of another format."""
    try:
        content = json.loads(read_plain(path)[0])
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']}, not {FORMAT}")
        return {str(key): _parsed(call) for key, call in content["calls"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as fault:
        warn_once(f"ignoring tuned schedules: cannot use {path}: {type(fault).__name__}: {fault}")
        return {}


def _written(found: Tuned) -> dict[str, Any]:
    content = asdict(found)
    content["choice"]["schedules"] = {name: dict(knobs) for name, knobs in found.choice.schedules.items()}
    return content


def _parsed(content: Mapping[str, Any]) -> Tuned:
    choice = content["choice"]
    schedules = {str(name): _knobs(knobs) for name, knobs in choice["schedules"].items()}
    times = float(content["microseconds"]), float(content["usual"])
    return Tuned(Choice(str(choice["strategy"]), schedules), *times)


def _knobs(content: Mapping[str, Any]) -> Knobs:
    wrong = [name for name, value in content.items() if not isinstance(value, int | str)]
    if wrong:
        raise ValueError(f"{wrong[0]} is not a knob")
    return tuple(content.items())
