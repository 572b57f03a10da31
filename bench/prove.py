"""The proof of every rows spec on a GPU over many lengths of row: `normgen check` in parallel, and a table.

    python bench/prove.py --out bench/results/h200/proof

Writes OUT.json (a row for each spec and length) and OUT.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

# How a spec is told the length of its rows.
SPECS = {
    "rmsnorm": "--size D={}",
    "layernorm": "--size D={}",
    "softmax": "--size D={}",
    "log_softmax": "--size D={}",
    "l2norm": "--size D={}",
    "add_rmsnorm": "--size D={}",
    "gated_rmsnorm": "--size D={}",
    "adaln_modulate": "--size D={}",
    "dyt": "--size D={}",
    "qk_norm": "--attr head_dim={} --size H=3 --size K=2",
}
LIMIT = 200  # seconds for one spec and length
LENGTHS = (1, 7, 64, 100, 1024, 3000, 4096, 8192, 16384, 65536, 262144)


def prove(spec: str, length: int, executor: str) -> dict[str, Any]:
    """What `normgen check` says of one spec at one length."""
    size = SPECS[spec].format(length).split()
    command = [sys.executable, "-m", "normgen", "check", spec, "--executor", executor, *size, "--json"]
    row: dict[str, Any] = {"spec": spec, "D": length, "exit": None}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return row | {"error": f"took more than {LIMIT} s"}
    row["exit"] = done.returncode
    try:
        cases = [c for c in json.loads(done.stdout)["rows"] if c["stage"] == "kernels"]
    except (ValueError, KeyError):
        return row | {"error": (done.stderr or done.stdout)[-300:]}
    for direction in ("forward", "backward"):
        mine = [c for c in cases if c["direction"] == direction]
        worst = max((c["worst"] for c in mine if c["worst"]), default=None)
        failed = sum(c["status"] != "ok" for c in mine)
        row[direction] = {"cases": len(mine), "failed": failed, "worst": worst}
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """One line a spec and length: cases, failures, and the worst error as a share of its bound."""
    lines = [
        "| spec | D | forward: cases, failed, worst | backward: cases, failed, worst |",
        "|---|---|---|---|",
    ]
    for row in rows:
        if "error" in row:
            lines.append(f"| {row['spec']} | {row['D']} | did not run (exit {row['exit']}) | |")
            continue
        cells = []
        for direction in ("forward", "backward"):
            d = row[direction]
            worst = "-" if d["worst"] is None else f"{d['worst']:.3f}"
            cells.append(f"{d['cases']}, {d['failed']}, {worst}")
        lines.append(f"| {row['spec']} | {row['D']} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=14)
    parser.add_argument("--executor", default="cuda")
    parser.add_argument("--specs", default=",".join(SPECS))
    parser.add_argument("--lengths", default=",".join(map(str, LENGTHS)))
    given = parser.parse_args()
    lengths = [int(n) for n in given.lengths.split(",")]
    tasks = [(s, n) for n in lengths for s in given.specs.split(",")]
    with ThreadPoolExecutor(given.jobs) as pool:
        rows = []
        for row in pool.map(lambda task: prove(*task, given.executor), tasks):
            rows.append(row)
            print(row["spec"], row["D"], row["exit"], flush=True)
    order = list(SPECS)
    rows.sort(key=lambda row: (order.index(row["spec"]), row["D"]))
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")
    passed = sum(row["exit"] == 0 for row in rows)
    head = f"`normgen check --executor {given.executor}`: {passed} of {len(rows)} spec and length pairs pass."
    given.out.with_suffix(".md").write_text(f"{head}\n\n{table(rows)}\n")
    print(head)
    for row in rows:
        if row["exit"] != 0:
            print(json.dumps(row)[:400])


if __name__ == "__main__":
    main()
