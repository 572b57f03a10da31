"""How far what is taken is from the best that was measured: by class and direction, and by kernel family.

    PYTHONPATH=. python -m bench.regret bench/timings/*.gz              # of the model that is shipped
    PYTHONPATH=. python -m bench.regret --folds 4 bench/timings/*.gz    # of models that have not seen a call

Regret is the time of one schedule over the best of its kernel: of what was taken when it was measured, of
what the model likes best among those measured, and the best of its first three.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import NamedTuple
from zlib import crc32

import numpy as np

from bench.fit import Samples, fitted, samples
from normgen.launching.model import OF_FAMILY, Trees, matrix, predict, shipped
from normgen.launching.quantities import Array

FEWEST = 3  # schedules of a kernel that are worth a comparison


class Regret(NamedTuple):
    """Of one kernel of a call."""

    taken: float  # nan where what was taken is not among what was measured
    liked: float
    first_three: float


def regrets(found: Samples, predicted: Array) -> dict[int, Regret]:
    """By kernel."""
    above, result = np.exp(found.above), {}
    for kernel in np.unique(found.kernels):
        places = np.flatnonzero(found.kernels == kernel)
        if len(places) < FEWEST:
            continue
        order = above[places][np.argsort(predicted[places])]
        taken = above[places][found.usual[places]]
        result[int(kernel)] = Regret(float(taken[0]) if len(taken) else np.nan, order[0], order[:3].min())
    return result


def predicted(found: Samples, folds: int) -> Array:
    """By the model that is shipped, or by models that were fitted without the call at hand."""
    if not folds:
        return _by(shipped(), found)
    fold = [crc32(repr((call["norm"], call["sizes"])).encode()) % folds for call in found.calls]
    result = np.zeros(len(found.times))
    for each in range(folds):
        mine = np.array([own == each for own in fold])[found.kernels]
        result[mine] = _by(fitted(found.of(own != each for own in fold)), found)[mine]
    return result


def _by(trees: Trees, found: Samples) -> Array:
    columns = dict(zip(found.names, found.quantities.T.astype(float), strict=True))
    return np.asarray(found.bound + predict(trees, matrix(columns, trees.names, len(found.times))))


def known(found: Samples, trees: Trees) -> list[bool]:
    """Whether trees were fitted to timings of the family of each kernel."""
    names = [OF_FAMILY + call["family"] for call in found.calls]
    return [name in trees.names or name not in found.names for name in names]


_KEYS: tuple[Callable[[dict[str, object]], str], ...] = (
    lambda call: f"{call['kind']}, {call['direction']}",
    lambda call: f"kernels of {call['family']}",
    lambda call: f"all on {call['device']}",
    lambda call: "all",
)


def report(found: Samples, by_kernel: dict[int, Regret]) -> str:
    """A line for each class and direction, each family of kernels, each device, and all."""
    head = ["class", "kernels", "taken", "worst", "model", "worst", "5 %", "first three"]
    lines: list[list[str]] = []
    for key in _KEYS:
        groups: dict[str, list[Regret]] = {}
        for kernel, regret in by_kernel.items():
            groups.setdefault(key(found.calls[kernel]), []).append(regret)
        lines += [[name, *_line(group)] for name, group in sorted(groups.items())]
    rows = [head, ["---", *["--:"] * (len(head) - 1)], *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _line(group: Sequence[Regret]) -> list[str]:
    taken = [each.taken for each in group if each.taken == each.taken] or [np.nan]
    liked = [each.liked for each in group]
    figures = (
        geometric_mean(taken), max(taken), geometric_mean(liked), max(liked), float(np.quantile(liked, 0.95)),
        geometric_mean(each.first_three for each in group),
    )  # fmt: skip
    return [str(len(group)), *(f"{figure:.3f}" for figure in figures)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("timings", type=Path, nargs="+", help="files that bench.measure wrote")
    parser.add_argument("--folds", type=int, default=0, help="fit so many models, each without some calls")
    arguments = parser.parse_args()
    found = samples(arguments.timings)
    if not arguments.folds:  # of other families the shipped model tells nothing
        found = found.of(known(found, shipped()))
    print(report(found, regrets(found, predicted(found, arguments.folds))))


if __name__ == "__main__":
    main()
