"""The flow of data of a call as an SVG picture: time runs downwards, bytes from left to right.

Its colors suit light and dark pages, and its text has the color of the text around it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from math import sqrt

from normgen.cli.html.flow import Access, Flow, Step
from normgen.counting import bytes_text

WIDTH = 1000
PILL, KERNEL = 210, 290  # widths of the boxes of arrays and of launches
LINE = 46  # from one array to the next
GAP = 26  # between launches
LEFT, MIDDLE, RIGHT = 10, (WIDTH - KERNEL) // 2, WIDTH - PILL - 10
THICKEST = 14.0
COLOURS = {
    "input": "#3b82f6",
    "cotangent": "#3b82f6",
    "param": "#8b5cf6",
    "state": "#ec4899",
    "save": "#d97706",
    "saved": "#d97706",
    "output": "#0d9488",
    "gradient": "#0d9488",
    "scratch": "#94a3b8",
}


@dataclass
class _Picture:
    flow: Flow
    most: int
    edges: list[str] = field(default_factory=list)
    boxes: list[str] = field(default_factory=list)
    # Of an array: how far down it is, and whether on the right.
    at: dict[str, tuple[float, bool]] = field(default_factory=dict)

    def colour(self, name: str) -> str:
        return COLOURS[self.flow.arrays[name].kind]

    def edge(self, start: tuple[float, float], end: tuple[float, float], access: Access) -> None:
        """A band from one box to another; its thickness is the number of bytes."""
        (x0, y0), (x1, y1) = start, end
        bend = abs(x1 - x0) / 2 * (1 if x1 > x0 else -1)
        thick = 1.5 + (THICKEST - 1.5) * sqrt(access.bytes / self.most)
        path = f"M{x0:.0f} {y0:.0f} C{x0 + bend:.0f} {y0:.0f} {x1 - bend:.0f} {y1:.0f} {x1:.0f} {y1:.0f}"
        self.edges.append(
            f'<path d="{path}" fill="none" stroke="{self.colour(access.array)}" stroke-opacity=".45" '
            f'stroke-width="{thick:.1f}"><title>{escape(access.array)}: {bytes_text(access.bytes)}</title>'
            "</path>"
        )


def drawing(flow: Flow, title: str) -> str:
    """The picture. `title`: for those who cannot see it."""
    accesses = [each for step in flow.steps for each in (*step.reads, *step.writes)]
    picture = _Picture(flow, max((each.bytes for each in accesses), default=1) or 1)
    down = 34.0
    for number, step in enumerate(flow.steps):
        down = _step(picture, number, step, down) + GAP
    height = down - GAP + 12
    heads = "".join(
        f'<text x="{x}" y="18" text-anchor="middle" fill="currentColor" fill-opacity=".6">{text}</text>'
        for x, text in (
            (LEFT + PILL / 2, "reads"),
            (WIDTH / 2, "kernels, in order"),
            (RIGHT + PILL / 2, "writes"),
        )
    )
    return (
        f'<svg class="normgen-flow" role="img" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
        f'style="max-width:100%;height:auto;font:13px system-ui,sans-serif" xmlns="http://www.w3.org/2000/svg">'
        f"<title>{escape(title)}</title>{heads}{''.join(picture.edges)}{''.join(picture.boxes)}</svg>"
    )


def _step(picture: _Picture, number: int, step: Step, top: float) -> float:
    """A launch with the arrays that appear with it; returns where it ends."""
    fresh_reads = [each for each in step.reads if each.array not in picture.at]
    known = {*picture.at, *(each.array for each in fresh_reads)}  # what is updated stands where it is read
    fresh_writes = [each for each in step.writes if each.array not in known]
    height = max(len(fresh_reads), len(fresh_writes), 2) * LINE - 8
    centre = top + height / 2
    picture.boxes.append(_kernel(number, step, top, height))
    for right, fresh in ((False, fresh_reads), (True, fresh_writes)):
        first = centre - len(fresh) * LINE / 2
        for place, each in enumerate(fresh):
            picture.at[each.array] = (first + place * LINE + LINE / 2, right)
            picture.boxes.append(_pill(picture, each.array))
    for each in step.reads:
        y, right = picture.at[each.array]
        start = (RIGHT + 6, y + 9) if right else (LEFT + PILL, y)
        picture.edge(start, (MIDDLE + KERNEL if right else MIDDLE, _port(y, top, height)), each)
    for each in step.writes:
        y, right = picture.at[each.array]
        end = RIGHT if right else LEFT + PILL
        picture.edge((MIDDLE + KERNEL if right else MIDDLE, _port(y, top, height)), (end, y), each)
    return top + height


def _port(y: float, top: float, height: float) -> float:
    """Where the band of an array meets the side of a launch."""
    return min(max(y, top + 10), top + height - 10)


def _kernel(number: int, step: Step, top: float, height: float) -> str:
    middle = WIDTH / 2
    lines = [
        (f"{number + 1}. {step.entry}", 600, 13, 1.0),
        (f"grid {_extent(step.grid)}, block {_extent(step.block)}", 400, 12, 0.65),
        (f"reads {bytes_text(_total(step.reads))}, writes {bytes_text(_total(step.writes))}", 400, 12, 0.65),
    ]
    first = top + height / 2 - 18 + 5
    return (
        f'<rect x="{MIDDLE}" y="{top:.0f}" width="{KERNEL}" height="{height:.0f}" rx="8" fill="currentColor" '
        f'fill-opacity=".06" stroke="currentColor" stroke-opacity=".35"/>'
        + "".join(
            f'<text x="{middle:.0f}" y="{first + 18 * place:.0f}" text-anchor="middle" fill="currentColor" '
            f'fill-opacity="{shade}" font-weight="{weight}" font-size="{size}" {_fitted(text, size, KERNEL)}>'
            f"{escape(text)}</text>"
            for place, (text, weight, size, shade) in enumerate(lines)
        )
    )


def _fitted(text: str, size: int, box: int) -> str:
    """Squeeze a text that is wider than its box."""
    room = box - 16
    return f'textLength="{room}" lengthAdjust="spacingAndGlyphs"' if len(text) * size * 0.58 > room else ""


def _pill(picture: _Picture, name: str) -> str:
    array = picture.flow.arrays[name]
    y, right = picture.at[name]
    x, colour = RIGHT if right else LEFT, picture.colour(name)
    dashed = ' stroke-dasharray="5 3"' if array.kind == "scratch" else ""
    shape = " × ".join(map(str, array.shape)) or "1"
    short, what = name.rpartition(".")[2], f" {array.kind}, {bytes_text(array.bytes)}"
    return (
        f'<g data-name="{escape(short)}"><rect x="{x}" y="{y - 19:.0f}" width="{PILL}" height="38" rx="19" '
        f'fill="{colour}" fill-opacity=".14" stroke="{colour}"{dashed}/>'
        f'<text x="{x + PILL / 2}" y="{y - 3:.0f}" text-anchor="middle" fill="currentColor" '
        f'{_fitted(short + what, 13, PILL)}><tspan font-weight="600">{escape(short)}</tspan>'
        f'<tspan fill-opacity=".65">{what}</tspan></text>'
        f'<text x="{x + PILL / 2}" y="{y + 12:.0f}" text-anchor="middle" fill="currentColor" '
        f'fill-opacity=".65" font-size="11">{shape} {array.dtype}</text></g>'
    )


def _extent(extent: tuple[int, int, int]) -> str:
    used = list(extent)
    while len(used) > 1 and used[-1] == 1:
        used.pop()
    return " × ".join(map(str, used))


def _total(accesses: tuple[Access, ...]) -> int:
    return sum(each.bytes for each in accesses)


def legend(flows: list[Flow]) -> Iterator[tuple[str, str]]:
    """The kinds of arrays that there are, with their colors."""
    kinds = dict.fromkeys(array.kind for flow in flows for array in flow.arrays.values())
    return ((kind, COLOURS[kind]) for kind in kinds)
