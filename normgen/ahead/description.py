"""The JSON beside each binary: all that is needed to launch its kernel without normgen.

docs/binaries.md explains every field. `SCHEMA` is raised when one changes its meaning or goes.
"""

from __future__ import annotations

import json
from hashlib import sha256
from struct import calcsize
from typing import Any

from normgen.ahead.cases import Cases, kernel_of
from normgen.ahead.interface import bytes_of, forms_of, size_names, tensors, texts_of
from normgen.launching.case import Case
from normgen.launching.in_place import pairs_in_place
from normgen.launching.launch import Launch, LaunchPlan, Slot
from normgen.launching.tracing import formula_of
from normgen.package.operands import axis_name

SCHEMA = 1
_TYPES = {"P": "pointer", "i": "int32", "q": "int64", "I": "uint32", "f": "float32"}


def description(cases: Cases, kernel: Launch, file: str, binary: bytes, spec: str, writer: str) -> str:
    """The JSON of one kernel. `file`: the name of its binary; `writer`: who wrote both."""
    direction, device = cases.direction, cases.device
    given = dict(cases.binding.operands)
    results = [name for name in direction.results if name in given]
    parameters = forms_of(cases)[kernel.entry].parameters
    found = {
        "schema": SCHEMA,
        "written_by": writer,
        "norm": direction.norm,
        "direction": direction.name,
        "spec_sha256": sha256(spec.encode()).hexdigest(),
        "binary": {"file": file, "sha256": sha256(binary).hexdigest(), "bytes": len(binary)},
        "arch": device.arch,
        "planned_for": {"device": device.name, "multiprocessors": device.multiprocessors},
        "needs_all_multiprocessors": cases.resident,
        "dtype": cases.dtype,
        "sizes": {axis_name(axis): length for axis, length in cases.sizes.items()},
        "run_time_sizes": [*size_names(cases).values()],
        "tensors": [
            {
                "name": each.record.name,
                "role": each.record.role,
                "dtype": each.dtype,
                "shape": [*each.shape],
                "access": each.access,
                "alignment": 16,
            }
            for each in tensors(cases)
        ],
        # pairs of a result and an operand that it may lie exactly over
        "in_place": sorted(map(list, pairs_in_place(direction.record, cases.binding, results, ()))),
        "entry": kernel.entry,
        "block": [*kernel.block],
        "dynamic_shared_memory": kernel.shared,
        "cluster": [kernel.cluster, 1, 1],
        "launch_attributes": {"programmatic_stream_serialization": kernel.programmatic},
        "argument_bytes": calcsize(kernel.format),
        "arguments": [
            {
                "type": _TYPES[code],
                "offset": calcsize(kernel.format[: place + 1]) - calcsize(code),
                "meaning": parameter.meaning,
            }
            for place, (code, parameter) in enumerate(zip(kernel.format, parameters, strict=True))
        ],
        "launches": [launch for case in cases.cases for launch in _launches(cases, case, kernel)],
    }
    return json.dumps(found, indent=1) + "\n"


def _launches(cases: Cases, case: Case[LaunchPlan], kernel: Launch) -> list[dict[str, Any]]:
    """The launches of a kernel in a case: where in the order of the case, and with what."""
    name, plan = size_names(cases).__getitem__, case.value
    scratch = {array: (shape, dtype) for array, shape, dtype in plan.workspace}

    def value(given: Any) -> str:
        """An array, scratch memory or an attr by name, or a formula."""
        if not isinstance(given, Slot):
            return formula_of(given).text(name)
        return f"scratch {given.name}" if given.name in scratch else given.name

    return [
        {
            "when": [*case.limits.texts(name)],
            "step": step,
            "steps": len(plan.launches),
            "grid": texts_of(launch.grid, name),
            "values": [*map(value, launch.values)],
            "zeroes_scratch": launch.clears or None,
            "scratch": [
                {
                    "name": array,
                    "dtype": dtype,
                    "shape": texts_of(shape, name),
                    "bytes": bytes_of(shape, dtype).text(name),
                }
                for array, (shape, dtype) in scratch.items()
                if array in (*launch.reads, *launch.writes)
            ],
        }
        for step, launch in enumerate(plan.launches, 1)
        if kernel_of(launch) == kernel
    ]
