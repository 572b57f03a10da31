"""What `make test-gpu` says: a line for each process that has ended, and a summary of all of them."""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from tests.gpu.jobs import Outcome
from tests.gpu.reporting import KNOWN, NO_TIME

SHOWN = 6  # failures, and names of what was not run, that are told one by one; the logs have all


def line_of(outcome: Outcome) -> str:
    """What came of a process."""
    job = outcome.job
    counts = Counter(test["outcome"] for test in outcome.tests.values())
    said = ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "no tests"
    fault = f"; {outcome.fault}" if outcome.fault else ""
    place = f"{job.part + 1}/{job.group.processes}"
    return f"{job.launcher:14} {job.group.name:12} {place:6} {outcome.seconds:5.0f} s  {said}{fault}"


def summary(
    outcomes: Sequence[Outcome], missing: Iterable[str], card: str, options: argparse.Namespace
) -> int:
    """Print what failed, what was not run and why, and a line for each group; returns how much failed."""
    failures = [(each, test) for each in outcomes for test in each.named("failed")]
    faults = [each for each in outcomes if each.fault and each.fault != NO_TIME]
    if failures or faults:
        print("\nFailures")
    for outcome in faults:
        print(f"  {outcome.job.name}: the process {outcome.fault} ({options.logs / outcome.job.name}.log)")
    for outcome, test in failures[: 8 * SHOWN]:
        reason = " ".join(test["reason"].split())[:300]
        print(f"  {outcome.job.launcher}: {test['test']}\n      {reason}")
    if len(failures) > 8 * SHOWN:
        print(f"  and {len(failures) - 8 * SHOWN} more: {options.logs}")
    known = [(each, test) for each in outcomes for test in each.named(KNOWN)]
    if known:
        print("\nKnown faults, which are expected")
    for outcome, test in known:
        print(f"  {outcome.job.launcher}: {test['test']}: {test['reason']}")
    _left_out(outcomes, missing)
    notes = [f"  {each.job.launcher}: {note}" for each in outcomes for note in each.notes]
    print("\n".join(["\nMeasured", *notes]) if notes else "", end="\n" if notes else "")
    print(f"\nCard: {card}. Seed: {options.seed}. Logs: {options.logs}")
    print(f"{'launcher':14} {'group':12} {'cases':>6} {'failed':>7} {'not run':>8} {'seconds':>8}")
    for launcher in options.launchers:
        for group in options.groups:
            own = [o for o in outcomes if o.job.launcher == launcher and o.job.group is group]
            passed, failed, expected, left = (
                sum(len(o.named(kind)) for o in own) for kind in ("passed", "failed", KNOWN, "skipped")
            )
            failed += sum(o in faults for o in own)
            cases = passed + failed + expected
            took = max((o.seconds for o in own), default=0.0)
            print(f"{launcher:14} {group.name:12} {cases:6} {failed:7} {left:8} {took:8.0f}")
    bad = len(failures) + len(faults) + len(list(missing))
    ran = sum(len(o.named("passed")) for o in outcomes)
    said = f", {len(known)} as expected" if known else ""
    print(f"{'passed' if ran and not bad else 'FAILED'}: {ran} cases passed, {bad} failed{said}")
    return bad if ran else 1


def _left_out(outcomes: Sequence[Outcome], missing: Iterable[str]) -> None:
    """What was not run, by reason."""
    by_reason: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for outcome in outcomes:
        for test in outcome.named("skipped"):
            file = test["test"].split("::")[0]
            by_reason[outcome.job.launcher, file, test["reason"]].append(test["test"].split("::")[-1])
        if outcome.fault == NO_TIME:
            by_reason[outcome.job.launcher, ", ".join(outcome.job.group.files), NO_TIME].append(
                f"part {outcome.job.part + 1} of {outcome.job.group.processes}"
            )
    thorough = {outcome.job.group.files: outcome.thorough for outcome in outcomes if outcome.thorough}
    if by_reason or missing or thorough:
        print("\nNot run")
    for files, many in thorough.items():
        print(f"  {', '.join(files)}: {many} thorough cases, which GPU_ARGS=--thorough adds")
    for each in missing:
        print(f"  {each}")
    for (launcher, file, reason), tests in sorted(by_reason.items()):
        names = ", ".join(sorted(tests)[:SHOWN]) + (
            f" and {len(tests) - SHOWN} more" if len(tests) > SHOWN else ""
        )
        print(f"  {launcher}: {file}: {reason.removeprefix('Skipped: ')}: {names}")
