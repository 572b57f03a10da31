"""A spec and process groups to the function of a rank, also where compilers trace."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from normgen.diagnostics import SpecError
from normgen.torch.function import NormFunction
from normgen.torch.loading import loaded, norm_of, place
from normgen.torch.private import constant
from normgen.torch.ranks.function import SpreadFunction, spread_function
from normgen.torch.ranks.group import ProcessRanks, group_name, ranks_by_name
from normgen.torch.ranks.partial import SummedFunction

Folded = tuple[tuple[str, Any], ...]


def spread(
    source: Any, attrs: dict[str, Any], shard: Mapping[str, Any], whole: tuple[str, ...]
) -> SpreadFunction:
    """The function of a source that `load` takes, with these axes spread over process groups. ValueError
    where there is none, or where groups differ."""
    groups = {axis: group_name(f"shard: {axis}", group) for axis, group in shard.items()}
    if not groups:
        raise ValueError("shard names no axis: write shard={'D': group}")
    (first, name), *others = groups.items()
    for axis, other in others:
        if other != name:
            raise ValueError(f"{first} and {axis} are sharded over different groups: shard one of them")
    found: SpreadFunction = loaded(_place_of(source, tuple(groups), name, whole, **attrs))
    return found


def summed(function: NormFunction, partial: Mapping[str, Any]) -> SummedFunction:
    """A function of operands of which the ranks of groups have parts."""
    groups = {name: group_name(f"partial: {name}", group) for name, group in partial.items()}
    return SummedFunction(function, groups)


def spread_over(spec: str, axis: str, group: Any, /, **attrs: Any) -> SpreadFunction:
    """What modules call: the function of a spec's text or a bundled one, looked up sooner than by `load`.
    `attrs`: whole numbers and choices."""
    name = group_name("process_group", group)
    found: SpreadFunction = loaded(_known_place(spec, axis, name, **attrs))
    return found


def spread_or_none(spec: str, folded: Folded, axes: tuple[str, ...], group: str) -> SpreadFunction | None:
    """The function of a spec's text and the attrs that are fixed, with axes spread over the group of this
    name; None where they cannot be."""
    found = _place_if_any(spec, folded, axes, group)
    return loaded(found) if found else None


@constant
def _place_of(source: Any, axes: tuple[str, ...], group: str, whole: tuple[str, ...], /, **attrs: Any) -> str:
    package = norm_of(source, attrs).package
    return place(spread_function(package.spec, package.folded, axes, group, whole))


@constant
def _known_place(spec: str, axis: str, group: str, /, **attrs: Any) -> str:
    return _known(spec, axis, ranks_by_name(group), tuple(attrs.items()))


@cache
def _known(spec: str, axis: str, ranks: ProcessRanks, attrs: Folded) -> str:
    return _place_of(spec, (axis,), ranks.name, (), **dict(attrs))


@constant
def _place_if_any(spec: str, folded: Folded, axes: tuple[str, ...], group: str) -> str:
    return _known_if_any(spec, folded, axes, ranks_by_name(group))


@cache
def _known_if_any(spec: str, folded: Folded, axes: tuple[str, ...], ranks: ProcessRanks) -> str:
    try:
        return place(spread_function(spec, folded, axes, ranks.name))
    except SpecError:  # axes that ranks cannot have runs of
        return ""
