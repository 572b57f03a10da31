"""What the compiler asks of a family of kernels: plans, texts and what explains them."""

from __future__ import annotations

from typing import Protocol, TypeVar

from normgen.ir.program import Tensor
from normgen.kernel.group import Group, Misfit
from normgen.kernel.text import Wording


class Plan(Protocol):
    """All that the text of a kernel is made from."""

    @property
    def name(self) -> str:
        """The kernel's name."""


P = TypeVar("P", bound=Plan)
K = TypeVar("K", covariant=True)  # the record of a kernel


class CompileFamily(Protocol[P, K]):
    """A family of kernels, as the compiler sees it: the object `FAMILY` of its module `compile.family`.

    A family plans groups of results (`plan`, `otherwise`), or joins kernels of other families (`join`).
    """

    plans: type[P]  # what it makes of a group
    rank: int  # families of a lower one are asked first

    def plan(self, group: Group) -> P:
        """The kernel of a group; raises `Misfit` where the family does not cover it."""
        raise group.misfit("is not of this family")

    def is_eager(self, group: Group) -> bool:
        """Whether it is to be asked for the plan of a group ahead of those of a lower rank."""
        return False

    def otherwise(self, way: str, group: Group) -> P:
        """The kernel of a group in a way that only a strategy asks for; raises `Misfit`."""
        raise group.misfit(f"cannot be planned {way}")

    def join(self, name: str, plans: tuple[Plan, ...], temporaries: tuple[Tensor, ...]) -> P:
        """One kernel in place of these, which hand on the temporaries; raises `Misfit`."""
        raise Misfit(f"`{name}` needs more than one kernel")

    def way(self, plan: P) -> str:
        """What blocks of a kernel do that those of a plain one do not: `folded`, they merge what they have of
        neighbours; `resident`, they keep what they read."""
        return ""

    def emit(self, plan: P, wording: Wording) -> K:
        """The record of a planned kernel, which prints its texts when they are asked for."""
        raise NotImplementedError

    def show(self, plan: P) -> str:
        """The plan as text: what the kernel reads, exchanges and writes."""
        raise NotImplementedError
