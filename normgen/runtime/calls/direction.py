"""The tables of one pass of a package, that every call of it looks things up in."""

from __future__ import annotations

from dataclasses import dataclass

from normgen.package.records import AxisRecord, Package, PassRecord, TensorRecord


@dataclass(frozen=True, slots=True)
class Direction:
    """What one pass of a package accepts and returns: its record, with the tables that a call looks
    things up in.

    `operands`: every tensor that may be given, by name: what the pass reads, in order, then what it
    merely tolerates. `required`: those that a call must give; `mentioned`: cotangents, which may be
    None but must be said to be.
    """

    name: str
    record: PassRecord
    axes: tuple[AxisRecord, ...]
    reads: tuple[str, ...]
    operands: dict[str, TensorRecord]
    results: dict[str, TensorRecord]
    required: frozenset[str]
    mentioned: frozenset[str]
    params: frozenset[str]
    updated: frozenset[str]
    declared: dict[str, TensorRecord]

    @property
    def defaulted(self) -> frozenset[str]:
        """What has a default in a signature: what may be left out, and as Python demands all that is read
        after it. What is needed all the same is then asked for by the call."""
        optional = [
            place
            for place, name in enumerate(self.reads)
            if name not in self.required and name not in self.mentioned
        ]
        return frozenset(self.reads[optional[0] :] if optional else ())

    def accumulates(self, result: str) -> bool:
        """Whether `accumulate=True` adds to this result: it is the gradient of a param."""
        record = self.results[result]
        return record.role == "gradient" and record.source in self.params


def directions(package: Package) -> tuple[Direction, Direction | None]:
    """The forward pass of a package, and the backward pass if it has one."""
    forward, backward = package.forward, package.backward
    first = _direction("forward", forward, package, extra=())
    if backward is None:
        return first, None
    # Whatever the forward was given or returned may be passed along: callers need not know what the
    # derivative reads.
    extra = (*forward.reads, *forward.writes)
    return first, _direction("backward", backward, package, extra)


def _direction(name: str, record: PassRecord, package: Package, extra: tuple[TensorRecord, ...]) -> Direction:
    reads = {tensor.name: tensor for tensor in record.reads}
    declared = {tensor.name: tensor for tensor in (*package.forward.reads, *package.forward.writes)}
    states = {tensor.name for tensor in record.reads if tensor.role == "state"}
    operands = reads | {tensor.name: tensor for tensor in extra if tensor.name not in reads}
    stored, needed = set[str](), set[str]()
    for kernel in record.kernels:
        stored.update(operand.tensor for operand in (*kernel.writes, *kernel.finals))
        for operand in (*kernel.reads, *kernel.final_reads):
            if set(operand.wanted_by) - states:  # a state that only its own update reads may be left out
                needed.add(operand.tensor)
    return Direction(
        name=name,
        record=record,
        axes=package.axes,
        reads=tuple(reads),
        operands=operands,
        results={
            tensor.name: tensor
            for tensor in sorted(record.writes, key=lambda tensor: tensor.role == "save")
            if tensor.name not in states
        },
        required=frozenset(
            tensor.name
            for tensor in record.reads
            if tensor.role in ("input", "saved")
            or (tensor.role == "param" and tensor.default is None)
            or (tensor.role == "state" and tensor.name in needed)
        ),
        mentioned=frozenset(tensor.name for tensor in record.reads if tensor.role == "cotangent"),
        params=frozenset(tensor.name for tensor in package.forward.reads if tensor.role == "param"),
        updated=frozenset(states & stored),
        declared=declared,
    )
