"""Rows of results as tables in Markdown: a line for each problem, geometric means, rho by width."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from results import Row, line_of

from normgen.measure.arithmetic import geometric_mean

MINE = "normgen"
PROVIDERS = (MINE, "torch", "compile", "autotune", "liger", "quack")  # in the order of the tables
TITLES = {"compile": "torch.compile", "autotune": "max-autotune"}
EVEN = 0.02  # two times that differ by less are even
COARSE = 0.5  # a relative error beyond which a result is no result


def lines(rows: Iterable[Row]) -> dict[tuple[Any, ...], dict[str, Row]]:
    """The rows by what they are about, then by provider."""
    found: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in rows:
        found.setdefault(line_of(row), {})[row["provider"]] = row
    return found


def best_peer(by: dict[str, Row]) -> Row | None:
    """The fastest row of another provider, at its own accuracy: tables mark what is further from float64 than
    rounding explains."""
    peers = [row for p, row in by.items() if not p.startswith(MINE) and "us" in row and row["error"] < COARSE]
    return min(peers, key=lambda row: row["us"], default=None)


def lines_table(rows: Sequence[Row]) -> str:
    """One line for each op, direction, shape, type and layout; all providers in it; then the faults."""
    shown = providers_of(rows)
    head = ["op", "direction", "shape", "dtype", "layout", "MB", "copy us"]
    head += [TITLES.get(p, p) for p in shown] + ["host us", "against the best peer"]
    body = []
    for (op, direction, shape, dtype, layout), by in lines(rows).items():
        some = next(iter(by.values()))
        copy = next((row["copy_us"] for row in by.values() if "copy_us" in row), None)
        cells = [op, direction, shape_text(shape), dtype, layout, f"{some['bytes'] / 1e6:.1f}", _number(copy)]
        cells += [_cell(by.get(p)) for p in shown]
        body.append([*cells, _number(by.get(MINE, {}).get("host_us")), _gain(by)])
    return "\n".join([table(head, body), *_faults(rows)]) + "\n"


def summary_table(rows: Sequence[Row]) -> str:
    """Geometric means of rho by op, direction and type, in brackets of how many lines where not of all.

    And at how many lines normgen is ahead of the best peer, even with it, and behind.
    """
    shown = providers_of(rows)
    head = [
        "op",
        "direction",
        "dtype",
        "layout",
        "lines",
        "best peer",
        *(TITLES.get(p, p) for p in shown),
        "ahead",
        "even",
        "behind",
    ]
    groups: dict[tuple[str, ...], list[dict[str, Row]]] = {}
    for (op, direction, _, dtype, layout), by in lines(rows).items():
        groups.setdefault((op, direction, dtype, layout), []).append(by)
    body = []
    for key, members in groups.items():
        best = [row for by in members if (row := best_peer(by)) is not None]
        cells = [_mean(best, len(members))]
        cells += [_mean([by[p] for by in members if p in by], len(members)) for p in shown]
        body.append([*key, str(len(members)), *cells, *map(str, verdicts(members))])
    return table(head, body) + "\n"


def verdicts(members: Iterable[dict[str, Row]]) -> tuple[int, int, int]:
    """At how many lines normgen is ahead of the best peer, even with it, and behind."""
    pairs = [(by[MINE], row) for by in members if "us" in by.get(MINE, {}) and (row := best_peer(by))]
    gains = [peer["us"] / mine["us"] for mine, peer in pairs]
    ahead, behind = sum(g > 1 + EVEN for g in gains), sum(g < 1 / (1 + EVEN) for g in gains)
    return ahead, len(gains) - ahead - behind, behind


def _mean(rows: Sequence[Row], of: int) -> str:
    shares = [row["rho"] for row in rows if "rho" in row]
    if not shares:
        return ""
    mark = "*" if any("wrong" in row for row in rows) else ""
    return f"{geometric_mean(shares):.3f}{mark}" + (f" ({len(shares)})" if len(shares) < of else "")


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


def providers_of(rows: Sequence[Row]) -> list[str]:
    """Those that have rows: the usual ones in order, then ways of normgen."""
    there = {row["provider"] for row in rows}
    return [p for p in PROVIDERS if p in there] + sorted(there - set(PROVIDERS))


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    if "us" not in row:
        return "-"
    mark = "*" if "wrong" in row else ""
    figures = [f"{row['rho']:.3f}"] if "rho" in row else []
    figures += [f"{100 * row['spread']:.1f} %"] if "spread" in row else []
    return f"{row['us']:.1f}{mark}" + (f" ({', '.join(figures)})" if figures else "")


def _share(row: Row | None) -> str:
    return f"{row['rho']:.2f}" if row is not None and "rho" in row else "-"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def shape_text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def _gain(by: dict[str, Row]) -> str:
    peer, mine = best_peer(by), by.get(MINE, {}).get("us")
    if peer is None or not mine:
        return ""
    return f"{peer['us'] / mine:.2f}x{'*' if 'wrong' in peer else ''}"


def _faults(rows: Iterable[Row]) -> list[str]:
    """Each fault once, with how often and where it first was."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if told := row.get("fault") or row.get("wrong"):
            where = (
                f"{row['op']} {row['direction']} {shape_text(row['shape'])} {row['dtype']} {row['layout']}"
            )
            found.setdefault(f"{row['provider']}: {told}", []).append(where)
    listed = [f"- {told} ({len(at)}: {at[0]}{', ...' if at[1:] else ''})" for told, at in found.items()]
    return ["", *listed] if listed else []
