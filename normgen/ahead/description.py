"""The JSON beside each binary: all that is needed to launch its kernel without normgen.

docs/binaries.md explains every field. `SCHEMA` is raised when one changes its meaning or goes.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

from normgen.ahead.cases import Case, Cases, Text
from normgen.ahead.interface import (
    arguments,
    bytes_of_arguments,
    size_names,
    spec_digest,
    tensors,
    values,
)
from normgen.launching.in_place import pairs_in_place
from normgen.package.operands import axis_name

SCHEMA = 1


def description(cases: Cases, text: Text, file: str, binary: bytes, spec: str, writer: str) -> str:
    """The JSON of one kernel. `file`: the name of its binary; `writer`: who wrote both."""
    direction, device = cases.direction, cases.device
    found = {
        "schema": SCHEMA,
        "written_by": writer,
        "norm": direction.norm,
        "direction": direction.name,
        "spec_sha256": spec_digest(spec),
        "binary": {"file": file, "sha256": sha256(binary).hexdigest(), "bytes": len(binary)},
        "arch": device.arch,
        "planned_for": {"device": device.name, "multiprocessors": device.multiprocessors},
        "needs_all_multiprocessors": cases.resident,
        "dtype": cases.dtype,
        "sizes": {axis_name(axis): length for axis, length in cases.sizes.items()},
        "run_time_sizes": [*size_names(cases).values()],
        "tensors": _tensors(cases),
        "in_place": _in_place(cases),
        "entry": text.entry,
        "block": [*text.block],
        "dynamic_shared_memory": text.shared,
        "cluster": [text.cluster, 1, 1],
        "launch_attributes": {"programmatic_stream_serialization": text.programmatic},
        "argument_bytes": bytes_of_arguments(text),
        "arguments": [
            {"type": each.type, "offset": each.offset, "meaning": each.meaning} for each in arguments(text)
        ],
        "launches": [launch for case in cases.cases for launch in _launches(cases, case, text)],
    }
    return json.dumps(found, indent=1) + "\n"


def _tensors(cases: Cases) -> list[dict[str, Any]]:
    return [
        {
            "name": each.record.name,
            "role": each.record.role,
            "dtype": each.dtype,
            "shape": [*each.shape],
            "access": each.access,
            "alignment": 16,
        }
        for each in tensors(cases)
    ]


def _in_place(cases: Cases) -> list[list[str]]:
    """Pairs of a result and an operand that it may lie exactly over."""
    given = dict(cases.binding.operands)
    results = [name for name in cases.direction.results if name in given]
    return sorted(map(list, pairs_in_place(cases.direction.record, cases.binding, results, ())))


def _launches(cases: Cases, case: Case, text: Text) -> list[dict[str, Any]]:
    """The launches of a kernel in a case: where in the order of the case, and with what."""
    names = size_names(cases)
    return [
        {
            "when": [*case.limits.texts(names)],
            "step": step,
            "steps": len(case.steps),
            "grid": [each.text(names.__getitem__) for each in launch.grid],
            "values": [*values(launch, cases, case.scratch)],
            "zeroes_scratch": launch.clears or None,
            "scratch": [
                {
                    "name": each.name,
                    "dtype": each.dtype,
                    "shape": [length.text(names.__getitem__) for length in each.shape],
                    "bytes": each.bytes.text(names.__getitem__),
                }
                for each in case.scratch
                if each.name in (*launch.text.reads, *launch.text.writes)
            ],
        }
        for step, launch in enumerate(case.steps, 1)
        if launch.text == text
    ]
