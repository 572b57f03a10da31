"""Norms whose axes are spread over GPUs, beside what is written by hand, and beside no exchange at all.

    torchrun --nproc-per-node 2 bench/ranks.py --out ranks.jsonl --seconds 480
    torchrun --nproc-per-node 2 bench/ranks.py --cpu --calls rmsnorm

Each process has a GPU of its own, and exchanges by NCCL; with --cpu all is tiny, by gloo, in wall-clock time.
Calls and providers are those of `ranks_calls.py`:

- normgen: the axis is spread, or x a sum of parts;
- gather: all_gather of x, PyTorch's norm of the whole, and the own run of that;
- statistics: local statistics in float32, all_reduce, apply;
- dtensor: PyTorch's norm of DTensors;
- torch: torch.nn.SyncBatchNorm;
- local normgen, local torch: the norm of the own run alone: nothing is exchanged, and the values are others;
- sum of parts: that of x alone, as normgen has it exchanged;
- all_reduce: the exchange alone; with ", normgen" or ", torch" also the norm after it.

Each is timed eagerly and as a CUDA graph of calls: the median of three rounds of many calls, of the slowest
rank, on the same arrays each time, so that what fits into the cache is there. All results but those of local
norms are compared with float64 in one process, those of graphs too. What is wrong is told in the line of its
time. The exit status is 1 where normgen is wrong, or fails.

--out has a JSON line for each call, provider, mode and pass: `us`, and a `note`, with the reason where there
is no time. After --seconds nothing more is begun.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

os.environ["NCCL_NVLS_ENABLE"] = "0"  # no multicast over NVLink; before NCCL is initialized
sys.path.insert(0, str(Path(__file__).parents[1]))
import torch
import torch.distributed as dist
from commits import commit_of_tree
from problems import WRONG
from providers import error
from ranks_calls import CALLS, Call, case, small
from ranks_steps import Case, Results, Steps
from results import Row
from setting import header_of
from together import Differs, Step, Together
from torch import Tensor

MINE = "normgen"
MODES, PASSES = ("eager", "graph"), ("forward", "forward+backward")
SKIPPED = "the time was over"
WAIT = timedelta(seconds=180)  # for a rank that compiles, or is gone


@dataclass(frozen=True)
class Bench:
    """What measures on this rank. `end`: seconds of the monotonic clock, by that of rank 0."""

    together: Together
    about: Row
    end: float

    def over(self) -> bool:
        """Whether the time is over, for all ranks."""
        return bool(self.together.first(time.monotonic() > self.end))

    def lines(self, call: Call) -> Iterator[Row]:
        """The lines of a call as they are measured, up to the end of the time."""
        about = self.about | {"call": call.name, "sizes": list(call.sizes), "dtype": call.dtype}
        if self.over():
            return
        try:
            made = self.together.attempt(lambda: case(call, self.together.device))
        except Differs as fault:
            yield self._line(about, MINE, "eager", PASSES[0], None, str(fault))
            return
        for provider in made.providers:
            if self.over():
                yield self._line(about, provider, "eager", PASSES[0], None, SKIPPED)
                continue
            yield from self._of(provider, made, about, WRONG[call.dtype])
            _clean(self.together.device)

    def _of(self, provider: str, made: Case, about: Row, bound: float) -> Iterator[Row]:
        """The lines of a provider, for each pass and mode."""
        try:
            steps = self.together.attempt(made.providers[provider])
        except Differs as fault:
            yield self._line(about, provider, "eager", PASSES[0], None, str(fault))
            return
        for name, step in steps.passes().items():
            wrong = partial(self._wrong, steps, made.wanted, name, bound)
            for mode, us, note in self._times(step, wrong):
                notes = [each for each in (note, steps.note) if each]
                yield self._line(about, provider, mode, name, us, "; ".join(notes))

    def _times(self, step: Step, wrong: Callable[[Results], str]) -> Iterator[tuple[str, float | None, str]]:
        """The time of each mode, or None and the reason. A wrong result has a time too."""
        try:
            us, found = self.together.eager(step)
        except Differs as fault:
            yield "eager", None, str(fault)
            return
        yield "eager", us, wrong(found)
        del found
        try:
            graph_us, found = self.together.graph(step, us)
        except Differs as fault:
            yield "graph", None, str(fault)
            return
        yield "graph", graph_us, wrong(found)

    def _wrong(self, steps: Steps, wanted: Sequence[Tensor], name: str, bound: float, found: Results) -> str:
        """What is wrong with the results of a pass, on the rank where it is most."""
        if steps.seen is None:
            return ""
        made = steps.seen(found)
        far = self.together.most(_apart(made, wanted[: len(made)] if name == PASSES[0] else wanted))
        return "" if far <= bound else f"wrong: relative error {far:.3g}, more than {bound:g}"

    @staticmethod
    def _line(about: Row, provider: str, mode: str, name: str, us: float | None, note: str) -> Row:
        told = None if us is None else round(us, 2)
        return about | {"provider": provider, "mode": mode, "pass": name, "us": told, "note": note}


def _apart(made: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """The relative error of results; infinite where one is missing, of another shape, or no number."""
    try:
        found = error(tuple(made), list(wanted))
    except AssertionError:
        return float("inf")
    return found if found == found else float("inf")


def _clean(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def table(lines: Sequence[Row]) -> str:
    """The times of lines: a paragraph for each call, a row for each provider, then the notes."""
    heads = list(dict.fromkeys(_text(line) for line in lines))
    columns = [(name, mode) for name in PASSES for mode in MODES]
    told = ["us per call" + " " * 13 + "".join(f"{name:>18}" for name, _ in columns)]
    told.append(" " * 24 + "".join(f"{mode:>18}" for _, mode in columns))
    notes: dict[str, list[str]] = {}
    for head in heads:
        told += ["", head]
        mine = [line for line in lines if _text(line) == head]
        for provider in dict.fromkeys(line["provider"] for line in mine):
            found = {(line["pass"], line["mode"]): line for line in mine if line["provider"] == provider}
            told.append(f"  {provider:22}" + "".join(_cell(found.get(column)) for column in columns))
            for line in found.values():
                notes.setdefault(line["note"], []).append(f"{head}, {provider}")
    notes.pop("", None)
    return "\n".join([*told, "", *(f"{note} ({_first(dict.fromkeys(of))})" for note, of in notes.items())])


def _first(places: Collection[str]) -> str:
    first, more = next(iter(places)), len(places) - 1
    return f"{first} and {more} more" if more else first


def _text(line: Row) -> str:
    return Call(line["call"], tuple(line["sizes"]), line["dtype"]).text


def _cell(line: Row | None) -> str:
    if line is None:
        return f"{'':18}"
    mark = " wrong" if line["note"].startswith("wrong") else ""
    return f"{'-' if line['us'] is None else format(line['us'], '.2f')}{mark}".rjust(18)


def failed(line: Row) -> bool:
    """Whether normgen was wrong, or could not make a call. That it cannot be captured is no failure."""
    missing = line["us"] is None and line["mode"] == "eager" and line["note"] != SKIPPED
    return line["provider"] == MINE and (missing or line["note"].startswith("wrong"))


def main() -> int:
    """See the module."""
    given = _arguments()
    device = torch.device("cpu")
    if given.cpu:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", timeout=WAIT)
    else:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", timeout=WAIT, device_id=device)
    try:
        return _run(given, device)
    finally:
        dist.destroy_process_group()


def _run(given: argparse.Namespace, device: torch.device) -> int:
    header = header_of(device.type, {}, given.commit or commit_of_tree())
    about = {"device": header["device"], "world": dist.get_world_size(), "commit": header["commit"]}
    bench = Bench(Together(device), about, time.monotonic() + given.seconds)
    asked = [
        call for call in (small(CALLS) if given.cpu else CALLS) if not given.calls or call.name in given.calls
    ]
    told, lines = dist.get_rank() == 0, list[Row]()
    if told:
        print(
            f"normgen {header['commit']} on {about['world']} x {header['device']}; {header['versions']}",
            flush=True,
        )
    out = given.out.open("w") if told and given.out else None
    begun = 0
    for call in asked:
        before = len(lines)
        for line in bench.lines(call):
            lines.append(line)
            if told:
                print(call.text, *(line[k] for k in ("provider", "pass", "mode", "us", "note")), flush=True)
            if out:
                print(json.dumps(line), file=out, flush=True)
        begun += len(lines) > before
    if told:
        print(f"\n{table(lines)}\n{len(asked) - begun} of {len(asked)} calls were skipped")
    return int(not lines or any(failed(line) for line in lines))


def _arguments() -> argparse.Namespace:
    names = tuple(dict.fromkeys(call.name for call in CALLS))

    def calls(text: str) -> list[str]:
        if unknown := [name for name in text.split(",") if name not in names]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(names)}")
        return text.split(",")

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="write a JSON line for each figure here, anew")
    parser.add_argument("--seconds", type=float, default=480, help="after which nothing more is begun")
    parser.add_argument("--calls", type=calls, default=[], help=f"by comma, some of {', '.join(names)}")
    parser.add_argument("--cpu", action="store_true", help="tiny calls on the CPU, to try it out")
    parser.add_argument("--commit", default="", help="of the tree, where git cannot tell")
    given = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error("start it with torchrun --nproc-per-node 2 bench/ranks.py")
    ranks = int(os.environ["WORLD_SIZE"])
    if 64 % ranks:
        parser.error(f"{ranks} processes do not divide the spread axes: start 2, 4 or 8")
    if not given.cpu and torch.cuda.device_count() < int(os.environ["LOCAL_WORLD_SIZE"]):
        parser.error(f"PyTorch finds {torch.cuda.device_count()} GPUs; to try it out without: --cpu")
    return given


if __name__ == "__main__":
    sys.exit(main())
