"""What digests are of: the texts of a norm's kernels, the plans of a sample of calls, and all schedules that
are offered for one call.

    python -m tests.digests rmsnorm         # what differs since the commit that wrote the digests
    python -m tests.digests --since main    # in every norm, since another commit
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import astuple, fields
from pathlib import Path
from tempfile import TemporaryDirectory

from normgen import bundled
from normgen.launching.launch import Launch, Printed
from normgen.package.operands import FormRecord
from normgen.package.records import Package, PassRecord
from normgen.runtime.planning.choose import Candidate, alternatives, candidates
from tests.codegen.norms import packaged, source_of
from tests.covering import AMPERE, CALLS, HOPPER, Call

ROOT = Path(__file__).parent.parent
DIGESTS = Path("tests", "golden", "digests.txt")
# Calls, one for each pass, of which every schedule that is offered is looked at, and the launches of one in
# `LOWERED`.
OFFERED = (
    (HOPPER, Call("bf16", 4096, 64)),
    (HOPPER, Call("f32", 333, 2000)),
    (AMPERE, Call("bf16", 20001, 300)),
)
LOWERED = 8
SAID = tuple(field.name for field in fields(Launch) if field.name != "text")


def digest(text: str) -> str:
    """A text in eight digits."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def parts_of(name: str) -> dict[str, dict[str, str]]:
    """For each direction of a norm what is looked at: each form, the plans, what is offered."""
    made = packaged(name)
    passes = {"forward": made.forward, "backward": made.backward}
    return {
        f"{name} {direction}": texts(record) | {"plans": plans(made, record), "offers": offers(made, record)}
        for direction, record in passes.items()
        if record is not None
    }


def forms_of(record: PassRecord) -> Iterator[tuple[str, str, FormRecord]]:
    """All forms of all kernels, each with its strategy and family."""
    for strategy in record.strategies:
        for kernel in strategy.kernels:
            yield from ((strategy.name, kernel.family, form) for form in kernel.forms)


def texts(record: PassRecord) -> dict[str, str]:
    """The texts of all kernels by family and form."""
    found: dict[str, list[str]] = defaultdict(list)
    for strategy, family, form in forms_of(record):
        parameters = ", ".join(map(repr, map(astuple, form.parameters)))
        found[f"{family}.{form.form}"].append(f"// {strategy}: {parameters}\n{source_of(form)}")
    return {form: "\n".join(each) for form, each in found.items()}


def plans(made: Package, record: PassRecord) -> str:
    """What each strategy launches in every call of the sample."""
    lines = []
    for device, call in CALLS:
        for each in alternatives(record, call.binding(made, record), device):
            lines.append(f"{device.name} {call}: {each.strategy.name}, workspace {each.plan.workspace}")
            lines += (launch_text(launch) for launch in each.plan.launches)
    return "\n".join(lines) + "\n"


def offers(made: Package, record: PassRecord) -> str:
    """The knobs of everything that is offered for one call, and the launches of some of each form."""
    device, call = OFFERED[len(record.kernels[0].name) % len(OFFERED)]
    lines = [f"{device.name} {call}"]
    for strategy in record.strategies:
        for found in candidates(strategy, call.binding(made, record), device):
            lines += [f"{strategy.name} {each.kernel.name} {each.knobs}" for each in found]
            launches = (launch for each in some(found) for launch in each.lowered.launches)
            lines += (launch_text(launch) for launch in launches)
    return "\n".join(lines) + "\n"


def some(found: Iterable[Candidate]) -> Iterator[Candidate]:
    """The first of each form, and one of every few."""
    seen = set()
    for place, each in enumerate(found):
        form = dict(each.knobs).get("form")
        if place % LOWERED == 0 or form not in seen:
            seen.add(form)
            yield each


def launch_text(launch: Launch) -> str:
    """How a kernel is launched, and what its text is given."""
    assert isinstance(launch.text, Printed)
    said = [f"{name} {getattr(launch, name)}" for name in SAID]
    return "\n".join(f"    {line}" for line in (repr(launch.text.given), *said))


# ------------------------------------------------------------------------------------------ the difference


def write(folder: Path, names: Collection[str]) -> None:
    """A file for everything that has a digest."""
    folder.mkdir()
    for name in names:
        for direction, parts in parts_of(name).items():
            for part, text in parts.items():
                (folder / f"{direction.replace(' ', '.')}.{part}").write_text(text, encoding="utf-8")


def write_since(commit: str, folder: Path, names: Collection[str]) -> None:
    """The same of another commit."""
    tree = folder.parent / "tree"
    tree.mkdir()
    archive = ["git", "archive", commit, "normgen", "tests", "specs", "pyproject.toml"]
    packed = subprocess.run(archive, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    subprocess.run(["tar", "-x"], cwd=tree, input=packed.stdout, check=True)
    written = [sys.executable, "-m", "tests.digests", "--write", str(folder), *names]
    subprocess.run(written, cwd=tree, env=os.environ | {"PYTHONPATH": str(tree)}, check=True)


def main() -> None:
    """Print the difference, or write one side of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NORM", help="of all norms where none is named")
    parser.add_argument("--since", metavar="COMMIT", help=f"instead of the last one that changed {DIGESTS}")
    parser.add_argument("--write", metavar="FOLDER", type=Path, help="write what is compared, and no more")
    given = parser.parse_args()
    known = bundled.names()
    names = given.names or known
    if given.write:  # (another commit may not have had them all)
        write(given.write, [name for name in names if name in known])
        return
    if unknown := sorted({*names} - {*known}):
        parser.error(f"no norm is called {unknown[0]}; `normgen list` has them all")
    last = ["git", "log", "-1", "--format=%h", "--", str(DIGESTS)]
    commit = given.since or subprocess.check_output(last, cwd=ROOT, text=True).strip()
    with TemporaryDirectory() as folder:
        try:
            write_since(commit, Path(folder, commit.replace("/", "-")), names)
        except subprocess.CalledProcessError:
            parser.error(f"{commit} is no commit whose tests/digests.py runs; name another by --since")
        write(Path(folder, "now"), names)
        compared = ["git", "diff", "--no-index", commit.replace("/", "-"), "now"]
        subprocess.run(compared, cwd=folder)


if __name__ == "__main__":
    main()
