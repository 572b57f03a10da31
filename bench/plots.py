"""Rows of results as plots: rho against the width of a row, and of each image; the pictures of the pages."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from results import Row
from tables import MINE, TITLES, lines, means, providers_of, shape_text

COLOURS = {MINE: "C0", "torch": "C1", "compile": "C2", "liger": "C3", "quack": "C4", "autotune": "C5"}


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
        for provider in providers_of(rows):
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

    found, shown = lines(rows), providers_of(rows)
    figure = Figure(figsize=(10, 1 + 0.4 * len(found)), layout="constrained")
    axes = figure.add_subplot()
    for turn, provider in enumerate(shown):
        at = [i + 0.8 * ((turn + 0.5) / len(shown) - 0.5) for i in range(len(found))]
        shares = [by.get(provider, {}).get("rho", 0) for by in found.values()]
        label, colour = TITLES.get(provider, provider), COLOURS.get(provider)
        axes.barh(at, shares, height=0.75 / len(shown), label=label, color=colour)
    names = [f"{op} {direction} {shape_text(shape)} {layout}" for op, direction, shape, _, layout in found]
    axes.set_yticks(range(len(found)), names, fontsize=7)
    axes.invert_yaxis()
    axes.axvline(1, color="gray", linewidth=0.6)
    axes.set_xlabel(f"rho, {dtype}")
    axes.legend(loc="lower right", fontsize=7)
    return figure


# What pictures of the pages show, and what they are drawn in on a light and on a dark page.
PICTURED = (("rmsnorm", "RMSNorm"), ("layernorm", "LayerNorm"))
WAYS = ("forward", "backward")
INK = {"light": ("#1f2328", "#d0d7de"), "dark": ("#e6edf3", "#30363d")}
_TEXT = {"font.size": 8, "svg.fonttype": "none"}  # letters stay letters, which makes the file small
NAMES = {**TITLES, "torch": "PyTorch", "liger": "Liger"}
HUES = {
    MINE: "#2f81f7",
    "quack": "#d29922",
    "liger": "#a371f7",
    "autotune": "#8b949e",
    "compile": "#3fb950",
    "torch": "#f85149",
}


def pictures(folder: Path, header: Row, rows: Sequence[Row]) -> None:
    """Write, for light and for dark pages, the share of copy bandwidth by width, `bandwidth-*.svg`, and the
    means of all norms compared with the best peer, `means-*.svg`, both in bf16."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "normgen"
    mine = [row for row in rows if row["dtype"] == "bf16"]
    for theme, (ink, grid) in INK.items():
        inked = dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), ink)
        with matplotlib.rc_context({**inked, "axes.edgecolor": grid, "grid.color": grid, **_TEXT}):
            for name, draw_picture in (("bandwidth", _bandwidth), ("means", _means)):
                path = folder / f"{name}-{theme}.svg"
                draw_picture(header, mine).savefig(path, metadata={"Date": None}, transparent=True)


def _bandwidth(header: Row, rows: Sequence[Row]) -> Any:
    """A panel for each direction of the norms of `PICTURED`, a line for each provider."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.4, 4.8), layout="constrained")
    figure.suptitle(f"Share of copy bandwidth by row length, bf16, {header['device']}", fontsize=9)
    for down, way in enumerate(WAYS):
        for across, (op, title) in enumerate(PICTURED):
            axes = figure.add_subplot(2, 2, 2 * down + across + 1)
            wanted = (op, way, "rows")
            _lines(axes, [r for r in rows if (r["op"], r["direction"], r["layout"]) == wanted])
            axes.set_title(f"{title} {way}", fontsize=9)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=8)
    return figure


def _lines(axes: Any, rows: Sequence[Row]) -> None:
    widths = sorted({row["shape"][-1] for row in rows})
    for provider, hue in HUES.items():
        shares = {row["shape"][-1]: row.get("rho") for row in rows if row["provider"] == provider}
        if not any(shares.values()):  # it was not measured
            continue
        own = provider == MINE
        axes.plot(
            range(len(widths)), [shares.get(width) for width in widths], color=hue,
            label=NAMES.get(provider, provider), linewidth=2.2 if own else 1.1,
            marker="o", markersize=3.2 if own else 2, zorder=3 if own else 2,
        )  # fmt: skip
    axes.set_xticks(range(len(widths)), [_short(width) for width in widths], rotation=60, fontsize=7)
    _percent(axes, axes.yaxis, "y")


def _means(header: Row, rows: Sequence[Row]) -> Any:
    """Geometric means: a panel for each direction, a line from the best peer's dot to normgen's."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 5.2), layout="constrained")
    figure.suptitle(f"Geometric mean of the share of copy bandwidth, bf16, {header['device']}", fontsize=9)
    found = means(rows)
    names = list(dict.fromkeys((op, layout) for op, _, layout in found))
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, way in zip((left, right), WAYS, strict=True):
        shares = [
            (at, *found[op, way, layout])
            for at, (op, layout) in enumerate(names)
            if (op, way, layout) in found
        ]
        places, peers, own = zip(*shares, strict=True)
        axes.hlines(places, peers, own, color="gray", linewidth=1.2)
        axes.scatter(peers, places, s=18, color=HUES["liger"], label="best peer", zorder=3)
        axes.scatter(own, places, s=24, color=HUES[MINE], label=MINE, zorder=4)
        axes.set_title(way, fontsize=9)
        _percent(axes, axes.xaxis, "x")
    left.set_yticks(range(len(names)), [", ".join(name) for name in names], fontsize=7)
    left.invert_yaxis()
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    return figure


def _percent(axes: Any, axis: Any, name: str) -> None:
    """Have an axis go from 0 to 100 %."""
    from matplotlib.ticker import PercentFormatter

    axes.set(**{f"{name}lim": (0, 1.03)})
    axis.set_major_formatter(PercentFormatter(1))
    axes.grid(axis=name, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _short(width: int) -> str:
    return f"{width // 1024}k" if width % 1024 == 0 else str(width)
