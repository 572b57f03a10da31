"""Results as tables and plots, and merged into the pages that tell them.

    python bench/report.py bench/results/h200 --readme README.md
    python bench/report.py bench/results/h200 --proof bench/results/h200/proof.json

Reads results.json of the folder; writes the folder's README.md, plots where matplotlib is there, and with
--readme the performance section of that page. A section that this program wrote before is replaced, and
everything else on a page stays as it is.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import results
from results import Row, line_of

from normgen.measure.arithmetic import geometric_mean

MINE = "normgen"
PROVIDERS = (MINE, "torch", "compile", "liger", "quack")  # in the order of the tables
TITLES = {"compile": "torch.compile"}
COLOURS = {MINE: "C0", "torch": "C1", "compile": "C2", "liger": "C3", "quack": "C4"}
INTRODUCTION = """## Performance

`make bench` on one {device}, with {versions}. Each cell is microseconds on the device and, in brackets, rho:
the time of the fastest copy (where two bytes are read for one that is written: triad) of the fewest bytes
that must move, in the same run, over the time of all that the call launches. Caches are cold but for
decoding, every provider is timed by the same code: CUDA graphs on rotating buffers, the median of 31 replays.
host us is what queueing a call of normgen takes. The last column is the fastest peer's time over normgen's. A
result marked * is further from float64 than rounding explains; it is no peer's best.
"""
README_INTRODUCTION = """On one {device}, bf16: rho of normgen and of the best peer at each width, where rho
is the time of the fastest copy of the same bytes over that of the norm. The peers are PyTorch, torch.compile,
Liger and quack, timed by the same code;
[bench/results/{folder}](bench/results/{folder}/README.md) has every figure.
"""
GROUPS = {
    "Rows": ("rows",),
    "Images": ("nchw", "nhwc"),
    "Rows of attention heads": ("heads",),
    "Decoding: 20 calls in a row, caches warm": ("decode",),
    "Into given arrays: the host's share": ("given",),
}


# ------------------------------------------------------------------------------------------------- tables


def lines(rows: Iterable[Row]) -> dict[tuple[Any, ...], dict[str, Row]]:
    """The rows by what they are about, then by provider."""
    found: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in rows:
        found.setdefault(line_of(row), {})[row["provider"]] = row
    return found


def best_peer(by: dict[str, Row]) -> Row | None:
    """The fastest row of another provider whose results are right."""
    peers = [row for p, row in by.items() if not p.startswith(MINE) and "us" in row and "wrong" not in row]
    return min(peers, key=lambda row: row["us"], default=None)


def lines_table(rows: Sequence[Row]) -> str:
    """One line for each op, direction, shape, type and layout; all providers in it; then the faults."""
    shown = _providers(rows)
    head = ["op", "direction", "shape", "dtype", "layout", "MB", "copy us"]
    head += [TITLES.get(p, p) for p in shown] + ["host us", "against the best peer"]
    body = []
    for (op, direction, shape, dtype, layout), by in lines(rows).items():
        some = next(iter(by.values()))
        copy = next((row["copy_us"] for row in by.values() if "copy_us" in row), None)
        cells = [op, direction, _shape(shape), dtype, layout, f"{some['bytes'] / 1e6:.1f}", _number(copy)]
        cells += [_cell(by.get(p)) for p in shown]
        body.append([*cells, _number(by.get(MINE, {}).get("host_us")), _gain(by)])
    return "\n".join([table(head, body), *_faults(rows)]) + "\n"


def summary_table(rows: Sequence[Row]) -> str:
    """Geometric means of rho by op, direction and type; in brackets of how many lines, where not of all."""
    shown = _providers(rows)
    head = [
        "op",
        "direction",
        "dtype",
        "layout",
        "lines",
        "best peer",
        *(TITLES.get(p, p) for p in shown),
        "ahead",
    ]
    groups: dict[tuple[str, ...], list[dict[str, Row]]] = {}
    for (op, direction, _, dtype, layout), by in lines(rows).items():
        groups.setdefault((op, direction, dtype, layout), []).append(by)
    body = []
    for key, members in groups.items():
        best = [row for by in members if (row := best_peer(by)) is not None]
        cells = [_mean(best, len(members))]
        cells += [_mean([by[p] for by in members if p in by], len(members)) for p in shown]
        body.append([*key, str(len(members)), *cells, _ahead(members)])
    return table(head, body) + "\n"


def _ahead(members: list[dict[str, Row]]) -> str:
    """At how many lines normgen is at least as fast as every peer, of those where there is one."""
    pairs = [(by[MINE], row) for by in members if "us" in by.get(MINE, {}) and (row := best_peer(by))]
    return f"{sum(mine['us'] <= row['us'] for mine, row in pairs)} of {len(pairs)}" if pairs else ""


def _mean(rows: Iterable[Row], of: int) -> str:
    shares = [row["rho"] for row in rows if "rho" in row]
    if not shares:
        return ""
    return f"{geometric_mean(shares):.3f}" + (f" ({len(shares)})" if len(shares) < of else "")


def width_table(rows: Sequence[Row], dtype: str = "bf16") -> str:
    """rho by D and op: normgen's, and after the stroke the best peer's. Ops of few widths are left out."""
    found = lines(row for row in rows if row["layout"] == "rows" and row["dtype"] == dtype)
    shares = {
        (line[:2], line[2][-1]): f"{_share(by.get(MINE))} / {_share(best_peer(by))}"
        for line, by in found.items()
    }
    widths = sorted({width for _, width in shares})
    ways = [
        way
        for way in dict.fromkeys(way for way, _ in shares)
        if 2 * sum((way, width) in shares for width in widths) > len(widths)
    ]
    body = [[str(width), *(shares.get((way, width), "") for way in ways)] for width in widths]
    return table(["D", *(" ".join(way) for way in ways)], body) + "\n"


def table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    rules = ["---"] * len(head)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rules, *body))


def _providers(rows: Sequence[Row]) -> list[str]:
    """Those that have rows: the usual ones in order, then ways of normgen."""
    there = {row["provider"] for row in rows}
    return [p for p in PROVIDERS if p in there] + sorted(there - set(PROVIDERS))


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    if "us" not in row:
        return "-"
    mark = "*" if "wrong" in row else ""
    return f"{row['us']:.1f} ({row['rho']:.3f}){mark}" if "rho" in row else f"{row['us']:.1f}{mark}"


def _share(row: Row | None) -> str:
    return f"{row['rho']:.2f}" if row is not None and "rho" in row else "-"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def _gain(by: dict[str, Row]) -> str:
    peer, mine = best_peer(by), by.get(MINE, {}).get("us")
    return f"{peer['us'] / mine:.2f}x" if peer is not None and mine else ""


def _faults(rows: Iterable[Row]) -> list[str]:
    """Each fault once, with how often and where it first was."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if told := row.get("fault") or row.get("wrong"):
            where = f"{row['op']} {row['direction']} {_shape(row['shape'])} {row['dtype']} {row['layout']}"
            found.setdefault(f"{row['provider']}: {told}", []).append(where)
    listed = [f"- {told} ({len(at)}: {at[0]}{', ...' if at[1:] else ''})" for told, at in found.items()]
    return ["", *listed] if listed else []


