"""Errors of code `spread`: what ranks cannot have or compute, with the place in the spec and what to do."""

from __future__ import annotations

from collections.abc import Sequence

from normgen.diagnostics import Diagnostic, Label, Span, SpecError
from normgen.ir.program import Definition

CODE = "spread"


def fault(definition: Definition, message: str, span: Span | None, cure: str) -> SpecError:
    """The error at a place."""
    return fault_at(definition, message, [span], cure)


def fault_at(definition: Definition, message: str, spans: Sequence[Span | None], cure: str) -> SpecError:
    """The error at the first of these places that is one."""
    labels = tuple(Label(span) for span in spans if span is not None)[:1]
    return SpecError([Diagnostic(CODE, message, labels, (cure,))], definition.source)
