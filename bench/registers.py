"""What the compiler takes for schedules: registers, and bytes that it spills, for each architecture.

    PYTHONPATH=. python -m bench.registers --seed 1 --seconds 300 --out registers.jsonl
    PYTHONPATH=. python -m bench.registers --fit bench/{registers,timings}/*.gz   # write spills.npz anew

Calls are drawn as for `bench.measure`, each for a device of its own. A line of JSON each: the
architecture, the call, the kernel, the knobs that differ from their defaults, registers and spilled bytes of
the kernel's own launch, as NVRTC's ptxas reports them. No GPU is needed. Timings have such reports too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from bench.calls import CLASSES, draw, kinds_of
from bench.drawn import Drawn, line_of
from bench.fit import Samples, boosted, samples
from bench.measure import kernels
from normgen.devices.cuda.compile import Usage, inlined
from normgen.devices.cuda.nvrtc import Nvrtc
from normgen.errors import CompileError
from normgen.launching.knobs import short
from normgen.launching.launch import Launch
from normgen.launching.machine import REGISTER_BYTES, Machine, machine_named, machine_of, usual_machine
from normgen.launching.model import SPILLS, Trees, predict, write
from normgen.runtime.planning.choose import Candidate, predicted

# One device of each architecture that the compiler has registers of its own for.
DEVICES: Mapping[str, Machine] = {
    each.arch: each
    for each in (
        usual_machine("sm_80"),
        machine_of("sm_86", "NVIDIA A10", 72, 6 << 20),
        machine_of("sm_89", "NVIDIA L4", 58, 48 << 20),
        usual_machine("sm_90"),
        usual_machine("sm_100"),
        machine_of("sm_120", "NVIDIA GeForce RTX 5090", 170, 96 << 20),
    )
}
LIKELY, WILD = 4, 3  # schedules of a kernel beside the one taken: of those that are fast, and of all
TREES = 240
MISSED = 3.0  # what one that spills and is not told counts, beside one that is told and does not
SPILLING, MOST = 8.0, 32.0  # registers that a thread lacks of which any are spilled: no less, and no more


def reports(drawn: Drawn, arch: str, seed: int) -> list[dict[str, Any]]:
    """Of the kernels of a call. (In a process of its own.)"""
    source, device = random.Random(f"{seed} {drawn.text}"), DEVICES[arch]
    about = {"device": device.name, "seed": seed, **line_of(drawn)}
    found = []
    for alternative, every in kernels(drawn, device):
        times = predicted(every)
        ranked = sorted(range(len(every)), key=times.__getitem__)
        likely = [every[place] for place in ranked[: 4 * LIKELY]]
        some = [
            every[0],
            *source.sample(likely, min(LIKELY, len(likely))),
            *source.sample(every, min(WILD, len(every))),
        ]
        for one in {each.knobs: each for each in some}.values():
            usage = reported(one, arch)
            if usage is not None:
                found.append(
                    about
                    | {"strategy": alternative.strategy.name, "kernel": one.kernel.name}
                    | {"knobs": short(one.schedule), "usual": one is every[0]}
                    | {"registers": usage.registers, "spilled": usage.spilled}
                )
    return found


def reported(each: Candidate, arch: str) -> Usage | None:
    """What the compiler says of the kernel itself, not of what clears before it and adds up after it; None
    where the text does not compile."""
    try:
        (usage,) = Nvrtc().report(inlined(own_launch(each).source), arch)
    except CompileError:
        return None
    return usage


def own_launch(each: Candidate) -> Launch:
    """That of the kernel itself."""
    form = getattr(each.schedule, "form", each.kernel.forms[0].form)
    entry = next(text.entry for text in each.kernel.forms if text.form == form)
    return next(launch for launch in each.lowered.launches if launch.entry == entry)


def collect(seed: int, seconds: float, out: Path, kinds: Sequence[str] = ()) -> None:
    """Compile what is drawn, of some classes if there are any, until there is no time left."""
    end, lines = time.monotonic() + seconds, 0
    workers, archs = os.cpu_count() or 2, list(DEVICES)
    calls = enumerate(draw(seed, kinds))
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool, out.open("a") as file:
        waiting = {
            pool.submit(reports, drawn, archs[n % len(archs)], seed)
            for n, drawn in islice(calls, 2 * workers)
        }
        while waiting and time.monotonic() < end:
            done = next(as_completed(waiting))
            waiting.remove(done)
            n, drawn = next(calls)
            waiting.add(pool.submit(reports, drawn, archs[n % len(archs)], seed))
            if done.exception():
                print("not compiled:", repr(done.exception())[:300], flush=True)
                continue
            for line in done.result():
                file.write(json.dumps(line) + "\n")
                lines += 1
        for task in waiting:
            task.cancel()
        print(f"{lines} reports", flush=True)
        for process in list(pool._processes.values()):
            process.kill()


def fit(paths: list[Path], out: Path) -> None:
    """The model of registers that threads lack, and how often it is right about calls it has not seen."""
    found = samples(paths, _lacking, _device)
    spill, seen = found.times > 0, [crc32(repr(call["sizes"]).encode()) % 4 > 0 for call in found.calls]
    told = predict(_trees(found.of(seen)), found.quantities) > 0
    unseen = ~np.array(seen)[found.kernels]
    for name, some in (("all", unseen), ("taken", unseen & found.usual)):
        right, wrong = (spill & told & some).sum(), (~spill & told & some).sum()
        print(
            f"unseen, {name}: {(spill & some).sum()} of {some.sum()} spill, {right} told; {wrong} others are"
        )
    write(out, _trees(found))
    print(f"{len(found.times)} reports: {out.stat().st_size} bytes")


def _device(name: str) -> Machine:
    """The device of a report, or of a timing."""
    return next((each for each in DEVICES.values() if each.name == name), None) or machine_named(name)


def _trees(found: Samples) -> Trees:
    weights = np.where(found.times > 0, MISSED, 1.0)
    return boosted(found, found.times, weights, TREES, share=0.0, own=0, level=0)


def _lacking(line: Mapping[str, Any]) -> float:
    """Registers that a thread lacks, or less than 0: has left."""
    if line["spilled"]:
        return min(MOST, SPILLING + line["spilled"] / REGISTER_BYTES)
    return -MOST / 4


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=1, help="what calls and schedules are drawn from")
    parser.add_argument("--seconds", type=float, default=300, help="that it may take")
    parser.add_argument("--out", type=Path, default=Path("registers.jsonl"), help="what lines are added to")
    parser.add_argument("--fit", type=Path, nargs="+", help="compile nothing: fit the model to these files")
    parser.add_argument("--kinds", type=kinds_of, default=(), help=f"only some of {', '.join(CLASSES)}")
    given = parser.parse_args()
    if given.fit:
        fit(given.fit, SPILLS)
    else:
        collect(given.seed, given.seconds, given.out, given.kinds)


if __name__ == "__main__":
    main()
