"""Errors of code `spread`: what ranks cannot have or compute, with the place in the spec and what to do."""

from __future__ import annotations

from normgen.diagnostics import Diagnostic, Label, Span, SpecError
from normgen.ir.program import Definition


def fault(definition: Definition, message: str, cure: str, *spans: Span | None) -> SpecError:
    """The error at the first of these places that is one."""
    labels = tuple(Label(span) for span in spans if span is not None)[:1]
    return SpecError([Diagnostic("spread", message, labels, (cure,))], definition.source)