# -------------------------------------------------------------------------------------------------- pages


def performance(header: Row, rows: Sequence[Row], plots: Sequence[str] = ()) -> str:
    """The section of the folder's page."""
    versions = ", ".join(f"{name} {version}" for name, version in header["versions"].items())
    parts = [INTRODUCTION.format(device=header["device"], versions=versions)]
    parts += [f"{provider} was not there: {reason}\n" for provider, reason in header["absent"].items()]
    parts += ["### Geometric means of rho\n", summary_table(rows)]
    parts += [f"![rho]({plot})\n" for plot in plots]
    for title, layouts in GROUPS.items():
        if mine := [row for row in rows if row["layout"] in layouts]:
            parts += [f"### {title}\n", lines_table(mine)]
    return "\n".join(parts)


def readme_section(header: Row, rows: Sequence[Row], folder: str) -> str:
    """The section of the project's README."""
    text = README_INTRODUCTION.format(device=header["device"], folder=folder)
    mine = [row for row in rows if row["dtype"] == "bf16"]
    return f"{text}\n{width_table(mine)}\nGeometric means of rho:\n\n{summary_table(mine)}"


def merge_section(page: str, name: str, text: str) -> str:
    """The page with the section `name` set to `text`: in place of the one written before, or at the end."""
    begin, end = f"<!-- {name}: written by bench/report.py -->", f"<!-- end of {name} -->"
    section = f"{begin}\n{text.strip()}\n{end}"
    before, mark, rest = page.partition(begin)
    if not mark:
        return f"{page.rstrip()}\n\n{section}\n".lstrip()
    _, closed, after = rest.partition(end)
    if not closed:
        raise ValueError(f"the section {name} is not closed by {end!r}")
    return before + section + after


