"""The model of time, fitted to timings: boosted trees over the quantities of schedules.

    PYTHONPATH=. python -m bench.fit bench/timings/*.gz          # write normgen/launching/trees.npz anew

Trees answer one question a level, so that they are evaluated all at once. Each is fitted to what those before
it left, and weighs schedules that are near the best of their kernel more. Most of what is common to the
schedules of one kernel is left out of what it is fitted to: what counts is which of them is fastest. Further
trees tell the level of kernels, by which strategies are compared. Families that name themselves have some of
their own. One of which too few kernels were timed is left out, and goes by what memory leaves.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.calls import call_of
from bench.commits import text_of
from bench.drawn import of_line
from normgen.launching.machine import Machine, machine_named
from normgen.launching.model import OF_FAMILY, SHIPPED, Trees, matrix, write
from normgen.launching.quantities import WAITED, Array
from normgen.runtime.planning.choose import Running
from normgen.runtime.planning.registry import family_of

TREES, DEPTH, RATE = 420, 6, 0.15
OWN = 80  # trees of its own that each family has that names itself
FEWEST = 100  # kernels of a family, from which trees are made for it
LEVEL = 120  # trees for what all schedules of a kernel have in common, which ask for nothing else
BINS = 64  # of a quantity, between which questions are asked
SHARE_OF_CASES, SHARE_OF_QUANTITIES = 0.7, 0.5  # that a tree is fitted to
SMOOTHING = 3.0  # samples without any residual that each leaf is thought to have
NEAR, FAR = 0.3, 0.1  # what a schedule weighs: by the logarithm of its time over the best; at least
GRAIN = 2.0**-12  # of which values are multiples, so that a file of them is small
COMMON = 0.9  # of what all schedules of a kernel have in common, that is left out


@dataclass(frozen=True, slots=True)
class Samples:
    """Timings of schedules: their quantities, the logarithm of microseconds, and the kernel of each."""

    names: tuple[str, ...]
    quantities: NDArray[np.float32]  # [schedules, quantities]
    times: Array
    kernels: NDArray[np.int64]  # places in `calls`
    usual: NDArray[np.bool_]  # whether it was the one taken
    calls: tuple[dict[str, Any], ...]

    @property
    def bound(self) -> Array:
        return np.asarray(self.quantities[:, self.names.index("bound")], float)

    @property
    def above(self) -> Array:
        """The logarithm of the time over the best of the kernel."""
        best = np.full(len(self.calls), np.inf)
        np.minimum.at(best, self.kernels, self.times)
        return np.asarray(self.times - best[self.kernels])

    def of(self, calls: Iterable[bool]) -> Samples:
        """Those of some calls."""
        taken = np.array(list(calls))[self.kernels]
        parts = (self.quantities[taken], self.times[taken], self.kernels[taken], self.usual[taken])
        return Samples(self.names, *parts, self.calls)


class Kernel(NamedTuple):
    """What was measured of a kernel in a call."""

    call: dict[str, Any]
    quantities: Mapping[str, Array]
    lines: list[dict[str, Any]]  # of one schedule each


def samples(
    paths: Sequence[Path],
    value: Callable[[Mapping[str, Any]], float] = lambda line: math.log(line["us"]),
    device: Callable[[str], Machine] = machine_named,
    fewest: int = 0,
) -> Samples:
    """What was measured, with today's quantities, of families with so many kernels at least. Strategies that
    are gone and schedules that are no longer legal are left out."""
    every = (_kernel(call, lines, device(call["device"])) for call, lines in _by_kernel(paths))
    found = [each for each in every if each is not None]
    counts = Counter(each.call["family"] for each in found)
    for family, count in counts.items():
        if count < fewest:
            print(f"left out: {count} kernels of {family} are less than {fewest}")
    found = [each for each in found if counts[each.call["family"]] >= fewest]
    names = tuple(dict.fromkeys(name for each in found for name in each.quantities if name != WAITED))
    lines = [line for each in found for line in each.lines]
    return Samples(
        names,
        np.concatenate([matrix(each.quantities, names, len(each.lines)) for each in found]),
        np.array([value(line) for line in lines]),
        np.repeat(np.arange(len(found)), [len(each.lines) for each in found]),
        np.array([line["usual"] for line in lines]),
        tuple(each.call for each in found),
    )


def _by_kernel(paths: Sequence[Path]) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """The lines of each kernel of a call, and what they have in common."""
    found: dict[str, list[dict[str, Any]]] = {}
    common = ("device", "kind", "norm", "attrs", "direction", "dtype", "sizes", "strategy", "kernel")
    for path in paths:
        for line in map(json.loads, text_of(path).splitlines()):
            found.setdefault(json.dumps([line[name] for name in common]), []).append(line)
    for lines in found.values():
        yield {name: lines[0][name] for name in common}, lines


def _kernel(about: dict[str, Any], lines: list[dict[str, Any]], device: Machine) -> Kernel | None:
    direction, binding = call_of(of_line(about))
    strategies = {each.name: each for each in direction.record.strategies}
    if about["strategy"] not in strategies:
        return None
    strategy = strategies[about["strategy"]]
    there = Running(strategy, binding, device)
    kernel = next(each for each in there.kernels if each.name == about["kernel"])
    family = family_of(kernel)
    settled = [(family.settle(kernel, there.call, family.schedule(**line["knobs"])), line) for line in lines]
    legal = [(s, line) for s, line in settled if isinstance(s, family.schedule)]
    if not legal:
        return None
    quantities = family.quantities(kernel, there.call, [s for s, _ in legal])
    return Kernel(about | {"family": kernel.family}, quantities, [line for _, line in legal])


# ------------------------------------------------------------------------------------------------ trees


def fitted(samples: Samples, trees: int = TREES) -> Trees:
    """Trees for the logarithm of times over their bounds."""
    return boosted(samples, samples.times - samples.bound, np.exp(-samples.above / NEAR) + FAR, trees)


def boosted(
    samples: Samples,
    wanted: Array,
    weights: Array,
    trees: int = TREES,
    share: float = COMMON,
    own: int = OWN,
    level: int = LEVEL,
) -> Trees:
    """Trees for some number of each schedule, so many of each family's `own`, and for the `level` of kernels.
    `share`: of what schedules of a kernel have in common, that the first are not fitted to."""
    edges = [_edges(column) for column in samples.quantities.T]
    bins = np.stack([np.searchsorted(e, c) for e, c in zip(edges, samples.quantities.T, strict=True)], 1)
    source = np.random.default_rng(0)
    base = float(np.average(wanted, weights=weights))
    left = wanted - base
    found = []
    for family, ask, shared in _rounds(samples, edges, trees, own, level):
        first = [] if family is None else [(family, 0)]
        there = bins[:, family] > 0 if first else np.ones(len(left), bool)
        common = _mean_of_kernels(left, weights, samples.kernels)
        pull = (common if shared else left - share * common) * weights * there
        some = source.random(len(samples.calls))[samples.kernels] < SHARE_OF_CASES
        rows = np.flatnonzero(some & there)
        places = np.array([place for place in ask if source.random() < SHARE_OF_QUANTITIES] or ask)
        answers, depth = bins[np.ix_(rows, places)], DEPTH - len(first)
        questions = first + _questions(answers, pull[rows], weights[rows], places, edges, depth)
        leaves = np.zeros(len(left), np.int64)
        for place, edge in questions:
            leaves = 2 * leaves + (bins[:, place] > edge)
        sums, counts = (np.bincount(leaves, each, 1 << DEPTH) for each in (pull, weights))
        values = (np.rint(RATE * sums / (counts + SMOOTHING) / GRAIN) * GRAIN).astype(np.float16)
        left = left - values[leaves]
        found.append((questions, values))
    return Trees(
        samples.names,
        base,
        np.array([[place for place, _ in questions] for questions, _ in found], np.uint8),
        np.array([[edges[place][edge] for place, edge in questions] for questions, _ in found], np.float32),
        np.array([values for _, values in found], np.float32),
    )


def _rounds(
    samples: Samples, edges: Sequence[Any], trees: int, own: int, level: int
) -> list[tuple[int | None, list[int], bool]]:
    """Of each tree the family that it is for, what it may ask, and whether it is for what is common to a
    kernel."""
    asked = [place for place, found in enumerate(edges) if len(found)]
    families = [place for place in asked if samples.names[place].startswith(OF_FAMILY)]
    alike = [place for place in asked if _is_of_kernels(samples.quantities[:, place], samples.kernels)]
    of_families = [(each, asked, False) for each in families for _ in range(own)]
    return [*[(None, asked, False)] * trees, *of_families, *[(None, alike, True)] * level * bool(alike)]


def _is_of_kernels(column: NDArray[np.float32], kernels: NDArray[np.int64]) -> bool:
    """Whether all schedules of a kernel have one value of a quantity."""
    one = np.zeros(kernels.max() + 1, np.float32)
    one[kernels] = column
    return bool((one[kernels] == column).all())


def _mean_of_kernels(left: Array, weights: Array, kernels: NDArray[np.int64]) -> Array:
    sums, counts = np.bincount(kernels, left * weights), np.bincount(kernels, weights)
    return np.asarray((sums / np.maximum(counts, 1e-9))[kernels])


def _edges(column: NDArray[np.float32]) -> NDArray[np.float32]:
    """Where questions may divide a quantity: between its values, or between parts of equal size."""
    values = np.unique(column)
    if len(values) > BINS:
        values = np.unique(np.quantile(column, np.linspace(0, 1, BINS + 1), method="nearest"))
    return ((values[:-1] + values[1:]) / 2).astype(np.float32)


def _questions(
    bins: NDArray[np.int64],
    pull: Array,
    weights: Array,
    places: NDArray[np.int64],
    edges: Sequence[Any],
    depth: int,
) -> list[tuple[int, int]]:
    """The question of each level, a quantity and an edge: that which leaves the least residual."""
    leaves, count, width = np.zeros(len(bins), np.int64), len(places), BINS + 1
    open_ = np.arange(width)[None, :] < np.array([len(edges[place]) for place in places])[:, None]
    found = []
    for level in range(depth):
        where = ((leaves[:, None] * count + np.arange(count)) * width + bins).ravel()
        size = (1 << level) * count * width
        sums, masses = (
            np.bincount(where, np.repeat(each, count), size).reshape(-1, count, width).cumsum(2)
            for each in (pull, weights)
        )
        gain = (sums**2 / (masses + SMOOTHING)).sum(0)
        others, rest = sums[:, :, -1:] - sums, masses[:, :, -1:] - masses
        gain = np.where(open_, gain + (others**2 / (rest + SMOOTHING)).sum(0), -1.0)
        place, edge = np.unravel_index(gain.argmax(), gain.shape)
        leaves = 2 * leaves + (bins[:, place] > edge)
        found.append((int(places[place]), int(edge)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("timings", type=Path, nargs="+", help="files that bench.measure wrote")
    parser.add_argument("--out", type=Path, default=SHIPPED, help="the file of the trees")
    arguments = parser.parse_args()
    found = samples(arguments.timings, fewest=FEWEST)
    write(arguments.out, fitted(found))
    print(f"{len(found.times)} timings of {len(found.calls)} kernels: {arguments.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
