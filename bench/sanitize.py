"""NVIDIA's compute-sanitizer over `normgen check`, a few specs of each family of kernels with every tool.

    python bench/sanitize.py --out bench/results/h200/sanitizer.txt
    python bench/sanitize.py --out $OUT/sanitizer.txt --families columns,windows

A line for each tool and spec: the exit, what the check said, what the tool said. API errors are left out: a
launch without a current context is tried first and then repeated inside the context.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
# By family: a spec and what it is told.
FAMILIES = {
    "rows": (
        ("layernorm", "--size D=1000"),
        ("layernorm", "--size D=1001"),
        ("rmsnorm", "--size D=128"),
        ("rmsnorm", "--size D=1024"),
        ("softmax", "--size D=151"),
        ("instancenorm", "--size B=3 --size C=5 --size ...=700"),
    ),
    "small blocks": (
        ("rmsnorm", "--size D=8192"),
        ("layernorm", "--size D=3000"),
        ("layernorm", "--size D=5119"),
    ),
    "clusters": (
        ("rmsnorm", "--size D=20000"),
        ("rmsnorm", "--size D=70000"),
        ("rmsnorm", "--size ...=20 --size D=262144"),
        ("softmax", "--size D=70000"),
        ("layernorm", "--size D=131072"),
    ),
    "grouped": (
        ("groupnorm", "--attr groups=4 --size B=3 --size C=6 --size ...=130"),
        ("groupnorm", "--attr groups=2 --size B=4 --size C=4 --size ...=131072"),
        ("groupnorm_channels_last", "--attr groups=4 --size B=3 --size C=6 --size ...=130"),
        ("groupnorm_channels_last", "--attr groups=4 --size B=3 --size C=40 --size ...=256"),
        ("groupnorm_channels_last", "--attr groups=4 --size B=3 --size C=10 --size ...=4000"),
    ),
    "cooperative": (
        ("batchnorm", "--size B=64 --size C=4 --size ...=16384"),
        ("instancenorm", "--size B=1 --size C=2 --size ...=1310720"),
    ),
    "columns": (
        ("batchnorm", "--size B=5 --size C=40 --size ...=77"),
        ("batchnorm_channels_last", "--size ...=400 --size C=70"),
        ("batchnorm_channels_last", "--size ...=6272 --size C=128"),
        ("layernorm2d", "--size B=3 --size C=65 --size ...=90"),
        ("layernorm2d", "--size B=24 --size C=96 --size ...=3136"),
    ),
    "windows": (
        ("local_response_norm", "--size B=3 --size C=33 --size ...=70"),
        ("local_response_norm_recomputed", "--size B=3 --size C=33 --size ...=270"),
    ),
    "tiles": (
        ("rmsnorm_fp8", "--attr e5m2=false --size G=9"),
        ("rmsnorm_fp8", "--attr e5m2=false --size G=256"),
    ),
}
LIMIT = 150  # seconds for one tool and spec


def sanitize(tool: str, spec: str, told: str) -> str:
    """One line: what was run, and what came of it."""
    command = ["compute-sanitizer", "--tool", tool, "--report-api-errors", "no", "--error-exitcode", "9"]
    command += [sys.executable, "-m", "normgen", "check", spec, "--executor", "cuda", "--dtype", "bf16"]
    name = f"{tool} {spec} {told}"
    try:
        done = subprocess.run(
            command + told.split(), capture_output=True, text=True, check=False, timeout=LIMIT
        )
    except subprocess.TimeoutExpired:
        return f"{name} took more than {LIMIT} s"
    lines = (done.stdout + done.stderr).splitlines()
    words = ("SUMMARY", "passed:", "failed", "error[", "Error:")
    told_lines = [line.strip() for line in lines if any(word in line for word in words)]
    return f"{name} exit={done.returncode} {' '.join(dict.fromkeys(told_lines))[:300]}"


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=14)
    parser.add_argument("--families", default=",".join(FAMILIES), help="separated by commas")
    parser.add_argument("--tools", default=",".join(TOOLS), help="separated by commas")
    given = parser.parse_args()
    tasks = [
        (tool, *subject)
        for tool in given.tools.split(",")
        for family in given.families.split(",")
        for subject in FAMILIES[family]
    ]
    given.out.parent.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(given.jobs) as pool, given.out.open("w") as out:
        for done in as_completed([pool.submit(sanitize, *task) for task in tasks]):
            for to in (sys.stdout, out):
                print(done.result(), file=to, flush=True)


if __name__ == "__main__":
    main()
