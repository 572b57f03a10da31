"""Rows of results as plots: rho against the width of a row, and rho of each image."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from results import Row
from tables import MINE, TITLES, lines, providers_of, shape_text

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
