"""The record of one form of a kernel: its parameters in order, and its text, which a template lays out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from normgen.ir.expr import Expr, Extent, Scalar, walk
from normgen.kernel.access import Access
from normgen.kernel.group import Order
from normgen.kernel.plan import Operand
from normgen.kernel.render import declare, environment
from normgen.kernel.text import KernelText
from normgen.kernel.tidy import tidy
from normgen.package.operands import FormRecord, Parameter

Context = dict[str, Any]


def form_record(
    text: KernelText, form: str, template: str, kernel: Context, parameters: tuple[Parameter, ...]
) -> FormRecord:
    """A form with its text. `kernel` is the template's view of it; formulas and flags are added here."""
    entry = f"{text.plan.name}_{form}"
    common = {"formulas": text.formulas, "flags": text.flags(text.reads)}
    source = environment().get_template(f"{template}.cu.jinja")
    declared = [declare(text, p) for p in parameters]
    rendered = source.render(kernel=common | kernel, entry=entry, parameters=declared)
    return FormRecord(form, entry, parameters, tidy(rendered))


def parameters_for(
    text: KernelText,
    steps: Callable[[Operand], Order],
    used: Iterable[Expr],
    lengths: Iterable[str],
    own: Iterable[Parameter],
    fixed: Order = (),
) -> tuple[Parameter, ...]:
    """Pointers, partials, strides, lengths, attrs, then the family's own parameters.

    `steps`: the axes along which a text steps through an operand by a stride. `used`: every expression that
    it computes. `lengths`: axes whose lengths it needs besides; those of `fixed` are constants of the text.
    """
    plan, nodes = text.plan, set(walk(*used))
    tensors = [a.operand for a in (*text.reads, *text.writes)]
    wanted = {*lengths, *(n.axis for n in nodes if isinstance(n, Extent))} - set(fixed)
    axes = (*plan.kept, *plan.inner)
    scalars = {n.name for n in nodes if isinstance(n, Scalar)}
    return (
        *(Parameter("pointer", o.tensor.name) for o in tensors),
        *(Parameter("partial", c.name) for c in text.columns),
        *(Parameter("stride", o.tensor.name, axis) for o in tensors for axis in steps(o)),
        *(Parameter("size", axis=a) for a in (*axes, *sorted(wanted - set(axes))) if a in wanted),
        *(Parameter("scalar", a) for a in plan.scalars if a in scalars),
        *own,
    )


def store_of(text: KernelText, access: Access, address: str) -> Context:
    """How a template stores a result: the value's name, where it goes, and when."""
    name = access.operand.tensor.name
    return {
        "want": text.wants[name],
        "value": f"{access.identifier}_out",
        "type": access.type,
        "address": address,
        "accumulates": name in text.accumulated,
    }
