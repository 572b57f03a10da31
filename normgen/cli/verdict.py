"""The result of a check as text: the worst case of each kind, failures, and what was skipped."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from normgen.cli.table import columns_of
from normgen.cli.wrap import wrapped
from normgen.counting import counted

if TYPE_CHECKING:
    from normgen.verify.events import Row

_STYLES = {"FAILED": "red", "passed, with gaps": "yellow", "no kernels": "yellow", "passed": "green"}
_HEADINGS = ("STAGE", "DIRECTION", "WHERE", "DTYPES", "CASES", "WORST", "VERDICT")

# Marks behind the lengths of a case: a pattern that finds the mark, an example, and the meaning.
_MARKS = (
    (r"(?<!out )\+\d", "+3", "operands start 3 elements past an aligned address"),
    (r"out \+\d", "out +1", "result arrays start 1 element past an aligned address"),
    (r"padded", "padded", "the stride of a row is its length plus one element"),
    (r"rounded", "rounded", "the stride of a row is a multiple of 16 elements"),
    (
        r"odd rows",
        "odd rows",
        "the stride of a row is odd, that of the next dimension a multiple of 16 elements",
    ),
    (r"odd outer", "odd outer", "only the outermost dimension has an odd stride"),
    (r"without \w", "without p", "the call omits p"),
    (r"wrt \w", "wrt x", "the call requests only the gradient of x"),
    (r"in place", "in place", "a result overwrites an operand"),
    (r"accumulate", "accumulate", "gradients of params are added to existing arrays"),
    (r"save=False", "save=False", "the forward does not write what it saves"),
)


def check_text(rows: Sequence[Row], verbose: bool = False, color: bool = False) -> str:
    """The table, grouped unless `verbose`; then remarks; then the verdict."""
    parts = [_tables(rows, verbose, color), _worst(rows, verbose), _remarks(rows, verbose)]
    return "\n\n".join(["\n".join(part) for part in parts if part] + [wrapped(_verdict(rows, color))]) + "\n"


def _tables(rows: Sequence[Row], verbose: bool, color: bool) -> list[str]:
    """One table. If attrs take several values, a line names the values above their rows."""
    groups = _groups([row for row in rows if verbose or _is_news(row)], verbose)
    table = columns_of(_HEADINGS, [_cells(group) for group in groups], right=("CASES", "WORST"))
    lines = [click.style(table[0], bold=True) if color else table[0]]
    attrs = ""
    for group, line in zip(groups, table[1:], strict=True):
        if group[0].attrs not in ("", attrs):
            attrs = group[0].attrs
            lines.append(wrapped(f"with {attrs}:"))
        lines.append(line)
        if verbose and (where := _where(group[0])):
            lines.append(wrapped(f"    {where}"))
    return lines


def _groups(rows: Sequence[Row], verbose: bool) -> list[list[Row]]:
    groups: dict[object, list[Row]] = {}
    for number, row in enumerate(rows):
        alike = (row.stage, row.attrs, row.direction, row.executor, row.status)
        groups.setdefault(number if verbose else alike, []).append(row)
    return list(groups.values())


def _cells(group: Sequence[Row]) -> tuple[str, ...]:
    worst = _worst_of(group)
    dtypes = {row.dtypes for row in group}
    measured = bool(worst.dtypes)
    mixed = f"{len(dtypes)} mixtures" if len(dtypes) > 1 else "a mixture"
    return (
        worst.stage,
        worst.direction,
        worst.executor,
        worst.dtypes if len(dtypes) == 1 and "," not in worst.dtypes else mixed,
        str(len(group)) if measured else "",
        f"{worst.worst:.3f}" if measured else "",
        worst.status,
    )


def _worst_of(group: Sequence[Row]) -> Row:
    return max(group, key=lambda row: row.worst)


def _where(row: Row) -> str:
    return "; ".join(filter(None, (" ".join(filter(None, (row.result, row.shape))), row.dtypes)))


def _worst(rows: Sequence[Row], verbose: bool) -> list[str]:
    """The cases with the largest errors, and the meaning of the marks behind lengths."""
    measured = [row for row in rows if row.dtypes]
    if not measured:
        return []
    lines = ["WORST: the largest error as a fraction of its derived bound; up to 1 passes"]
    shown = rows
    if not verbose:
        kernels = _groups([row for row in measured if row.stage == "kernels" and row.ok], False)
        shown = [_worst_of(group) for group in kernels]
        for row in shown:
            about = ", ".join(filter(None, (row.attrs, row.direction, row.executor)))
            lines.append(f"  {about}: {row.worst:.3f} for {_where(row)}")
    shapes = [row.shape for row in (*shown, *(row for row in rows if not row.ok))]
    lines += [f"  {line}" for line in marks_in(shapes)]
    return [wrapped(line) for line in lines]


def marks_in(shapes: Sequence[str]) -> list[str]:
    """A line for each mark that occurs in these cases."""
    marks = [
        (shown, meaning)
        for pattern, shown, meaning in _MARKS
        if any(re.search(pattern, shape) for shape in shapes)
    ]
    widest = max((len(shown) for shown, _ in marks), default=0)
    return [f"{shown.ljust(widest)}  {meaning}" for shown, meaning in marks]


def _remarks(rows: Sequence[Row], verbose: bool) -> list[str]:
    """Failures, then skipped cases, notes and distributions; each text once."""
    from normgen.verify.report import case_text

    failed = [f"failed: {case_text(row)}: {row.note}" for row in rows if row.status == "failed"]
    skipped = [
        f"skipped: {case_text(row)}: {row.note}"
        for row in rows
        if row.status == "skipped" and (verbose or _is_news(row))
    ]
    notes = [f"note: {row.stage}: {row.note}" for row in rows if row.ok and row.note]
    drawn = [f"drawn: {row.drawn}" for row in rows if row.drawn]
    return [wrapped(text) for text in dict.fromkeys([*failed, *skipped, *notes, *drawn])]


def _is_news(row: Row) -> bool:
    """Whether a row says more than that there is no GPU, which the last line says too."""
    from normgen.verify.events import NO_GPU

    return row.missing != NO_GPU


def _verdict(rows: Sequence[Row], color: bool) -> str:
    count = {status: sum(row.status == status for row in rows) for status in ("ok", "failed")}
    word = _word(rows)
    head = click.style(word, fg=_STYLES[word], bold=True) if color else word
    if word == "no kernels":
        return f"{head}: {counted(count['ok'], 'check')} passed, but this norm has no kernels yet"
    places = {row.executor.partition(",")[0] for row in rows if row.stage == "kernels" and not row.missing}
    names = [name for place, name in (("host", "the host"), ("cuda", "the GPU")) if place in places]
    where = f"on {' and on '.join(names)}" if names else "of the formulas"
    ran = counted(count["ok"] + count["failed"], "check")
    said = f"{count['failed']} of {ran} {where}" if count["failed"] else f"{ran} {where}"
    missing = dict.fromkeys(row.missing for row in rows if row.missing)
    aside = f" ({', '.join(missing)})" if missing else ""
    left = sum(row.status == "skipped" and not row.missing for row in rows)
    return f"{head}: {said}{aside}" + (f"; {left} skipped, see above" if left else "")


def _word(rows: Sequence[Row]) -> str:
    from normgen.verify.events import NO_KERNELS

    if any(row.status == "failed" for row in rows):
        return "FAILED"
    if any(row.missing == NO_KERNELS for row in rows):
        return "no kernels"
    if any(row.status == "skipped" and _is_news(row) for row in rows):
        return "passed, with gaps"
    return "passed"
