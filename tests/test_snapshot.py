"""Digests of every kernel's text, and of the launches that a covering sample of calls plans.

A change that means to move code, and not kernels, leaves them as they are. One that means to change kernels
writes them anew with `--update-golden`, and its commit says which lines changed and why.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, fields
from functools import lru_cache
from typing import Any

import pytest

from normgen import bundled
from normgen.codegen.package import package
from normgen.dsl import load_definition
from normgen.launching.launch import Binding, Launch, LaunchPlan, Operand
from normgen.launching.machine import Machine
from normgen.package.records import Package, PassRecord
from normgen.runtime.planning.choose import alternatives, candidates
from tests.kinds import of_all

HOPPER = Machine("H200", "sm_90", 132, 232448, 233472, cache=60 << 20, programmatic=True)
AMPERE = Machine("A100", "sm_80", 108, 166912, 167936, cache=40 << 20)
# Attributes of the specs that are nothing without a value for them.
GROUPED = ("adagn", "gated_rmsnorm_grouped", "groupnorm", "groupnorm_channels_last")
GROUPED = (*GROUPED, "groupnorm_silu", "groupnorm_silu_channels_last")
ATTRS: dict[str, dict[str, Any]] = {"qk_norm": {"head_dim": 8}} | {name: {"groups": 4} for name in GROUPED}
# (device, element type, length of the last axis, length of the others, elements after each row)
CALLS = (
    *((HOPPER, dtype, size, 8, 0) for dtype in ("bf16", "f32") for size in (300, 4096, 65536)),
    *((AMPERE, dtype, size, 8, 0) for dtype in ("bf16", "f32") for size in (300, 4096, 65536)),
    *((HOPPER, "bf16", size, rows, 0) for size, rows in ((7, 13), (333, 5), (4097, 300), (20001, 9))),
    (HOPPER, "bf16", 4096, 9000, 0),
    (HOPPER, "f16", 1030, 16, 2),
    (HOPPER, "f32", 1025, 6, 7),
    (AMPERE, "f16", 5000, 64, 8),
)
LAUNCH = tuple(field.name for field in fields(Launch) if field.name != "source")
# All that is offered for a call: for one of these calls of each spec.
OFFERED = ((HOPPER, "bf16", 4096, 64, 0), (HOPPER, "f32", 333, 2000, 0), (AMPERE, "bf16", 20001, 300, 0))


def _digest(*parts: object) -> str:
    return hashlib.sha256("\0".join(map(repr, parts)).encode()).hexdigest()[:16]


def binding_of(record: PassRecord, dtype: str, lengths: dict[str, int], gap: int) -> Binding:
    """A call with every tensor: contiguous, but for `gap` elements after each run of the last axis."""
    operands = {}
    for tensor in (*record.reads, *record.writes):
        strides, step = {}, 1
        for axis in reversed([axis for group in tensor.dims for axis in group]):
            strides[axis] = step
            step = step * lengths[axis] + (gap if step == 1 else 0)
        alignment = 16 if not gap else 2
        operands[tensor.name] = Operand(tensor.dtype or dtype, tuple(reversed(strides.items())), alignment)
    return Binding(tuple(lengths.items()), tuple(operands.items()))


@lru_cache(maxsize=64)
def _source(text: str) -> str:
    return _digest(text)


def _launches(launches: Iterable[Launch]) -> str:
    return _digest([[_source(each.source), *(getattr(each, name) for name in LAUNCH)] for each in launches])


def _plan(plan: LaunchPlan) -> str:
    return _digest(_launches(plan.launches), plan.workspace)


def lengths_of(made: Package, record: PassRecord, size: int, rest: int) -> dict[str, int]:
    """The length of every axis: `size` of the last one, `rest` of the others that the spec leaves open."""
    axes = {a.name for a in made.axes}
    axes |= {a for t in (*record.reads, *record.writes) for group in t.dims for a in group}
    last = max(axes - {"..."}, default="...")
    fixed = {axis.name: axis.extent for axis in made.axes if axis.extent}
    return {a: fixed.get(a, size if a == last else rest) for a in sorted(axes)}


def _lines(name: str) -> Iterator[str]:
    made = package(load_definition(bundled.read(name), ATTRS.get(name, {})))
    for direction in ("forward", "backward"):
        record = getattr(made, direction)
        if record is None:
            continue
        for strategy in record.strategies:
            for kernel in strategy.kernels:
                for form in kernel.forms:
                    text = _digest(form.source, [astuple(p) for p in form.parameters])
                    yield f"{direction} {strategy.name} {kernel.name} {form.form} {text}"
        for device, dtype, size, rows, gap in CALLS:
            lengths = lengths_of(made, record, size, rows)
            bound = binding_of(record, dtype, lengths, gap)
            plans = [_plan(each.plan) for each in alternatives(record, bound, device)]
            yield f"{direction} {device.name} {dtype} {rows}x{size}+{gap}: {' '.join(plans)}"
        device, dtype, size, rows, gap = OFFERED[len(name) % len(OFFERED)]
        bound = binding_of(record, dtype, lengths_of(made, record, size, rows), gap)
        for strategy in record.strategies:
            for offers in candidates(strategy, bound, device):
                found = [(c.knobs, _launches(c.lowered.launches)) for c in offers]
                call = f"{device.name} {dtype} {rows}x{size}+{gap}"
                yield f"{direction} {strategy.name} {call}: {len(found)} offers {_digest(found)}"


@pytest.mark.parametrize("name", of_all(bundled.names()))
def test_texts_and_plans_are_as_they_were(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"snapshot/{name}.txt", "\n".join(_lines(name)) + "\n")
