"""Rows of results as plots: rho against the width of a row, and of each image; the picture of the README."""

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


# The two backwards of the picture, and what it is drawn in on a light and on a dark page.
PICTURED = (("rmsnorm", "RMSNorm backward"), ("layernorm", "LayerNorm backward"))
INK = {"light": ("#1f2328", "#d0d7de"), "dark": ("#e6edf3", "#30363d")}
_TEXT = {"font.size": 9, "svg.fonttype": "none"}  # letters stay letters, which makes the file small
NAMES = {**TITLES, "torch": "PyTorch", "liger": "Liger"}
HUES = {MINE: "#2f81f7", "quack": "#d29922", "liger": "#a371f7", "compile": "#3fb950", "torch": "#f85149"}


def picture(folder: Path, header: Row, rows: Sequence[Row]) -> None:
    """Write `bandwidth-light.svg` and `bandwidth-dark.svg`: the fraction of copy bandwidth of two backwards,
    by width, in bf16."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "normgen"
    for theme, (ink, grid) in INK.items():
        inked = dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), ink)
        with matplotlib.rc_context({**inked, "axes.edgecolor": grid, "grid.color": grid, **_TEXT}):
            path = folder / f"bandwidth-{theme}.svg"
            _bandwidth(header, rows).savefig(path, metadata={"Date": None}, transparent=True)


def _bandwidth(header: Row, rows: Sequence[Row]) -> Any:
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    figure = Figure(figsize=(9.6, 3.6), layout="constrained")
    figure.suptitle(f"Share of copy bandwidth, bf16, on one {header['device']}", fontsize=10)
    wanted = ("backward", "bf16", "rows")
    backwards = [row for row in rows if (row["direction"], row["dtype"], row["layout"]) == wanted]
    for number, (op, title) in enumerate(PICTURED, 1):
        axes = figure.add_subplot(1, 2, number)
        mine = [row for row in backwards if row["op"] == op]
        widths = sorted({row["shape"][-1] for row in mine})
        for provider, hue in HUES.items():
            shares = {row["shape"][-1]: row.get("rho") for row in mine if row["provider"] == provider}
            if not any(shares.values()):  # it was not there
                continue
            own = provider == MINE
            axes.plot(
                range(len(widths)), [shares.get(width) for width in widths], color=hue,
                label=NAMES.get(provider, provider), linewidth=2.6 if own else 1.2,
                marker="o", markersize=4 if own else 2.5, zorder=3 if own else 2,
            )  # fmt: skip
        axes.set_xticks(range(len(widths)), [_short(width) for width in widths], rotation=45)
        axes.set(title=title, xlabel="elements of a row", ylim=(0, 1.02))
        axes.yaxis.set_major_formatter(PercentFormatter(1))
        axes.grid(axis="y", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(HUES), frameon=False)
    return figure


def _short(width: int) -> str:
    return f"{width // 1024}k" if width % 1024 == 0 else str(width)
