"""The models: what a kernel with a schedule takes, and whether the compiler spills registers of it, from its
quantities.

The time is a bound that memory and latency set, times what trees make of the quantities. Trees are fitted
to timings (`bench/fit.py`) and shipped as plain arrays. All of one depth, each asks one question a level,
whatever was answered before: so an answer is a number of as many bits, and all trees answer at once. What a
kernel waits for peers comes on top.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from normgen.launching.quantities import WAITED, Array

OF_FAMILY = "is of "  # quantities that name the family that they are of

SHIPPED = Path(__file__).parent / "trees.npz"  # of time
SPILLS = (
    Path(__file__).parent / "spills.npz"
)  # of registers that a thread lacks; less than 0: that it has left


class Trees(NamedTuple):
    """The arrays of a model."""

    names: tuple[str, ...]  # of quantities
    base: float
    features: NDArray[np.uint8]  # [trees, depth], places in `names`
    thresholds: NDArray[np.float32]  # [trees, depth]
    values: NDArray[np.float32]  # [trees, 2**depth]; in a file of 2 bytes each


def microseconds(quantities: Mapping[str, Array]) -> Array:
    """The predicted time of each schedule: of a family that the trees were not fitted to, its bound."""
    bound = np.asarray(quantities["bound"])
    known = all(name in shipped(SHIPPED).names for name in quantities if name.startswith(OF_FAMILY))
    alone = np.exp(bound + _of(SHIPPED, quantities)) if known else np.exp(bound)
    return alone + quantities.get(WAITED, 0.0)


def lacking(quantities: Mapping[str, Array], count: int) -> Array:
    """Registers that threads of each of the first so many schedules are expected to lack, which the compiler
    spills; 0 where there are enough."""
    first = {name: each[:count] if np.ndim(each) else each for name, each in quantities.items()}
    return np.maximum(0.0, _of(SPILLS, first))


def _of(path: Path, quantities: Mapping[str, Array]) -> Array:
    trees = shipped(path)
    return predict(trees, matrix(quantities, trees.names, np.size(quantities["bound"])))


def matrix(quantities: Mapping[str, Array], names: Sequence[str], count: int) -> NDArray[np.float32]:
    """A row for each of so many schedules, a column a quantity: 0 where a family does not have it."""
    found = np.zeros((count, len(names)), np.float32)
    for place, name in enumerate(names):
        if name in quantities:
            found[:, place] = quantities[name]
    return found


def predict(trees: Trees, rows: NDArray[np.float32]) -> Array:
    """The logarithm of times over their bounds, or registers that threads lack."""
    quantities = np.ascontiguousarray(rows.T)
    leaves = np.zeros((len(trees.values), len(rows)), np.uint8)
    for features, thresholds in zip(trees.features.T, trees.thresholds.T, strict=True):
        leaves = 2 * leaves + (quantities[features] > thresholds[:, None])
    return np.asarray(trees.base + np.take_along_axis(trees.values, leaves, 1).sum(0))


@cache
def shipped(path: Path = SHIPPED) -> Trees:
    """Trees that normgen comes with."""
    return read(path)


def read(path: Path) -> Trees:
    """The trees of a file."""
    with np.load(path) as found:
        names, base, values = found["names"], found["base"], found["values"].astype(np.float32)
        return Trees(tuple(names.tolist()), float(base), found["features"], found["thresholds"], values)


def write(path: Path, trees: Trees) -> None:
    """Keep trees in a file."""
    names, base, features, thresholds, values = trees
    with path.open("wb") as file:
        places, halves = np.array(names), values.astype(np.float16)
        np.savez_compressed(
            file, names=places, base=base, features=features, thresholds=thresholds, values=halves
        )
