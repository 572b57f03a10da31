"""Hand-made packages, a planner and an executor that compute nothing: calls without a compiler.

`rows` normalises rows: x[..., D] with w[D] = 1 and b[D] = 0 gives y and rstd; `groups` does so in x[B,
(G C), ...].
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from normgen.launching.launch import Binding, Buffer, Launch, LaunchPlan, Slot
from normgen.launching.machine import Machine
from normgen.package.direction import directions
from normgen.package.kernels import KernelRecord
from normgen.package.operands import ColumnRecord, FormRecord, OperandRecord, Parameter
from normgen.package.records import AttrRecord, AxisRecord, Package, PassRecord, Strategy, TensorRecord
from normgen.runtime.norm import Norm

DEVICE = Machine("none", "host", 4, 65536, 65536)


def tensor(text: str, role: str, **more: Any) -> TensorRecord:
    """`x[B, (G C), ...]` as a record."""
    name, _, inside = text.rstrip("]").partition("[")
    dims = tuple(tuple(part.strip("() ").split()) for part in inside.split(",") if part.strip())
    return TensorRecord(name, role, dims, **more)


def operand(
    record: TensorRecord, kept: tuple[str, ...], inner: tuple[str, ...], *wanted: str
) -> OperandRecord:
    mine = [axis for dim in record.dims for axis in dim]
    return OperandRecord(
        record.name,
        record.name,
        tuple(a for a in kept if a in mine),
        tuple(a for a in inner if a in mine),
        wanted,
    )


def kernel(
    name: str,
    kept: tuple[str, ...],
    inner: tuple[str, ...],
    reads: tuple[TensorRecord, ...],
    writes: tuple[TensorRecord, ...],
    finals: tuple[TensorRecord, ...] = (),
    exchanges: int = 1,
) -> KernelRecord:
    results = tuple(t.name for t in (*writes, *finals))
    parameters = (*(Parameter("pointer", t.name) for t in (*reads, *writes)), Parameter("scalar", "eps"))
    return KernelRecord(
        name=name,
        kept=kept,
        inner=inner,
        reads=tuple(operand(t, kept, inner, *results) for t in reads),
        writes=tuple(operand(t, kept, inner) for t in writes),
        final_reads=(),
        finals=tuple(operand(t, kept, inner) for t in finals),
        columns=tuple(ColumnRecord(f"{t.name}_sum", (), True, (t.name,)) for t in finals),
        segment=(),
        exchanges=exchanges,
        moments=False,
        functions=False,
        held=0,
        forms=(FormRecord("registers", name, parameters, f"// the kernel {name}\nvoid {name}();\n"),),
    )


def fused(*kernels: KernelRecord) -> tuple[Strategy, ...]:
    """One strategy of these kernels."""
    return (Strategy("fused", kernels),)


X, W, B = (
    tensor("x[..., D]", "input"),
    tensor("w[D]", "param", default=1.0),
    tensor("b[D]", "param", default=0.0),
)
Y, RSTD = tensor("y[..., D]", "output", like="x"), tensor("rstd[...]", "save", dtype="f32")
EPS = AttrRecord("eps", 1e-5, low=0.0, doc="added to the variance")


def rows(attrs: tuple[AttrRecord, ...] = (EPS,), **more: Any) -> Package:
    """x[..., D], w and b -> y, rstd; dy -> dx, dw, db, where the backward reads no b."""
    saved = replace(RSTD, role="saved")
    cotangent = tensor("dy[..., D]", "cotangent", source="y")
    gradients = (
        tensor("dx[..., D]", "gradient", source="x"),
        tensor("dw[D]", "gradient", source="w"),
        tensor("db[D]", "gradient", source="b"),
    )
    reads = (cotangent, X, W, saved)
    first = fused(kernel("f", ("...",), ("D",), (X, W, B), (Y, RSTD)))
    second = fused(kernel("g", ("...",), ("D",), reads, gradients[:1], gradients[1:]))
    forward = PassRecord((X, W, B), (Y, RSTD), first, reduced=("D",))
    backward = PassRecord(reads, gradients, second, reduced=("D",))
    package = Package(
        name="rows_norm",
        doc="Normalises rows.",
        spec="norm rows_norm\n",
        attrs=attrs,
        axes=(AxisRecord("D"),),
        forward=forward,
        backward=backward,
    )
    return replace(package, **more)


def groups(extent: int | None = 2) -> Package:
    """x[B, (G C), ...] -> y, with statistics mu[B, G]; G is fixed."""
    x = tensor("x[B, (G C), ...]", "input")
    w = tensor("w[(G C)]", "param", default=1.0)
    y, mu = tensor("y[B, (G C), ...]", "output", like="x"), tensor("mu[B, G]", "save", dtype="f32")
    kernels = fused(kernel("f", ("B", "G"), ("C", "..."), (x, w), (y, mu)))
    record = PassRecord((x, w), (y, mu), kernels, reduced=("C",))
    axes = (AxisRecord("B"), AxisRecord("G", extent), AxisRecord("C"))
    return Package("group_norm", "", "norm group_norm\n", (EPS,), axes, record, None)


def running() -> Package:
    """x[..., D] with a state r[D] that is updated, and one s[D] that y reads."""
    r, s = tensor("r[D]", "state", dtype="f32"), tensor("s[D]", "state", dtype="f32")
    made = kernel("f", ("...",), ("D",), (X, r, s), (Y, r))
    reads = tuple(replace(o, wanted_by=("r",) if o.tensor == "r" else ("y",)) for o in made.reads)
    record = PassRecord((X, r, s), (Y, r), fused(replace(made, reads=reads)))
    return Package("running_norm", "", "norm running_norm\n", (EPS,), (AxisRecord("D"),), record, None)


def plan(record: PassRecord, binding: Binding, device: Machine) -> LaunchPlan:
    """One launch of every kernel, with all pointers, eps, and a workspace of [multiprocessors, D] floats."""
    present = dict(binding.operands)
    launches, workspace = [], []
    for k in record.kernels:
        reads = [o.tensor for o in k.reads if o.tensor in present]
        writes = [o.tensor for o in (*k.writes, *k.finals) if o.tensor in present]
        scratch = [f"{k.name}.{c.name}" for c in k.columns]
        pointers = [o.tensor for o in (*k.reads, *k.writes, *k.finals)] + scratch
        values = [Slot("pointer", name) for name in pointers] + [Slot("scalar", "eps")]
        workspace += [(name, (device.multiprocessors, dict(binding.extents)["D"]), "f32") for name in scratch]
        launches.append(
            Launch(
                source=k.forms[0].source,
                entry=k.name,
                grid=(1, 1, 1),
                block=(32, 1, 1),
                shared=0,
                format="P" * len(pointers) + "f",
                values=tuple(values),
                reads=tuple(reads),
                writes=(*writes, *scratch),
            )
        )
    return LaunchPlan(tuple(launches), tuple(workspace))


@dataclass
class Recorder:
    """An executor that notes what it is asked to do: launches as (entry, argument values, buffers,
    stream)."""

    device: Machine = DEVICE
    compiled: list[str] = field(default_factory=list)
    launches: list[tuple[str, tuple[Any, ...], tuple[Buffer, ...], int]] = field(default_factory=list)

    def function(self, source: str, entry: str, shared: int) -> str:
        self.compiled.append(entry)
        return entry

    def launch(
        self, function: str, launch: Launch, packed: bytes, buffers: tuple[Buffer, ...], stream: int
    ) -> None:
        self.launches.append((function, struct.unpack(launch.format, packed), buffers, stream))

    def prepare(self, function: str, launch: Launch) -> Any:
        return partial(self.launch, function, launch)

    def last(self) -> dict[str, Any]:
        """The arguments of the last launch that the stub planner made, in order."""
        return {"entry": self.launches[-1][0], "values": self.launches[-1][1]}


def norm(package: Package, recorder: Recorder | None = None) -> Norm:
    """A norm that plans and runs by the stubs."""
    recorder = recorder or Recorder()
    return Norm(package, executors=lambda device: recorder, planner=plan)


def forward_of(package: Package) -> Any:
    return directions(package)[0]


def backward_of(package: Package) -> Any:
    return directions(package)[1]
