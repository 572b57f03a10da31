"""Which cases of many `make test` has; `make test-thorough` has the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import sha256
from itertools import product
from typing import Any

import pytest


def name_of(value: Any) -> str:
    return str(getattr(value, "name", value)).split("\n")[0].replace("norm ", "")


def paired(*axes: Iterable[Any], name: Callable[[Any], str] = name_of) -> list[Any]:
    """The product of axes as parameters: each value is in some case of `make test`, with others in turn."""
    values = [list(axis) for axis in axes]
    kept = {tuple(place % len(axis) for axis in values) for place in range(max(map(len, values)))}
    return [
        pytest.param(
            *(axis[place] for axis, place in zip(values, places, strict=True)),
            id="-".join(map(name, (axis[place] for axis, place in zip(values, places, strict=True)))),
            marks=() if places in kept else pytest.mark.thorough,
        )
        for places in product(*(range(len(axis)) for axis in values))
    ]


def sampled(values: Iterable[Any], *kept: int) -> list[Any]:
    """Values of one parameter, of which `make test` has those at these places."""
    return [
        pytest.param(value, id=name_of(value), marks=() if place in kept else pytest.mark.thorough)
        for place, value in enumerate(values)
    ]


def one_in(few: int, cases: Iterable[str]) -> set[str]:
    """Of the cases of each test one in so many, or one at least: always the same."""
    tests: dict[str, list[str]] = {}
    for case in cases:
        tests.setdefault(case.partition("[")[0], []).append(case)
    # In an order that has nothing to do with that of parameters, so that what is kept has all kinds of them.
    return {
        case
        for some in tests.values()
        for case in sorted(some, key=lambda case: sha256(case.encode()).digest())[: -(-len(some) // few)]
    }
