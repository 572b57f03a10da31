"""States that have moved on: a backward runs after their update, so it may not read them.

What it needs of the old value is a save of the spec's own, which `use_kept` has it read instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from normgen.diagnostics import Diagnostic, Label, SpecError
from normgen.ir.nodes import Load, walk
from normgen.ir.program import Definition, Result, Tensor, dims_text


def refuse_moved(definition: Definition, gradients: Iterable[Result]) -> None:
    """`SpecError` (code `state`) where a gradient is made of the old value of a state that has a new one."""
    operands = definition.to_differentiate.operands
    states = [t for t in operands if t.name in definition.moved]
    faults = list(_faults(definition, states, list(gradients)))
    if faults:
        raise SpecError(faults, definition.source)


def _faults(definition: Definition, states: list[Tensor], gradients: list[Result]) -> Iterator[Diagnostic]:
    spans = {update.state: update.span for update in definition.program.updates}
    for state in states:
        made_of_it = [f"`{r.tensor.name}`" for r in gradients if _reads(r, state)]
        if made_of_it:
            span = spans.get(state.name) or state.span
            message = f"{', '.join(made_of_it)} needs the value of `{state.name}` before its update"
            saved = f"save {state.name}_before[{dims_text(state.dims)}] = {state.name}"
            help = f"save it for the backward: `{saved}`"
            yield Diagnostic("state", message, (Label(span),) if span else (), (help,))


def _reads(result: Result, state: Tensor) -> bool:
    return any(isinstance(node, Load) and node.tensor == state.name for node in walk(result.expr))
