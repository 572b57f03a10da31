"""A norm as a function of a rank's tensors."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any, cast

import torch

import normgen
from normgen.locks import new_reentrant_lock
from normgen.runtime.ranks.norm import SpreadNorm
from normgen.torch.function import NormFunction
from normgen.torch.ranks.group import ranks_by_name
from normgen.torch.ranks.levels import Where, first_spread_step


class SpreadFunction(NormFunction):
    """A norm whose axes are sharded over the processes of a group, as a function of one rank's tensors.

    Call it like any `NormFunction`. All ranks make the same calls in the same order, each with its range of
    the sharded axes; ranges may have different lengths, or be empty. Tensors without a sharded axis, and
    their cotangents, are the same on all ranks; so are results, bit for bit. `placements` says what a rank
    has of each result: the gradient of an operand without the axis is a part of the sum over ranks.

    Raises the same as a `NormFunction`; RuntimeError if ranks make different calls, with the name of a rank
    that does; `normgen.runtime.ranks.group.PeerFault`, a RuntimeError, if another rank cannot make its call
    or has ended.
    """

    def __init__(self, spec: str, folded: tuple[tuple[str, Any], ...], where: Where) -> None:
        shard, load = dict.fromkeys(where.axes, where.ranks), cast(Any, normgen.load)
        self.spread: SpreadNorm = load(spec, shard=shard, whole=where.whole, **dict(folded))
        self.where = where
        super().__init__(self.spread, first_spread_step(self.spread, where))

    @property
    def placements(self) -> dict[str, str]:
        """For each result of both directions, whether a rank has a "shard", the "whole", or a "part" of the
        sum over ranks. Updated states are named `update:<state>`."""
        return self.spread.placements

    @property
    def backend(self) -> str:
        """How ranks exchange numbers on GPUs: "peer-memory"; "collective: " and the reason why
        torch.distributed is used; or that ranks have not agreed on it yet."""
        return self.where.ranks.backend

    def __call__(self, *operands: torch.Tensor | None, **named: Any) -> Any:
        """The output, or a named tuple of outputs."""
        for each in (*operands, *named.values()):
            if type(each) not in _PLAIN and _is_dtensor(each):
                raise TypeError(
                    f"{self!r} takes local tensors, not DTensors: pass .to_local(), or pass DTensors to "
                    f"normgen.torch.load({self.norm.name!r}), which reads their placements"
                )
        return super().__call__(*operands, **named)

    def __reduce__(self) -> Any:
        package, where = self.spread.package, self.where
        return spread_function, (package.spec, package.folded, where.axes, where.ranks.name, where.whole)

    def _repr_html_(self) -> str:
        package = self.spread.package
        return str(cast(Any, normgen.load)(package.spec, **dict(package.folded))._repr_html_())

    def __repr__(self) -> str:
        return f"<normgen.torch function {self.spread!r}, exchanging by {self.backend}>"


_PLAIN = (torch.Tensor, torch.nn.Parameter, type(None), float, int)


def _is_dtensor(value: Any) -> bool:
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


_LOADING = new_reentrant_lock()  # operators can be registered once


def spread_function(
    spec: str,
    folded: tuple[tuple[str, Any], ...],
    axes: tuple[str, ...],
    group: str,
    whole: tuple[str, ...] = (),
) -> SpreadFunction:
    """The function of a spec's text and its fixed attrs, with axes spread over a group by its name. Copies
    and pickles use it too. Returns the same object for the same arguments, while the group is the same."""
    with _LOADING:
        return _made(spec, folded, Where(axes, ranks_by_name(group), whole))


@cache
def _made(spec: str, folded: tuple[Any, ...], where: Where) -> SpreadFunction:
    return SpreadFunction(spec, folded, where)
