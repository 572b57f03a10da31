"""The limit on the work of deriving and planning a spec, and the error beyond it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from normgen.diagnostics import Diagnostic, Label, SpecError
from normgen.ir.nodes import walk
from normgen.ir.program import Definition
from normgen.ir.work import TooMuchWork, counted

# Some fifty times what the largest bundled spec takes.
MOST_STEPS = 5_000_000


@contextmanager
def limited(definition: Definition, task: str) -> Iterator[None]:
    """A task of the compilation, "planning" say: raises `SpecError` (code `size`) where it takes more than
    `MOST_STEPS` steps, or values depend on one another too deeply.
    """
    try:
        with counted(MOST_STEPS):
            yield
    except TooMuchWork:
        message = f"{task} of `{definition.program.name}` takes more than {MOST_STEPS} steps"
    except RecursionError:
        message = f"{task} of `{definition.program.name}` nests too deeply"
    else:
        return
    raise SpecError([Diagnostic("size", message, _place(definition), _HELP)], definition.source)


_HELP = ("split it into several norms: an output of one can be an input of the next",)


def _place(definition: Definition) -> tuple[Label, ...]:
    """The result that takes most operations."""
    made = [(sum(1 for _ in walk(r.expr)), r.tensor) for r in definition.program.results]
    size, tensor = max(made, key=lambda pair: pair[0])
    return (Label(tensor.span, f"computed from {size} values"),) if tensor.span is not None else ()
