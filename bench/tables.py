"""Rows of results as tables in Markdown: a line for each problem, geometric means, rho by width."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import geometric_mean
from typing import Any

from results import Row, line_of

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
        body.append([*cells, _number(by.get(MINE, {}).get("host_us")), _gain_text(by)])
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
    body = []
    for key, members in _groups(rows).items():
        best = [row for by in members if (row := best_peer(by)) is not None]
        cells = [_mean(best, len(members))]
        cells += [_mean([by[p] for by in members if p in by], len(members)) for p in shown]
        body.append([*key, str(len(members)), *cells, *map(str, verdicts(members))])
    return table(head, body) + "\n"


def _groups(rows: Iterable[Row]) -> dict[tuple[str, ...], list[dict[str, Row]]]:
    """The lines by op, direction, type and layout."""
    groups: dict[tuple[str, ...], list[dict[str, Row]]] = {}
    for (op, direction, _, dtype, layout), by in lines(rows).items():
        groups.setdefault((op, direction, dtype, layout), []).append(by)
    return groups


def means(rows: Iterable[Row]) -> dict[tuple[str, str, str], tuple[float, float]]:
    """By op, direction and layout: the geometric means of rho of the best peer and of normgen."""
    found = {}
    for (op, direction, _, layout), members in _groups(rows).items():
        pairs = [(row["rho"], by[MINE]["rho"]) for by in members if (row := best_peer(by)) is not None]
        found[op, direction, layout] = tuple(map(geometric_mean, zip(*pairs, strict=True)))
    return found


def verdicts(members: Iterable[dict[str, Row]]) -> tuple[int, int, int]:
    """At how many lines normgen is ahead of the best peer, even with it, and behind."""
    found = [_verdict(gain) for by in members if (gain := _gain(by)) is not None]
    return found.count(1), found.count(0), found.count(-1)


def _verdict(gain: float) -> int:
    """1 where normgen is ahead by more than `EVEN`, -1 where it is behind by more, 0 in between."""
    return (gain > 1 + EVEN) - (gain < 1 / (1 + EVEN))


def _gain(by: dict[str, Row]) -> float | None:
    """The best peer's time over normgen's."""
    peer, mine = best_peer(by), by.get(MINE, {}).get("us")
    return peer["us"] / mine if peer is not None and mine else None


def _mean(rows: Sequence[Row], of: int) -> str:
    shares = [row["rho"] for row in rows if "rho" in row]
    if not shares:
        return ""
    mark = "*" if any("wrong" in row for row in rows) else ""
    return f"{geometric_mean(shares):.3f}{mark}" + (f" ({len(shares)})" if len(shares) < of else "")


def width_table(rows: Sequence[Row], direction: str) -> str:
    """rho by D and op: normgen's and the best peer's, the better one in bold, and where normgen is behind an
    arrow. Ops of few widths are left out."""
    found = lines(row for row in rows if (row["layout"], row["direction"]) == ("rows", direction))
    shares = {(line[0], line[2][-1]): _duel(by) for line, by in found.items()}
    widths = sorted({width for _, width in shares})
    ops = [
        op
        for op in dict.fromkeys(op for op, _ in shares)
        if 2 * sum((op, width) in shares for width in widths) > len(widths)
    ]
    body = [[str(width), *(shares.get((op, width), "") for op in ops)] for width in widths]
    return table(["D", *ops], body) + "\n"


def means_table(rows: Sequence[Row], direction: str) -> str:
    """Geometric means of rho by op and layout, marked in the same way, and the verdicts on their lines."""
    mine = [row for row in rows if row["direction"] == direction]
    shares, body = means(mine), []
    for (op, _, _, layout), members in _groups(mine).items():
        theirs, own = shares[op, direction, layout]
        body.append([op, layout, _marked(own, theirs), " / ".join(map(str, verdicts(members)))])
    return table(["norm", "layout", "normgen / best peer", "ahead / even / behind"], body) + "\n"


def losses(rows: Iterable[Row]) -> str:
    """The row lengths, or shapes of images, at which normgen is behind."""
    found: dict[str, list[str]] = {}
    for (op, direction, shape, _, layout), by in lines(rows).items():
        if (gain := _gain(by)) is not None and _verdict(gain) < 0:
            size = shape_text(shape) if layout in ("nchw", "nhwc") else str(shape[-1])
            found.setdefault(f"`{op}` {direction}", []).append(size)
    return "; ".join(f"{way} at {', '.join(sizes)}" for way, sizes in found.items())


def _duel(by: dict[str, Row]) -> str:
    mine, peer = by.get(MINE), best_peer(by)
    if mine is None or peer is None or "rho" not in mine:
        return f"{_share(mine)} / {_share(peer)}"
    return _marked(mine["rho"], peer["rho"])


def _marked(own: float, theirs: float) -> str:
    """The two shares, the larger one in bold, unless they are even."""
    verdict = _verdict(own / theirs)
    first, second = (
        f"**{share:.2f}**" if verdict == sign else f"{share:.2f}" for share, sign in ((own, 1), (theirs, -1))
    )
    return f"{first} / {second}{' ▼' if verdict < 0 else ''}"


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


def _gain_text(by: dict[str, Row]) -> str:
    peer, gain = best_peer(by), _gain(by)
    if peer is None or gain is None:
        return ""
    return f"{gain:.2f}x{'*' if 'wrong' in peer else ''}"


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
