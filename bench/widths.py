"""Widths that nobody benchmarks: what a call takes by default, beside a copy or triad of as many bytes.

    python bench/widths.py --out $OUT/widths --seconds 150
    python bench/widths.py --out $OUT/widths --passes rmsnorm.backward,layernorm.backward --dtype f32 --odd

A grid of a few widths hides a rule that goes wrong between them: layernorm of 1280 columns took 1.4 times
what it should, rmsnorm of 514 twice. Writes OUT.json and OUT.md: a line for each width, a column for each
pass, in it the share of the ceiling, in bold where it is below the mark; those are listed with their
schedules on standard output. What was not reached within the time is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import normgen
from normgen.dtypes import DTYPES
from normgen.measure.arithmetic import least_bytes
from normgen.measure.norms import Bench, Case, contiguous_binding, direction_of, numbers_of
from normgen.measure.plans import measure_plan

PASSES = (
    "rmsnorm.forward,layernorm.forward,softmax.forward,add_rmsnorm.forward,"
    "rmsnorm.backward,layernorm.backward,softmax.backward"
)
ELEMENTS = 1 << 26
MARK = 0.85
BATCHES = 5
Row = dict[str, Any]


def widths(least: int = 32, most: int = 65536, odd: bool = False) -> list[int]:
    """Four widths of each octave, whole lines of memory but for the shortest, and beside each one that is
    some elements longer: 8, 4 or 2 in turn, so that vectors of every width occur; with `odd` 1."""
    found = []
    octave = least
    while octave <= most:
        for k, quarter in enumerate(octave + octave * part // 4 for part in range(4)):
            found += [quarter, quarter + (1 if odd else (8, 4, 2)[(k + octave.bit_length()) % 3])]
        octave *= 2
    return sorted({width for width in found if width <= most})


def table(rows: list[Row], mark: float) -> list[str]:
    """Markdown: a line for each width, a column for each pass; shares below the mark in bold."""
    passes = list(dict.fromkeys(row["pass"] for row in rows))
    shares = {(row["width"], row["pass"]): row["rho"] for row in rows}

    def cell(width: int, each: str) -> str:
        share = shares.get((width, each))
        if share is None:
            return ""
        return f"**{share:.2f}**" if share < mark else f"{share:.2f}"

    lines = [f"| columns | {' | '.join(passes)} |", "|---" * (len(passes) + 1) + "|"]
    for width in sorted({row["width"] for row in rows}):
        lines.append(f"| {width} | {' | '.join(cell(width, each) for each in passes)} |")
    return lines


def slow(rows: list[Row], mark: float) -> list[Row]:
    """Those below the mark, the slowest first."""
    return sorted((row for row in rows if row["rho"] < mark), key=lambda row: row["rho"])


def sizes_of(width: int) -> dict[str, Any]:
    """Rows of so many columns, with as many elements as ELEMENTS, or a little fewer."""
    return {"...": (max(1, ELEMENTS // width),), "D": width}


def run(passes: list[str], dtype: str, every: list[int], seconds: float) -> list[Row]:
    """What was measured within the time, width by width; the ceiling is timed once for each pass."""
    bench, end = Bench(), time.monotonic() + seconds
    cases = [
        (each, Case(each.rpartition(".")[2], sizes_of(width), dtype)) for width in every for each in passes
    ]
    packages = {each: normgen.load(each.rpartition(".")[0]).package for each in passes}
    plans = [bench.plan(packages[each], case) for each, case in cases]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(bench.executor.binary, {item.source for plan in plans for item in plan.launches}))
    rows: list[Row] = []
    speeds: dict[str, float] = {}
    for (each, case), plan in zip(cases, plans, strict=True):
        if time.monotonic() > end:
            break
        package = packages[each]
        direction = direction_of(package, case.direction)
        least = least_bytes(direction, contiguous_binding(direction, case.sizes, case.dtype))
        if each not in speeds:
            speeds[each] = least.total / bench.ceiling.microseconds(least.ceiling, least.total)
        sets = bench.buffers(package, case)  # they live until the call has been measured
        addresses = [one.addresses for one in sets]
        us = measure_plan(bench.executor, bench.clock, plan, addresses, numbers_of(package), BATCHES).us
        about = {"pass": each, "width": case.sizes["D"], "dtype": dtype, "us": us, "note": plan.notes[0]}
        rows.append(about | {"rho": least.total / speeds[each] / us})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="where OUT.json and OUT.md go")
    parser.add_argument("--passes", default=PASSES, help="SPEC.DIRECTION, separated by commas")
    parser.add_argument("--dtype", default="bf16", choices=[d for d in DTYPES if d in ("bf16", "f16", "f32")])
    parser.add_argument("--least", type=int, default=32)
    parser.add_argument("--most", type=int, default=65536)
    parser.add_argument("--odd", action="store_true")
    parser.add_argument("--mark", type=float, default=MARK)
    parser.add_argument("--seconds", type=float, default=1e9, help="of measuring; what is left is left out")
    given = parser.parse_args()
    every = widths(given.least, given.most, given.odd)
    rows = run(given.passes.split(","), given.dtype, every, given.seconds)
    given.out.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")
    given.out.with_suffix(".md").write_text("\n".join(table(rows, given.mark)) + "\n")
    for row in slow(rows, given.mark):
        print(f"{row['pass']:20} {row['width']:6} {row['us']:8.1f} us {row['rho']:.2f}  {row['note']}")


if __name__ == "__main__":
    main()
