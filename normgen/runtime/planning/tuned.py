"""The planner that goes by schedules that were measured.

What is stored names a schedule and no more: it is taken where the kernels of the call can run so, which their
families tell, and is passed over as stale where not.
"""

from __future__ import annotations

import os
from dataclasses import replace

from normgen.launching.launch import Binding, LaunchPlan
from normgen.launching.machine import Machine
from normgen.package.records import PassRecord
from normgen.runtime.planning import store
from normgen.runtime.planning.choose import Alternative, chosen, plan_launches
from normgen.runtime.planning.made import plan_made
from normgen.runtime.planning.store import Tuned, Workload

VARIABLE = "NORMGEN_TUNED"


def plan_tuned(record: PassRecord, binding: Binding, device: Machine) -> LaunchPlan:
    """The launches of a pass as they were tuned for such a call on such a device, else as should be
    fastest; in a module of one shape, as they were planned when it was made."""
    if record.made is not None:
        return plan_made(record, record.made, binding, device)
    found = tuned(record, binding, device)
    if found is None:
        return plan_launches(record, binding, device)
    stored, alternative = found
    plan = alternative.plan
    return replace(plan, tell=lambda: (*plan.notes, f"tuned: {said_of(stored)}"))


def said_of(stored: Tuned) -> str:
    """What was measured, in a few words."""
    return f"{stored.microseconds:.2f} us measured, {stored.usual:.2f} without"


def tuned(record: PassRecord, binding: Binding, device: Machine) -> tuple[Tuned, Alternative] | None:
    """What is stored for a call, and planned; None where nothing is, or nothing that fits."""
    if device.host or os.environ.get(VARIABLE) == "0":
        return None
    choices = store.choices(Workload(record, device))
    stored = choices.get(call_key(record, binding)) if choices else None
    if stored is None:
        return None
    alternative = chosen(record, binding, device, stored.choice)
    return None if alternative is None else (stored, alternative)


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
