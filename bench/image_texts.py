"""Times of the texts that serve images of every size, beside those that are made for one size.

    PYTHONPATH=. python -m bench.image_texts --seed 1 --count 12 --out image_texts.jsonl

For each norm of images, direction and type, calls of random batches and sizes: what planning takes where
texts for all sizes are asked for, and what it takes by itself. A line of JSON each, and in the end a table:
the geometric mean and the worst of the one time over the other.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Iterator
from math import exp, log
from pathlib import Path
from typing import Any
from unittest.mock import patch

from bench.calls import package_of
from normgen.launching.images import VARIABLE
from normgen.measure.norms import Bench, Case, numbers_of
from normgen.measure.plans import measure_plan

NORMS: tuple[tuple[str, tuple[tuple[str, int | bool], ...]], ...] = (
    ("batchnorm", (("training", True),)),
    ("groupnorm", (("groups", 32),)),
    ("groupnorm_silu", (("groups", 32),)),
    ("instancenorm", ()),
)
CHANNELS = (64, 320, 512)
_MOST_ELEMENTS = 1 << 28
_BATCHES = 20


def sizes(seed: int, groups: int) -> Iterator[dict[str, int]]:
    """Batches and sizes of images without an end, half of them in whole words."""
    drawn = random.Random(seed)
    while True:
        channels = drawn.choice(CHANNELS)
        images, height, width = (round(2 ** drawn.uniform(*span)) for span in ((0, 8), (2, 9), (2, 9)))
        pixels = -(-height * width // 8) * 8 if drawn.random() < 0.5 else height * width
        if 1 << 12 < images * channels * pixels < _MOST_ELEMENTS:
            yield {"B": images, "C": channels // groups, "...": pixels}


def timed(bench: Bench, package: Any, case: Case) -> tuple[float, float, list[str]]:
    """Microseconds of either plan, and what their launches are."""
    with patch.dict("os.environ", {VARIABLE: "general"}):
        general = bench.plan(package, case)
    special = bench.plan(package, case)
    sets = bench.buffers(package, case)
    addresses = [one.addresses for one in sets]
    times = [
        measure_plan(bench.executor, bench.clock, plan, addresses, numbers_of(package), _BATCHES).us
        for plan in (general, special)
    ]
    entries = [" ".join(each.entry for each in plan.launches) for plan in (general, special)]
    return times[0], times[1], entries


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=12, help="calls of each norm, direction and type")
    parser.add_argument("--out", type=Path, help="write a line of JSON for each call here")
    given = parser.parse_args()
    bench, lines, ratios = Bench(), [], defaultdict(list)
    for name, attrs in NORMS:
        package, groups = package_of(name, attrs), int(dict(attrs).get("groups", 1))
        for direction in ("forward", "backward"):
            for dtype in ("bf16", "f32"):
                found = sizes(given.seed, groups)
                for case in (Case(direction, next(found), dtype) for _ in range(given.count)):
                    general, special, entries = timed(bench, package, case)
                    about = {"norm": name, "direction": direction, "dtype": dtype, "sizes": case.sizes}
                    lines.append(json.dumps(about | {"us": [general, special], "launches": entries}))
                    print(lines[-1], flush=True)
                    ratios[name, direction, dtype].append(general / special)
    if given.out:
        given.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("| call | geometric mean | worst |\n|---|---|---|")
    for key, every in ratios.items():
        mean = exp(sum(map(log, every)) / len(every))
        print(f"| {' '.join(key)} | {mean:.3f} | {max(every):.3f} |")


if __name__ == "__main__":
    main()
