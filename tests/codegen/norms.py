"""Bundled specs as packages, for tests of what is planned and emitted."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from normgen import bundled
from normgen.cache_results import Late
from normgen.codegen.package import package
from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.families.rows.launch.choose import forms_of
from normgen.families.rows.launch.family import default
from normgen.families.rows.launch.schedule import RowSchedule, RowShape
from normgen.families.rows.launch.shape import shape_of
from normgen.launching.call import Call
from normgen.launching.launch import Binding, Launch, LaunchPlan, Operand
from normgen.launching.machine import HOST_MACHINE, Machine
from normgen.package.constants import CONSTANTS, Constants, meaning
from normgen.package.kernels import Kernel, RowsRecord
from normgen.package.operands import FormRecord
from normgen.package.records import Package, PassRecord
from normgen.runtime.planning.choose import plan_launches
from normgen.runtime.planning.registry import family_of
from tests.codegen.ways import offered, pipeline
from tests.kinds import ATTRS

H200 = Machine("H200", "sm_90", 132, 232448, 233472, cache=60 << 20)
SMALL = Machine("small", "sm_80", 2, 101376, 102400)

# Specs whose kernels are of the rows family, forward and backward.
ROWS = (
    "rmsnorm", "layernorm", "softmax", "log_softmax", "l2norm", "add_rmsnorm", "gated_rmsnorm",
    "adaln_modulate", "qk_norm", "dyt",
)  # fmt: skip


@cache
def packaged(name: str) -> Package:
    """The package of a bundled spec."""
    source = bundled.read(name)
    assert source is not None
    return package(load_definition(source, ATTRS.get(name, {})))


def package_of(text: str, **attrs: object) -> Package:
    """The package of a spec given as text."""
    return package(load_definition(Source("spec.norm", text), attrs))


def bound(
    record: PassRecord,
    dtype: str = "f32",
    *,
    without: tuple[str, ...] = (),
    alignment: int = 16,
    padding: int = 0,
    dtypes: dict[str, str] | None = None,
    **extents: int,
) -> Binding:
    """Arrays of the given lengths (`rest` for `...`), contiguous but for `padding` elements after each
    innermost row.
    """
    lengths = {("..." if a == "rest" else a): n for a, n in extents.items()}
    operands = {}
    for tensor in (*record.reads, *record.writes):
        if tensor.name in without:
            continue
        strides: dict[str, int] = {}
        step = 1
        axes = [a for dim in tensor.dims for a in dim]
        for position, axis in enumerate(reversed(axes)):
            strides[axis] = step
            step *= lengths[axis]
            if position == 0 and len(axes) > 1:
                step += padding
        chosen = (dtypes or {}).get(tensor.name) or tensor.dtype or dtype
        operands[tensor.name] = Operand(chosen, tuple(reversed(strides.items())), alignment)
    return Binding(tuple(lengths.items()), tuple(operands.items()))


def bulk_pair(shape: RowShape, device: Machine) -> list[RowSchedule]:
    """Rows of two blocks of 256 threads that arrive as bulk copies and are kept in registers."""
    return [replace(pipeline(shape, 256, 2, stages=2), bulk=True)]


def schedules(record: PassRecord, binding: Binding, device: Machine) -> list[RowSchedule]:
    """The schedule of each kernel of the first strategy, all of the rows family."""
    return [schedule_rows(kernel, Call(binding, device)) for kernel in record.strategies[0].kernels]


def offers(record: PassRecord, binding: Binding, device: Machine) -> list[RowSchedule]:
    """Every schedule of the first kernel of the first strategy, which is of the rows family."""
    kernel, call = record.strategies[0].kernels[0], Call(binding, device)
    assert isinstance(kernel, RowsRecord)
    return list(offered(shape_of(kernel, call), call.device, forms_of(kernel)))


def planned(name: str, direction: str, dtype: str, device: Machine, **extents: int) -> LaunchPlan:
    """What a bundled norm does on a device."""
    package = packaged(name)
    record = getattr(package, direction)
    return plan_launches(record, bound(record, dtype, **extents), device)


def usual_launches(kernel: Kernel, call: Call) -> tuple[Launch, ...]:
    """What a kernel of any family launches by itself."""
    family = family_of(kernel)
    return family.lower(kernel, call, next(family.space(kernel, call))).launches


def schedule_rows(kernel: RowsRecord, call: Call) -> RowSchedule:
    """How a kernel of the rows family runs by itself."""
    found = default(kernel, call)
    assert found is not None, kernel.name
    return found


def host_launches(name: str, direction: str, dtype: str, **extents: int) -> tuple[Launch, ...]:
    """What a bundled norm launches on the host executor's device."""
    return planned(name, direction, dtype, HOST_MACHINE, **extents).launches


class Some(Constants):
    """Constants of some launch: whatever is asked for is there, wanted, or 4, and a row has one block."""

    def __init__(self) -> None:
        for name in CONSTANTS:
            self[name]  # templates read a copy

    def __missing__(self, key: str) -> int | bool | str:
        known: dict[str, int | str] = {"CLUSTER": 1, "MEMBERS": 1, "offset_t": "int", "index_t": "int"}
        said = meaning(key.replace(" ", ""), ())
        return self.setdefault(key, known.get(key, said.startswith("whether") or 4))

    def __hash__(self) -> int:
        return id(self)


def source_of(form: FormRecord) -> str:
    """The text of a form for some launch, in which every operand is there and wanted."""
    return form.text(Some())


def with_source(form: FormRecord, source: str) -> FormRecord:
    """A form with another text."""
    return replace(form, text=Late(form.entry, lambda given: source))
