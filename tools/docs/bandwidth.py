"""Measurements of a norm as pictures and tables: fractions of copy bandwidth."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from html import escape
from typing import Any

from tools.docs.pages import ROOT

RESULTS = "bench/results/h200"
MINE = "normgen"
# By provider: its name and colour.
PROVIDERS = {
    MINE: ("normgen", "#4f6df5"),
    "torch": ("PyTorch", "#ef7d32"),
    "compile": ("torch.compile", "#3aa757"),
    "autotune": ("max-autotune", "#9aa0a6"),
    "liger": ("Liger", "#b65cc4"),
    "quack": ("quack", "#c9a227"),
}
WIDTH, HEIGHT, LEFT, TOP, RIGHT, LABELS = 460, 250, 44, 28, 24, 34  # of a panel, and the room around its axes
Row = dict[str, Any]


@cache
def _results() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / RESULTS / "results.json").read_text(encoding="utf-8"))
    return found


def there(rows: Sequence[Row]) -> list[str]:
    """The providers that were measured, in order."""
    return [each for each in PROVIDERS if any(row["provider"] == each for row in rows)]


def bandwidth(name: str) -> str:
    """A section of Markdown about one norm; nothing where it was not measured."""
    rows = [row for row in _results()["rows"] if row["op"] == name and "rho" in row]
    wide = [row for row in rows if row["layout"] == "rows" and len({r["shape"][-1] for r in rows}) > 2]
    others = [row for row in rows if row["layout"] in ("nchw", "nhwc")]
    if not wide and not others:
        return ""
    dtypes = ", ".join(dict.fromkeys(row["dtype"] for row in rows))
    parts = [
        "## Bandwidth",
        "Bandwidth as a fraction of that of the fastest copy of the same bytes, "
        f"on one {_results()['device']}, in {dtypes}. [How it was measured](../{RESULTS}/README.md).",
    ]
    if wide:
        parts.append(_pictures(wide, name))
    if others:
        parts.append(_table(others))
    return "\n\n".join(parts)


def _pictures(rows: Sequence[Row], name: str) -> str:
    """Rows of many widths: a panel for each direction."""
    of_ways = {way: [row for row in rows if row["direction"] == way] for way in ("forward", "backward")}
    measured = [(way, found) for way, found in of_ways.items() if found]
    panels = "".join(_panel(way, found, n) for n, (way, found) in enumerate(measured))
    keys, x = "", LEFT
    for title, colour in map(PROVIDERS.__getitem__, there(rows)):
        keys += (
            f'<rect x="{x}" y="{HEIGHT + LABELS + 4}" width="14" height="4" rx="2" fill="{colour}"/>'
            f'<text x="{x + 20}" y="{HEIGHT + LABELS + 11}" fill="currentColor">{title}</text>'
        )
        x += 34 + 7 * len(title)
    size = f'viewBox="0 0 {max(len(measured) * WIDTH, x)} {HEIGHT + LABELS + 22}"'
    style = "max-width:100%;height:auto;font:12px system-ui,sans-serif"
    title = f"<title>Bandwidth of {escape(name)} by width of a row</title>"
    head = f'<svg role="img" {size} style="{style}" xmlns="http://www.w3.org/2000/svg">'
    return f"<div>{head}{title}{panels}{keys}</svg></div>"


def _panel(way: str, rows: Sequence[Row], number: int) -> str:
    """A direction: the fraction against the width of a row, a line for each provider."""
    widths = sorted({row["shape"][-1] for row in rows})
    x0, x1, y0, y1 = number * WIDTH + LEFT, (number + 1) * WIDTH - RIGHT, HEIGHT - 14, TOP

    def place(width: int, rho: float) -> tuple[float, float]:
        """Widths stand next to each other: 5119 and 5120 would be one place on a scale."""
        return x0 + (x1 - x0) * widths.index(width) / (len(widths) - 1), y0 - (y0 - y1) * rho / 1.05

    out = [_label((x0 + x1) / 2, 16, way, "middle")]
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        _, y = place(widths[0], tick)
        shade = 0.5 if tick == 1 else 0.15
        ends = f'x1="{x0}" x2="{x1}" y1="{y:.1f}" y2="{y:.1f}"'
        out.append(f'<line {ends} stroke="currentColor" stroke-opacity="{shade}"/>')
        out.append(_label(x0 - 6, y + 4, f"{tick:g}", "end"))
    for width in widths:
        x, _ = place(width, 0)
        out.append(
            _label(x + 4, y0 + 12, short(width), "end", f' transform="rotate(-50 {x + 4:.1f} {y0 + 12})"')
        )
    for provider in reversed(there(rows)):
        colour = PROVIDERS[provider][1]
        points = sorted((r["shape"][-1], r["rho"]) for r in rows if r["provider"] == provider)
        path = " ".join("{:.1f},{:.1f}".format(*place(width, min(rho, 1.05))) for width, rho in points)
        thick = 3 if provider == MINE else 1.5
        look = f'fill="none" stroke="{colour}" stroke-width="{thick}" stroke-linejoin="round"'
        out.append(f'<polyline points="{path}" {look}/>')
    return "".join(out)


def short(width: int) -> str:
    """A width in thousands of 1024, where it is some."""
    return f"{width // 1024}k" if width % 1024 == 0 else str(width)


def _label(x: float, y: float, text: str, anchor: str, more: str = "") -> str:
    look = f'text-anchor="{anchor}" fill="currentColor" fill-opacity=".8"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {look}{more}>{text}</text>'


def _table(rows: Sequence[Row]) -> str:
    """Images: each shape, normgen next to its peers."""
    providers = there(rows)
    lines = [
        f"| direction | layout | shape | {' | '.join(PROVIDERS[each][0] for each in providers)} |",
        "|---" * (3 + len(providers)) + "|",
    ]
    figures = {(r["direction"], r["layout"], tuple(r["shape"]), r["provider"]): r["rho"] for r in rows}
    for direction, layout, shape in dict.fromkeys(key[:3] for key in figures):
        cells = [figures.get((direction, layout, shape, each)) for each in providers]
        shown = " | ".join("" if cell is None else f"{cell:.2f}" for cell in cells)
        lines.append(f"| {direction} | {layout} | {' × '.join(map(str, shape))} | {shown} |")
    return "\n".join(lines)
