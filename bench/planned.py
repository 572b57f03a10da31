"""Times of what planning chooses, to compare two commits on one GPU.

    PYTHONPATH=. python bench/planned.py --out before.json       # at the one commit
    PYTHONPATH=. python bench/planned.py --against before.json   # at the other, on the same machine

Groups: calls of few, some and many rows; long rows that begin anywhere in a word; batchnorm over planes of
7 x 7; sums over the rows of segments. Each is timed by `normgen.measure`, forward and backward.
"""

from __future__ import annotations

import argparse
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import normgen
from normgen.measure.norms import Bench, Case, numbers_of
from normgen.measure.plans import measure_plan

DIRECTIONS = ("forward", "backward")
_ELEMENTS = 1 << 27
_BATCHES = 20


class Timed(NamedTuple):
    """A norm at given sizes, in one direction."""

    group: str
    norm: str
    dtype: str
    direction: str
    sizes: dict[str, int]

    @property
    def key(self) -> str:
        sizes = " ".join(f"{axis}={size}" for axis, size in self.sizes.items())
        return f"{self.norm} {self.direction} {self.dtype} {sizes}"


def cases() -> list[Timed]:
    """Everything that is timed."""
    found = []
    for direction in DIRECTIONS:
        for dtype in ("bf16", "f32"):
            for norm, width in (
                ("rmsnorm", 64), ("rmsnorm", 4096), ("layernorm", 4096), ("rmsnorm", 8192), ("softmax", 1000),
                ("layernorm", 65536), ("rmsnorm", 32768), ("dyt", 1024),
            ):  # fmt: skip
                for rows in (1, 16, 100, 2048, _ELEMENTS // width):
                    found.append(Timed("rows", norm, dtype, direction, {"...": rows, "D": width}))
            for norm in ("rmsnorm", "softmax", "l2norm", "add_rmsnorm"):
                for width in (16385, 20001, 20004, 32769, 32772, 40003, 50001, 56577):
                    sizes = {"...": _ELEMENTS // width // 2, "D": width}
                    found.append(Timed("misaligned", norm, dtype, direction, sizes))
        for batch, channels in ((32, 2048), (128, 2048), (256, 512), (256, 2048), (512, 2048)):
            for dtype in ("bf16", "f32"):
                sizes = {"B": batch, "C": channels, "...": 49}
                found.append(Timed("planes", "batchnorm", dtype, direction, sizes))
        for segments, rows in ((1, 2048), (8, 512), (64, 64), (1000, 4)):
            sizes = {"B": segments, "S": rows, "D": 1024}
            found.append(Timed("segments", "adaln_modulate", "bf16", direction, sizes))
    return found


def time_all(wanted: list[Timed]) -> dict[str, float]:
    """Microseconds of all launches of each, by key."""
    bench = Bench()
    packages = {each.norm: normgen.load(each.norm).package for each in wanted}
    asked = [Case(each.direction, each.sizes, each.dtype) for each in wanted]
    plans = [bench.plan(packages[each.norm], case) for each, case in zip(wanted, asked, strict=True)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(bench.executor.binary, {item.source for plan in plans for item in plan.launches}))
    times = {}
    for each, case, plan in zip(wanted, asked, plans, strict=True):
        package = packages[each.norm]
        sets = bench.buffers(package, case)
        addresses = [one.addresses for one in sets]
        timing = measure_plan(bench.executor, bench.clock, plan, addresses, numbers_of(package), _BATCHES)
        times[each.key] = timing.us
    return times


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    groups = list(dict.fromkeys(each.group for each in cases()))
    parser.add_argument("--group", choices=groups, action="append", help="time these only")
    parser.add_argument("--out", type=Path, help="write the times here")
    parser.add_argument("--against", type=Path, help="show the times beside those of another commit")
    given = parser.parse_args()
    wanted = [each for each in cases() if each.group in (given.group or groups)]
    times = time_all(wanted)
    if given.out:
        given.out.write_text(json.dumps(times, indent=1) + "\n", encoding="utf-8")
    before = json.loads(given.against.read_text(encoding="utf-8")) if given.against else {}
    print("| group | call | us before | us | ratio |\n|---|---|---|---|---|")
    for each in wanted:
        us, was = times[each.key], before.get(each.key)
        beside = f"{was:.2f} | {us:.2f} | {us / was:.2f}" if was else f"- | {us:.2f} | -"
        print(f"| {each.group} | {each.key} | {beside} |")


if __name__ == "__main__":
    main()
