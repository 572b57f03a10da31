"""Results of runs as tables and a chart, and merged into the page that tells them.

    python bench/report.py --readme bench/results/h200/README.md --channels channels.json [more.json ...]
    python bench/report.py --proof proof.json --readme ... --chart rho.svg

A section that this program wrote before is replaced, and everything else on the page stays as it is. Of
several files of channel rows a later one wins, line by line.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

Row = dict[str, Any]
PEERS = ("torch", "compile")
INTRODUCTION = """## Channel norms

`python bench/channels.py --out ...` on one {name}, PyTorch {torch}. Each cell is microseconds on the device
and, in brackets, rho: the time of the fastest copy (forward) or triad (backward) of the fewest bytes that
must move, in the same run, over the time of the call with all that it launches. Caches are cold, every
provider is timed by the same code, and the queue is full, so that no host time is in it; host us is what a
call of normgen takes there. The last column is the faster peer's time over normgen's.
"""


def key_of(row: Row) -> tuple[str, str, tuple[int, ...], str, str]:
    """What a line of the table is about."""
    return row["op"], row["direction"], tuple(row["shape"]), row["dtype"], row["layout"]


def channels_table(rows: list[Row]) -> str:
    """One line for each op, direction, shape, type and layout; all providers in it; then the faults."""
    lines = [
        "| op | direction | shape | dtype | layout | MB | copy us | normgen | torch | torch.compile "
        "| host us | against the best peer |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    faults: dict[str, list[str]] = {}
    for key in dict.fromkeys(key_of(row) for row in rows):
        by = {row["provider"]: row for row in rows if key_of(row) == key}
        some = next(iter(by.values()))
        copy = next((row["copy_us"] for row in by.values() if "copy_us" in row), None)
        cells = [_cell(by.get(provider)) for provider in ("normgen", *PEERS)]
        host = by.get("normgen", {}).get("host_us")
        op, direction, shape, dtype, layout = key
        lines.append(
            f"| {op} | {direction} | {'x'.join(map(str, shape))} | {dtype} | {layout} "
            f"| {some['bytes'] / 1e6:.1f} | {_number(copy)} | {' | '.join(cells)} | {_number(host)} "
            f"| {_gain(by)} |"
        )
        named = {p: row for p, row in by.items() if p.startswith("normgen:")}
        if named:
            cells = [f"{p.partition(':')[2]} {_cell(row)}" for p, row in named.items()]
            lines.append(f"| {op} | {direction} | | | | | | {'; '.join(cells)} | | | | |")
        for provider, row in by.items():
            if "fault" in row:
                what = f"{op} {direction} {'x'.join(map(str, shape))} {dtype} {layout}"
                faults.setdefault(f"{provider}: {row['fault']}", []).append(what)
    listed = [f"- {fault} ({len(of)}: {of[0]}{', ...' if of[1:] else ''})" for fault, of in faults.items()]
    return "\n".join([*lines, *([""] if listed else []), *listed]) + "\n"


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    return f"{row['us']:.1f} ({row['rho']:.3f})" if "us" in row else "-"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _gain(by: dict[str, Row]) -> str:
    peers = [by[p]["us"] for p in PEERS if "us" in by.get(p, {})]
    mine = by.get("normgen", {}).get("us")
    return f"{min(peers) / mine:.2f}x" if peers and mine else ""


def merge_rows(files: list[Path]) -> tuple[dict[str, str], list[Row]]:
    """The device of the last file, and the rows of all: a later measurement replaces an earlier one."""
    device: dict[str, str] = {}
    rows: dict[tuple[Any, ...], Row] = {}
    for file in files:
        content = json.loads(file.read_text())
        device = content["device"]
        for row in content["rows"]:
            key = (*key_of(row), row["provider"])
            if "us" in row or "us" not in rows.get(key, {}):
                rows[key] = row
    return device, list(rows.values())


def merge_section(page: str, name: str, text: str) -> str:
    """The page with the section `name` set to `text`: in place of the one written before, or at the end."""
    begin, end = f"<!-- {name}: written by bench/report.py -->", f"<!-- end of {name} -->"
    section = f"{begin}\n{text.strip()}\n{end}"
    before, mark, rest = page.partition(begin)
    if not mark:
        return f"{page.rstrip()}\n\n{section}\n"
    _, closed, after = rest.partition(end)
    if not closed:
        raise ValueError(f"the section {name} is not closed by {end!r}")
    return before + section + after


def proof_text(rows: list[Row]) -> str:
    """The proof in a few lines: how many runs passed, and the worst error of each spec."""
    passed = sum(row["exit"] == 0 for row in rows)
    lines = [f"`bench/prove.py`: {passed} of {len(rows)} runs pass. Errors are shares of their bounds."]
    lines += ["", "| spec | runs | failed | cases | worst |", "|---|---|---|---|---|"]
    for spec in dict.fromkeys(row["spec"] for row in rows):
        mine = [row for row in rows if row["spec"] == spec]
        parts = [row[d] for row in mine for d in ("forward", "backward") if d in row]
        worst = max((p["worst"] for p in parts if p["worst"]), default=0.0)
        failed = sum(row["exit"] != 0 for row in mine)
        lines.append(f"| {spec} | {len(mine)} | {failed} | {sum(p['cases'] for p in parts)} | {worst:.3f} |")
    return "\n".join(lines)


def draw_chart(rows: list[Row], file: Path) -> None:
    """rho of every line, a bar for each provider. Needs matplotlib."""
    from matplotlib import pyplot

    keys = list(dict.fromkeys(key_of(row) for row in rows))
    figure, axes = pyplot.subplots(figsize=(10, 1 + 0.34 * len(keys)))
    for turn, provider in enumerate(("normgen", *PEERS)):
        by = {key_of(row): row["rho"] for row in rows if row["provider"] == provider and "rho" in row}
        at = [i + 0.27 * (turn - 1) for i in range(len(keys))]
        axes.barh(at, [by.get(key, 0) for key in keys], height=0.25, label=provider)
    labels = [
        f"{op} {direction} {'x'.join(map(str, shape))} {dtype} {layout}"
        for op, direction, shape, dtype, layout in keys
    ]
    axes.set_yticks(range(len(keys)), labels, fontsize=7)
    axes.invert_yaxis()
    axes.axvline(1, color="gray", linewidth=0.8)
    axes.set_xlabel("rho: time of a copy of the fewest bytes / time of the call")
    axes.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(file)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--readme", type=Path, required=True)
    parser.add_argument("--channels", type=Path, nargs="*", default=[])
    parser.add_argument("--proof", type=Path)
    parser.add_argument("--chart", type=Path)
    given = parser.parse_args()
    page = given.readme.read_text()
    if given.channels:
        device, rows = merge_rows(given.channels)
        page = merge_section(
            page, "channel norms", f"{INTRODUCTION.format(**device)}\n{channels_table(rows)}"
        )
        if given.chart:
            draw_chart(rows, given.chart)
    if given.proof:
        text = f"## Proof of all families\n\n{proof_text(json.loads(given.proof.read_text()))}"
        page = merge_section(page, "proof", text)
    given.readme.write_text(page)


if __name__ == "__main__":
    main()
