"""Tables and plots of results, merged into the pages that tell them.

    python bench/report.py bench/results/h200 --page docs/performance.md --pictures docs/images
    python bench/report.py bench/results/h200 --verify bench/results/h200/verify.json

Reads results.json of the folder; writes the folder's README.md, plots if matplotlib is installed, with --page
the performance section of that page, and with --pictures the pictures of README and page. A section that this
program wrote before is replaced, and everything else on a page stays as it is.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import results
from plots import draw, pictures
from results import Row
from tables import (
    MINE,
    lines,
    lines_table,
    losses,
    means_table,
    providers_of,
    summary_table,
    table,
    verdicts,
    width_table,
)

INTRODUCTION = """## Performance

`make bench` of commit {commit} on one {device}, with {versions}.
A cell holds microseconds on the device and, in brackets, rho and the spread.
rho is the fraction of copy bandwidth: the time of the fastest copy of the fewest bytes that
must move (where two bytes are read for one that is written: of a triad), in the same run, over the time of
all that the call launches. The spread is the distance between the slowest and the fastest of three rounds; in
each round every provider has its turn. Every provider is timed by the same code, by CUDA graphs on rotating
buffers, so that caches are cold but for decoding; forwards run without gradients. max-autotune is
torch.compile in its mode max-autotune-no-cudagraphs. host us is what queueing a call of normgen takes. The
last column is the fastest peer's time over normgen's. A peer counts at its own accuracy: * marks what is
further from float64 than rounding explains. Two times are even where they differ by less than 2 %.
"""
PAGE_INTRODUCTION = """normgen of commit {commit} on one {device}, in bf16, compared with {peers}.
Of {lines} comparisons with the fastest of these, normgen is faster in {ahead}, within 2 % in {even}
and slower in {behind}. All were timed in turn by the same code.
[The page of this run](../bench/results/{folder}/README.md) has every figure.
"""
PICTURES = {
    "bandwidth": "Share of copy bandwidth by row length, forward and backward of RMSNorm and LayerNorm",
    "means": "Mean share of copy bandwidth of every norm, normgen and the best peer",
}
PAGE_TABLES = """## By row length

A cell is the share of copy bandwidth of normgen and of the fastest peer. The better one is bold, and ▼ marks
where normgen is slower; a difference below 2 % counts as even.

Forward:

{forward}
Backward:

{backward}
normgen is slower in {behind} comparisons: {losses}.

## All norms

Geometric means of the same shares over all shapes, and the number of shapes.

Forward:

{forward_means}
Backward:

{backward_means}"""
PEER_NAMES = {
    "torch": "PyTorch",
    "compile": "torch.compile",
    "autotune": "torch.compile with max-autotune",
    "liger": "Liger",
}
GROUPS = {
    "Rows": ("rows",),
    "Images": ("nchw", "nhwc"),
    "Rows of attention heads": ("heads",),
    "Decoding: 20 calls in a row, caches warm": ("decode",),
    "Into given arrays: the host's share": ("given",),
}


def performance(header: Row, rows: Sequence[Row], plots: Sequence[str] = ()) -> str:
    """The section of the folder's page."""
    versions = ", ".join(f"{name} {version}" for name, version in header["versions"].items())
    parts = [INTRODUCTION.format(commit=header["commit"], device=header["device"], versions=versions)]
    parts += [f"{provider} was not there: {reason}\n" for provider, reason in header["absent"].items()]
    parts += ["### Geometric means of rho\n", summary_table(rows)]
    parts += [f"![rho]({plot})\n" for plot in plots]
    for title, layouts in GROUPS.items():
        if mine := [row for row in rows if row["layout"] in layouts]:
            parts += [f"### {title}\n", lines_table(mine)]
    return "\n".join(parts)


def page_section(header: Row, rows: Sequence[Row], folder: str) -> str:
    """The section of the page that shows the figures of a folder."""
    mine = [row for row in rows if row["dtype"] == "bf16"]
    ahead, even, behind = verdicts(lines(mine).values())
    peers = [PEER_NAMES.get(p, p) for p in providers_of(mine) if not p.startswith(MINE)]
    named = " and ".join(filter(None, [", ".join(peers[:-1]), *peers[-1:]]))
    text = PAGE_INTRODUCTION.format(
        commit=header["commit"], device=header["device"], folder=folder, peers=named,
        lines=ahead + even + behind, ahead=ahead, even=even, behind=behind,
    )  # fmt: skip
    tables = PAGE_TABLES.format(
        forward=width_table(mine, "forward"), backward=width_table(mine, "backward"),
        losses=losses(mine), behind=behind,
        forward_means=means_table(mine, "forward"), backward_means=means_table(mine, "backward"),
    )  # fmt: skip
    shown = [picture_text(name, text) for name, text in PICTURES.items()]
    return "\n\n".join([_filled(text), *shown, "\n\n".join(map(_filled, tables.split("\n\n")))])


def picture_text(name: str, text: str) -> str:
    """The HTML of a picture for light and for dark pages."""
    return (
        f'<picture>\n  <source media="(prefers-color-scheme: dark)" srcset="images/{name}-dark.svg">\n'
        f'  <img src="images/{name}-light.svg"\n       alt="{text}">\n</picture>'
    )


def _filled(text: str) -> str:
    """A paragraph in lines of the width of the pages; tables stay as they are."""
    if text.startswith("|"):
        return text
    return textwrap.fill(text, 110, break_on_hyphens=False)


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


def verify_text(rows: list[Row]) -> str:
    """The checks in a few lines: how many runs passed, and the worst error of each spec."""
    passed = sum(row["exit"] == 0 for row in rows)
    told = [f"`bench/verify.py`: {passed} of {len(rows)} runs pass. Errors are shares of their bounds.", ""]
    body = []
    for spec in dict.fromkeys(row["spec"] for row in rows):
        mine = [row for row in rows if row["spec"] == spec]
        parts = [row[d] for row in mine for d in ("forward", "backward") if d in row]
        worst = max((p["worst"] for p in parts if p["worst"]), default=0.0)
        failed = sum(row["exit"] != 0 for row in mine)
        cases = sum(p["cases"] for p in parts)
        body.append([spec, str(len(mine)), str(failed), str(cases), f"{worst:.3f}"])
    return "\n".join([*told, table(["spec", "runs", "failed", "cases", "worst"], body)])


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("bench/results/h200"))
    parser.add_argument("--page", type=Path, help="a page that shows the figures of the folder")
    parser.add_argument("--pictures", type=Path, help="the folder of the pictures")
    parser.add_argument("--verify", type=Path, help="what bench/verify.py wrote")
    given = parser.parse_args()
    own = given.folder / "README.md"
    page = own.read_text() if own.exists() else ""
    header, rows = results.read(given.folder)
    if rows:
        page = merge_section(page, "performance", performance(header, rows, draw(given.folder, rows)))
        if given.page:
            section = page_section(header, rows, given.folder.name)
            given.page.write_text(merge_section(given.page.read_text(), "performance", section))
        if given.pictures:
            pictures(given.pictures, header, rows)
    if given.verify:
        text = f"## Checks of all families\n\n{verify_text(json.loads(given.verify.read_text()))}"
        page = merge_section(page, "checks", text)
    own.write_text(page)


if __name__ == "__main__":
    main()