def proof_text(rows: list[Row]) -> str:
    """The proof in a few lines: how many runs passed, and the worst error of each spec."""
    passed = sum(row["exit"] == 0 for row in rows)
    told = [f"`bench/prove.py`: {passed} of {len(rows)} runs pass. Errors are shares of their bounds.", ""]
    body = []
    for spec in dict.fromkeys(row["spec"] for row in rows):
        mine = [row for row in rows if row["spec"] == spec]
        parts = [row[d] for row in mine for d in ("forward", "backward") if d in row]
        worst = max((p["worst"] for p in parts if p["worst"]), default=0.0)
        failed = sum(row["exit"] != 0 for row in mine)
        cases = sum(p["cases"] for p in parts)
        body.append([spec, str(len(mine)), str(failed), str(cases), f"{worst:.3f}"])
    return "\n".join([*told, table(["spec", "runs", "failed", "cases", "worst"], body)])


# -------------------------------------------------------------------------------------------------- plots


def draw(folder: Path, rows: Sequence[Row]) -> list[str]:
    """The plots of a folder, by name: rho against D, and rho of each image; nothing without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        print("no plots: matplotlib is missing", file=sys.stderr)
        return []
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "normgen"  # the same figures give the same file
    drawn = []
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        for what, layouts, figure in (("rows", ("rows",), _widths), ("images", ("nchw", "nhwc"), _bars)):
            mine = [r for r in rows if r["dtype"] == dtype and r["layout"] in layouts and "rho" in r]
            if mine:
                drawn.append(f"{what}-{dtype}.svg")
                figure(mine, dtype).savefig(folder / drawn[-1], metadata={"Date": None})
    return drawn


def _widths(rows: Sequence[Row], dtype: str) -> Any:
    """rho against D: a panel for each op and direction, a line for each provider."""
    from matplotlib.figure import Figure

    ways = list(dict.fromkeys((row["op"], row["direction"]) for row in rows))
    across = min(3, len(ways))
    figure = Figure(figsize=(4.6 * across, 3.0 * -(-len(ways) // across)), layout="constrained")
    for number, (op, direction) in enumerate(ways, 1):
        axes = figure.add_subplot(-(-len(ways) // across), across, number)
        for provider in _providers(rows):
            mine = [r for r in rows if (r["op"], r["direction"], r["provider"]) == (op, direction, provider)]
            points = sorted((row["shape"][-1], row["rho"]) for row in mine)
            if points:
                label, colour = TITLES.get(provider, provider), COLOURS.get(provider)
                axes.plot(*zip(*points, strict=True), marker=".", label=label, color=colour)
        axes.set_xscale("log", base=2)
        axes.set_ylim(0, 1.05)
        axes.axhline(1, color="gray", linewidth=0.6)
        axes.set_title(f"{op} {direction}, {dtype}", fontsize=9)
        axes.set_xlabel("D", fontsize=8)
        axes.set_ylabel("rho", fontsize=8)
        axes.tick_params(labelsize=7)
    figure.axes[0].legend(fontsize=7)
    return figure


def _bars(rows: Sequence[Row], dtype: str) -> Any:
    """rho of every line, a bar for each provider."""
    from matplotlib.figure import Figure

    found, shown = lines(rows), _providers(rows)
    figure = Figure(figsize=(10, 1 + 0.4 * len(found)), layout="constrained")
    axes = figure.add_subplot()
    for turn, provider in enumerate(shown):
        at = [i + 0.8 * ((turn + 0.5) / len(shown) - 0.5) for i in range(len(found))]
        shares = [by.get(provider, {}).get("rho", 0) for by in found.values()]
        label, colour = TITLES.get(provider, provider), COLOURS.get(provider)
        axes.barh(at, shares, height=0.75 / len(shown), label=label, color=colour)
    names = [f"{op} {direction} {_shape(shape)} {layout}" for op, direction, shape, _, layout in found]
    axes.set_yticks(range(len(found)), names, fontsize=7)
    axes.invert_yaxis()
    axes.axvline(1, color="gray", linewidth=0.6)
    axes.set_xlabel(f"rho, {dtype}")
    axes.legend(loc="lower right", fontsize=7)
    return figure


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("bench/results/h200"))
    parser.add_argument("--readme", type=Path, help="a page that shows the figures of the folder")
    parser.add_argument("--proof", type=Path, help="what bench/prove.py wrote")
    given = parser.parse_args()
    own = given.folder / "README.md"
    page = own.read_text() if own.exists() else ""
    header, rows = results.read(given.folder)
    if rows:
        page = merge_section(page, "performance", performance(header, rows, draw(given.folder, rows)))
        if given.readme:
            section = readme_section(header, rows, given.folder.name)
            given.readme.write_text(merge_section(given.readme.read_text(), "performance", section))
    if given.proof:
        text = f"## Proof of all families\n\n{proof_text(json.loads(given.proof.read_text()))}"
        page = merge_section(page, "proof", text)
    own.write_text(page)


if __name__ == "__main__":
    main()
