"""Calls drawn at random by class, measured beside every peer: how good choices are where nobody looked.

    python bench/heldout.py --seed 7 --count 84 --out heldout.jsonl
    python bench/heldout.py --read heldout.jsonl other.jsonl
    python bench/heldout.py --seed 7 --count 14 --device cpu --small --jobs 2

Classes, ops, types, layouts and shapes are drawn by `drawn.py`. First each provider runs each call once, in
processes of their own, side by side, which compiles what the measurement needs. Then a process that is alone
on the device checks all of them against PyTorch in float64 and times them in turn, as `run.py` does. It is
replaced when a call ends it, and that call is listed as failed and measured again without Liger and quack.

A point is a call that normgen and some peer got right. Per class and direction: the geometric mean of the
time of the fastest right peer over that of normgen, the worst point, and at how many points normgen is behind
by more than 2 and 10 %. Then the same over torch (eager) alone.

--out has a JSON line for each call, written as soon as it is measured. After --budget seconds everything
ends, and calls that were not measured are counted. The exit status is 1 where normgen failed or was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from workers import ALONE, Answer, answer, share_out

os.environ.update(ALONE)  # before PyTorch reads it
import torch
from commits import commit_of_tree, text_of
from drawn import Compared, compared
from problems import Problem
from providers import absent, has
from results import Row
from setting import header_of
from standing import TOGETHER, Line, call_text, gain_of, report, right_times, title
from station import FEW, ROUNDS, Station, first_line
from tables import MINE
from tryouts import try_out_each

from normgen.measure.timing import BATCHES

PEERS = ("torch", "compile", "liger", "quack")
SAFE = (MINE, "torch", "compile")  # of which none is likely to end a process
PREPARING = 0.4  # of the budget, after which nothing more is prepared
ONE_TASK = 50  # seconds for one provider to prepare one call, compilation included
ONE_CALL = 40  # seconds to measure one call with all providers
MOST_JOBS = 16  # each of which holds a context and arrays of the device
LAST = 3  # seconds before the end, in which no call is begun
TICK = 0.05  # seconds by which a timer may be early


def main() -> int:
    """See the module."""
    given = _arguments()
    if given.read:
        lines = [json.loads(line) for path in given.read for line in text_of(path).splitlines()]
        return _finish(lines)
    asked = [_small(call) if given.small else call for call in compared(given.seed, given.count)]
    if given.worker:
        _work(asked, given)
        return 0
    return _run(asked, given)


def _work(asked: list[Compared], given: argparse.Namespace) -> None:
    """What a process of a stage does."""
    _limit(given.end - time.monotonic())
    if given.worker == "prepare":
        listed = [(problem_of(call), (call.direction,)) for call in asked]
        try_out_each(listed, given.device, ONE_TASK)
    else:
        measure_each(asked, Station(given.device, _batches(given), ceilings=False), given.end)


def _run(asked: list[Compared], given: argparse.Namespace) -> int:
    """Prepare and measure the calls, and tell what came of them."""
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text("")
    reasons = {provider: absent(provider) for provider in (MINE, *given.peers)}
    absences = [f"{provider} is absent: {reason}" for provider, reason in reasons.items() if reason]
    header = header_of(given.device, reasons, given.commit or commit_of_tree())
    print(f"normgen {header['commit']} on {header['device']}; {_versions(header)}")
    print(*absences, sep="\n", flush=True)
    there = [provider for provider, reason in reasons.items() if not reason]
    prepared = _prepare(asked, there, given)
    print(f"{len(prepared)} of {len(asked)} calls prepared after {_passed(given)}", flush=True)
    about = {key: header[key] for key in ("device", "commit", "versions")} | {"seed": given.seed}
    lines = _measure(asked, prepared, about, given)
    status = _finish(lines)
    print("", *absences, sep="\n")
    if any(TOGETHER in line["fault"] for line in lines):
        print(f"what processes said that ended: {_log(given, 'measured')}")
    left = len(asked) - len(lines)
    print(f"{_passed(given)} in all; {left} of {len(asked)} drawn calls were not measured")
    return status


def _passed(given: argparse.Namespace) -> str:
    return f"{given.budget - (given.end - time.monotonic()):.0f} s"


def _finish(lines: list[Line]) -> int:
    """Print what there is to say of these lines, and return the exit status."""
    print(report(lines))
    return int(not lines or any(MINE not in right_times(line) for line in lines))


# -------------------------------------------------------------------------------------------- the stages

Prepared = dict[str, Row]  # what came of running a call once, by provider


def _prepare(asked: list[Compared], there: list[str], given: argparse.Namespace) -> dict[int, Prepared]:
    """What came of each call, by its place, as far as all of its providers were tried out."""
    tasks = {place: _tasks(place, call, there) for place, call in enumerate(asked)}
    every = [task for mine in tasks.values() for task in mine.values()]
    seconds = PREPARING * given.budget
    found = share_out(every, _worker("prepare", given), given.jobs, _log(given, "prepared"), seconds)
    return {
        place: {provider: found[task] for provider, task in mine.items()}
        for place, mine in tasks.items()
        if all(task in found for task in mine.values())
    }


def _tasks(place: int, call: Compared, there: list[str]) -> dict[str, str]:
    """The task of each provider that has the call."""
    return {p: f"{p} {place}" for p in there if has(p, problem_of(call), call.direction)}


def _measure(
    asked: list[Compared],
    prepared: dict[int, Prepared],
    about: Row,
    given: argparse.Namespace,
) -> list[Line]:
    """A line of each call that is measured before the end, added to the file as it comes.

    A call that ends its process is asked for again when all others are done, without the peers that may have
    done that.
    """
    lines: list[Line] = []
    ended: dict[int, str] = {}  # the fault of each call that ended its process, by its place

    def told(task: str, found: Answer) -> None:
        if "rows" not in found and time.monotonic() > given.end - TICK:
            return  # its process was ended since the time is over
        place = json.loads(task)["call"]
        if "rows" in found or place in ended:
            write(place, found)
        else:
            ended[place] = found["fault"]

    def write(place: int, found: Answer) -> None:
        fault = {"fault": ended[place]} if place in ended else {}
        line = line_of(asked[place], found | fault, about | {"place": place})
        lines.append(line)
        print(f"{place + 1}/{len(asked)} {_summary(line)}", flush=True)
        if given.out:
            with given.out.open("a") as file:
                file.write(f"{json.dumps(line)}\n")

    def ask(wanted: dict[int, Prepared], log: Path) -> None:
        tasks = [json.dumps({"call": place, "prepared": mine}) for place, mine in wanted.items()]
        seconds = given.end - LAST - time.monotonic()
        share_out(tasks, _worker("measure", given), 1, log, seconds, told)

    ask(prepared, _log(given, "measured"))
    ask({place: _safe(prepared[place]) for place in ended}, _log(given, "again"))
    for place in ended.keys() - {line["place"] for line in lines}:
        write(place, {})  # there was no time to ask again
    return lines


def _safe(prepared: Prepared) -> Prepared:
    return {provider: found for provider, found in prepared.items() if provider in SAFE}


def measure_each(asked: list[Compared], station: Station, end: float) -> None:
    """Measure calls that come on standard input, and say on standard output what came of them.

    One that takes more than `ONE_CALL` seconds, or until the end on the monotonic clock, ends this process.
    """
    for text in sys.stdin:
        task = json.loads(text)
        call = asked[task["call"]]
        print("call", call, file=sys.stderr, flush=True)
        _limit(min(ONE_CALL, end - time.monotonic()))
        try:
            verdict: Row = {"rows": station.measure(problem_of(call), call.direction, task["prepared"])}
        except Exception as fault:  # who knows what is left of the device: end, and be replaced
            verdict = {"fault": first_line(fault), "last": True}
        signal.setitimer(signal.ITIMER_REAL, 0)
        answer(verdict)
        if "last" in verdict:
            return


def _limit(seconds: float) -> None:
    """End this process after so many seconds. Without a handler, so that a kernel that hangs ends it too."""
    signal.setitimer(signal.ITIMER_REAL, max(0.1, seconds))


def _worker(what: str, given: argparse.Namespace) -> list[str]:
    return [sys.executable, *sys.argv, "--worker", what, "--end", str(given.end)]


def _log(given: argparse.Namespace, what: str) -> Path:
    """Where the processes of a stage write what goes wrong."""
    beside = given.out or Path(tempfile.gettempdir(), f"heldout-{os.getpid()}")
    return Path(f"{beside}.{what}.log")


# --------------------------------------------------------------------------------------------- the calls


def problem_of(call: Compared) -> Problem:
    """What the bench measures of a call."""
    return Problem(call.op, call.shape, call.dtype, call.layout, call.params)


def _small(call: Compared) -> Compared:
    """The call with lengths that take no time, and that leave the same remainders."""
    batch, *_, last = call.shape
    if problem_of(call).images:
        return replace(call, shape=(1 + batch % 2, 64, 2 + call.shape[2] % 4, 2 + last % 4))
    return replace(call, shape=(1 + batch % 4, 64 + last % 64))


def line_of(call: Compared, found: Answer, about: Row) -> Line:
    """What is written of a call. A fault without rows is that of its process."""
    rows = found.get("rows", [])
    line: Line = about | asdict(call) | {"bytes": problem_of(call).bytes(call.direction).total}
    for figure in ("us", "spread", "wrong", "fault"):
        line[figure] = {row["provider"]: row[figure] for row in rows if figure in row}
    line["plan"] = next((row["plan"] for row in rows if "plan" in row), [])
    if "fault" in found:
        line["fault"][TOGETHER] = found["fault"]
    return line


def _summary(line: Line) -> str:
    """A call and its times, in one line."""
    times = [f"{title(p)} {us:.2f} us{' (wrong)' * (p in line['wrong'])}" for p, us in line["us"].items()]
    times += [f"{title(p)} failed" for p in line["fault"]]
    gain = gain_of(line)
    told = f"{line['kind']}: {line['direction']} of {call_text(line)}: {', '.join(times)}"
    return told if gain is None else f"{told}: {gain.ratio:.3f}"


def _versions(header: Row) -> str:
    return ", ".join(f"{package} {version}" for package, version in header["versions"].items() if version)


def _batches(given: argparse.Namespace) -> int:
    return FEW if given.small else BATCHES // ROUNDS


def _arguments() -> argparse.Namespace:
    def positive(text: str) -> int:
        if (value := int(text)) < 1:
            raise argparse.ArgumentTypeError(f"{value} is less than 1")
        return value

    def file(text: str) -> Path:
        if not (path := Path(text)).is_file():
            raise argparse.ArgumentTypeError(f"there is no file {text}")
        return path

    def peers(text: str) -> list[str]:
        if unknown := [name for name in text.split(",") if name not in PEERS]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(PEERS)}")
        return text.split(",")

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0, help="what the calls are drawn from")
    parser.add_argument("--count", type=positive, default=84, help="how many calls are drawn")
    parser.add_argument("--out", type=Path, help="write a JSON line for each call here, anew")
    parser.add_argument("--budget", type=float, default=540, help="seconds after which everything ends")
    jobs = min(MOST_JOBS, os.cpu_count() or 1)
    parser.add_argument("--jobs", type=positive, default=jobs, help="processes that prepare")
    parser.add_argument("--commit", default="", help="of the tree, where git cannot tell")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try it out")
    parser.add_argument("--small", action="store_true", help="cut all lengths down, to try it out")
    parser.add_argument("--peers", type=peers, default=PEERS, help=f"some of {', '.join(PEERS)}")
    parser.add_argument("--read", type=file, nargs="+", help="measure nothing: report what these files hold")
    parser.add_argument("--worker", choices=("prepare", "measure"), help=argparse.SUPPRESS)
    parser.add_argument("--end", type=float, help=argparse.SUPPRESS)  # of a stage's processes: the run's own
    given = parser.parse_args()
    given.end = given.end or time.monotonic() + given.budget
    if given.device == "cuda" and not given.read and not torch.cuda.is_available():
        parser.error("PyTorch finds no GPU; to try it out without one: --device cpu --small")
    return given


if __name__ == "__main__":
    sys.exit(main())
