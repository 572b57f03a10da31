"""Every spec checked on a GPU over many sizes: `normgen check` in parallel processes, and a table.

    python bench/verify.py --out bench/results/h200/verify
    python bench/verify.py --out $OUT/verify --specs groupnorm,batchnorm --dtype bf16
    python bench/verify.py --out $OUT/verify --quick
    python bench/verify.py --out $OUT/thorough --executor host --thorough

Each spec runs on the awkward sizes of `normgen check` itself, then on the sizes that belong to the form of
its first input. With --thorough each combination of its attr values runs on the thorough list of cases
instead. Writes OUT.json (a row for each spec and size) and OUT.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from normgen import bundled
from normgen.diagnostics import SpecError
from normgen.dsl import load_definition
from normgen.dsl.syntax import parse
from normgen.verify.draw import attr_choices

LENGTHS = (1, 7, 64, 100, 1024, 3000, 4096, 8192, 16384, 65536, 262144)
# Batch, channels, pixels: one of everything; odd; whole warps; a channel longer and shorter than a block
# holds; more channels than pixels; more samples and more channels than a grid has rows.
IMAGES = (
    (1, 1, 1),
    (3, 7, 49),
    (2, 32, 196),
    (2, 16, 3136),
    (2, 3, 65536),
    (8, 512, 16),
    (70000, 2, 3),
    (2, 70000, 2),
)
GROUPS = (1, 8, 32)
OWN = ""  # the sizes of `normgen check`
Row = dict[str, Any]


def _lengths(text: str) -> tuple[str, ...]:
    return tuple(text.format(n) for n in LENGTHS)


def _images(text: str) -> tuple[str, ...]:
    return tuple(text.format(b=b, c=c, s=s) for b, c, s in IMAGES)


def _grouped(text: str) -> tuple[str, ...]:
    return tuple(
        f"groups={g} {text.format(b=b, c=-(-c // g), s=s)}"
        for (b, c, s), g in zip(IMAGES, GROUPS * len(IMAGES), strict=False)
    )


# What a spec is told, by the form of its first input: lengths of axes, and attrs (in small letters).
FORMS = {
    "..., D": _lengths("D={}"),
    "B, S, D": _lengths("D={}"),
    "..., (G D)": tuple(f"groups={g} {size}" for g in (1, 8) for size in _lengths("D={}")),
    "..., (G E)": _lengths("G={}"),
    "..., (H D)": _lengths("head_dim={} H=3 K=2"),
    "B, C, ...": _images("B={b} C={c} ...={s}"),
    "..., C": _images("...={s} C={c}"),
    "B, C, H, W": (*_images("B={b} C={c} H={s} W=1"), "B=2 C=5 H=33 W=65", "B=1 C=1 H=1 W=700"),
    "B, (G C), ...": _grouped("B={b} C={c} ...={s}"),
    "B, ..., (G C)": _grouped("B={b} C={c} ...={s}"),
    "K, ...": _images("K={c} ...={s}"),
}
SMALLER = 16384  # the most groups of a row that are told apart: a group has 16 or 128 elements


def sizes_of(spec: str) -> tuple[str, ...]:
    """What the spec is to be run on."""
    source = bundled.read(spec)
    if source is None:
        raise SystemExit(f"no spec is called {spec}: there are {', '.join(bundled.names())}")
    try:
        definition = load_definition(source, attr_choices(parse(source), {})[0])
    except SpecError:
        return (OWN,)
    first = next(t for t in definition.program.operands if t.role == "input")
    dims = ", ".join(axes[0] if len(axes) == 1 else f"({' '.join(axes)})" for axes in first.dims)
    known = dict.fromkeys(FORMS.get(dims, ()))
    if dims == "..., (G E)":
        known = dict.fromkeys(size for size in known if int(size[2:]) <= SMALLER)
    return (OWN, *known)


def combinations(spec: str) -> tuple[str, ...]:
    """Every combination of attr values that a check covers, in the words of a size."""
    source = bundled.read(spec)
    if source is None:
        raise SystemExit(f"no spec is called {spec}: there are {', '.join(bundled.names())}")
    choices = attr_choices(parse(source), {})
    return tuple(" ".join(f"{name}={str(value).lower()}" for name, value in c.items()) for c in choices)


def arguments(size: str) -> list[str]:
    """`groups=8 B=2`: the options that say so."""
    found = []
    for word in size.split():
        found += ["--attr" if word[0].islower() else "--size", word]
    return found


def check(spec: str, size: str, given: argparse.Namespace) -> Row:
    """What `normgen check` says of one spec at one size."""
    command = [sys.executable, "-m", "normgen", "check", spec, "--executor", given.executor, "--json"]
    command += arguments(size) + (["--dtype", given.dtype] if given.dtype else [])
    command += ["--thorough"] * given.thorough
    row: Row = {"spec": spec, "size": size, "exit": None}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=given.limit)
    except subprocess.TimeoutExpired:
        return row | {"error": f"took more than {given.limit:.0f} s"}
    row["exit"] = done.returncode
    try:
        cases = [c for c in json.loads(done.stdout)["rows"] if c["stage"] == "kernels"]
    except (ValueError, KeyError):
        return row | {"error": (done.stderr or done.stdout)[-300:]}
    skipped = [c["note"] for c in cases if c["status"] == "skipped"]
    if skipped:
        row["skipped"] = skipped[0]
    for direction in ("forward", "backward"):
        mine = [c for c in cases if c["direction"] == direction and c["status"] != "skipped"]
        worst = max((c["worst"] for c in mine if c["worst"]), default=None)
        failed = [c for c in mine if c["status"] != "ok"]
        row[direction] = {"cases": len(mine), "failed": len(failed), "worst": worst}
        if failed:
            row[direction]["first"] = f"{failed[0]['shape']} [{failed[0]['dtypes']}] {failed[0]['note']}"
    return row


def passed(row: Row) -> bool:
    """Every case ran and held."""
    return row["exit"] == 0 and "skipped" not in row and "error" not in row


def table(rows: list[Row]) -> str:
    """One line a spec and size: cases, failures, and the worst error as a share of its bound."""
    lines = [
        "| spec | size | forward: cases, failed, worst | backward: cases, failed, worst |",
        "|---|---|---|---|",
    ]
    for row in rows:
        size = row["size"] or "awkward sizes"
        if "error" in row or "skipped" in row:
            why = row.get("skipped") or f"did not run (exit {row['exit']})"
            lines.append(f"| {row['spec']} | {size} | {why} | |")
            continue
        cells = []
        for direction in ("forward", "backward"):
            d = row[direction]
            worst = "-" if d["worst"] is None else f"{d['worst']:.3f}"
            cells.append(f"{d['cases']}, {d['failed']}, {worst}")
        lines.append(f"| {row['spec']} | {size} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=14)
    parser.add_argument("--executor", default="cuda")
    parser.add_argument("--specs", default=",".join(bundled.names()), help="separated by commas")
    parser.add_argument("--dtype", help="one element type in place of nine mixtures")
    parser.add_argument("--quick", action="store_true", help="the awkward sizes, and each third other one")
    parser.add_argument("--thorough", action="store_true", help="every attr value on many more cases")
    parser.add_argument("--limit", type=float, default=400, help="seconds for one spec and size")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds after which nothing is begun")
    given = parser.parse_args()
    tasks = [
        (index, spec, size)
        for spec in given.specs.split(",")
        for index, size in enumerate(combinations(spec) if given.thorough else sizes_of(spec))
        if not given.quick or index % 3 == 0
    ]
    tasks.sort(key=lambda task: task[0])  # the first sizes of every spec before the second of any
    start = time.monotonic()

    def one(task: tuple[int, str, str]) -> Row:
        _, spec, size = task
        if time.monotonic() - start > given.budget:
            return {"spec": spec, "size": size, "exit": None, "error": "the time that was given is over"}
        return check(spec, size, given)

    rows = []
    with ThreadPoolExecutor(given.jobs) as pool:
        for row in pool.map(one, tasks):
            rows.append(row)
            print(row["spec"], row["size"], row["exit"], row.get("skipped", ""), flush=True)
    rows.sort(key=lambda row: row["spec"])
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")
    good = sum(map(passed, rows))
    what = "spec and attr values" if given.thorough else "spec and size"
    options = f"--executor {given.executor}" + " --thorough" * given.thorough
    head = f"`normgen check {options}`: {good} of {len(rows)} pairs of {what} pass."
    given.out.with_suffix(".md").write_text(f"{head}\n\n{table(rows)}\n")
    for row in rows:
        if not passed(row):
            print(json.dumps(row)[:400])
    print(head, f"{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
