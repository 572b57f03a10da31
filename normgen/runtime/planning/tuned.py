"""Schedules that were measured: a store by device and kernels, and the planner that goes by it.

`normgen tune` writes the store, one small JSON file for the kernels of a pass on a kind of device, in the
folder `tuned` of the cache. A process reads a file once, when it first plans a call of those kernels, so that
the same store always gives the same plans. What is stored names a schedule and no more: it is taken where the
family of each kernel offers that very schedule for the call, and is passed over where not.
"""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from normgen.cache import default_cache, digest
from normgen.cache_files import locked, make_private, read_plain
from normgen.launching.knobs import Knobs
from normgen.launching.launch import Binding, LaunchPlan
from normgen.launching.machine import Machine
from normgen.package.records import PassRecord
from normgen.runtime.planning.choose import Alternative, Choice, chosen, plan_launches

VARIABLE = "NORMGEN_TUNED"
FOLDER = "tuned"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Tuned:
    """A choice that was measured: its time in microseconds, and that of what the estimates would have
    taken."""

    choice: Choice
    microseconds: float
    usual: float


def plan_tuned(record: PassRecord, binding: Binding, device: Machine, header: str = "") -> LaunchPlan:
    """The launches of a pass as they were tuned for such a call on such a device, else as should be
    fastest."""
    found = tuned(record, binding, device, header)
    if found is None:
        return plan_launches(record, binding, device, header)
    stored, alternative = found
    plan = alternative.plan
    return replace(plan, tell=lambda: (*plan.notes, f"tuned: {said_of(stored)}"))


def said_of(stored: Tuned) -> str:
    """What was measured, in a few words."""
    return f"{stored.microseconds:.2f} us measured, {stored.usual:.2f} without"


def tuned(
    record: PassRecord, binding: Binding, device: Machine, header: str
) -> tuple[Tuned, Alternative] | None:
    """What is stored for a call, and planned; None where nothing is, or nothing that fits."""
    if device.host or os.environ.get(VARIABLE) == "0":
        return None
    stored = _read(store_path(record, device, header)).get(call_key(record, binding))
    if stored is None:
        return None
    alternative = chosen(record, binding, device, header, stored.choice)
    return None if alternative is None else (stored, alternative)


def store(
    record: PassRecord, binding: Binding, device: Machine, header: str, title: str, found: Tuned | None
) -> Path:
    """Keep what was measured for such a call, or forget what was kept; returns the file.

    `title` says whose kernels they are, for people who read it. Any number of processes may do this at once.
    Plans that norms of this process have made already stay as they are.
    """
    path = store_path(record, device, header)
    make_private(path.parent)
    with locked(path.with_name(path.name + ".lock")):
        choices = _load(path)
        choices.pop(call_key(record, binding), None)
        if found is not None:
            choices[call_key(record, binding)] = found
        about = {"name": device.name, "arch": device.arch, "multiprocessors": device.multiprocessors}
        calls = {key: _written(choice) for key, choice in sorted(choices.items())}
        text = json.dumps({"format": FORMAT, "device": about, "kernels": title, "calls": calls}, indent=1)
        _write_whole(path, text + "\n")
    _read.cache_clear()
    return path


def store_path(record: PassRecord, device: Machine, header: str) -> Path:
    """The file for the kernels of a pass, as they are emitted, on a kind of device."""
    kind = digest(device.name, device.arch, str(device.multiprocessors))
    return default_cache().root / FOLDER / f"{kind[:16]}-{digest(repr(record), header)[:32]}.json"


def call_key(record: PassRecord, binding: Binding) -> str:
    """What of a call a stored choice is for: its lengths, which tensors there are and their element types,
    and how they are aligned. Whether a forward returns its saves makes no difference."""
    saves = {tensor.name for tensor in record.writes if tensor.role == "save"}
    sizes = " ".join(f"{axis}={length}" for axis, length in sorted(binding.extents))
    present = {name: operand for name, operand in binding.operands if name not in saves}
    dtypes = " ".join(f"{name}:{operand.dtype}" for name, operand in sorted(present.items()))
    alignment = min((operand.alignment for operand in present.values()), default=16)
    added = ", added to" if binding.accumulate else ""
    return f"{sizes}; {dtypes}; {alignment} bytes{added}"


# ------------------------------------------------------------------------------------------------ files


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
        _warn_once(f"tuned schedules are ignored: {path} cannot be used: {type(fault).__name__}: {fault}")
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
        raise ValueError(f"{wrong[0]} is no knob")
    return tuple(content.items())


def _write_whole(path: Path, text: str) -> None:
    """Let the file appear at once, or not at all."""
    handle, name = tempfile.mkstemp(prefix=path.name + ".", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name)
        raise


@cache
def _warn_once(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=2)
