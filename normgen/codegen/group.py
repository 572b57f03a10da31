"""What a family of kernels is asked to plan: results that share one iteration space."""

from __future__ import annotations

from dataclasses import dataclass

from normgen.ir.nodes import Axes
from normgen.ir.program import Program, Result


class Misfit(Exception):
    """A group that a family of kernels does not cover. The text says why, in the words of the spec."""


@dataclass(frozen=True, slots=True)
class Group:
    """Results of a centred program whose values range over the same axes.

    `name` is the kernel's, `space` every axis that some value of the group varies over or is reduced over.
    """

    name: str
    program: Program
    space: Axes
    results: tuple[Result, ...]
