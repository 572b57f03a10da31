"""Each provider's problems run once, in processes of their own, side by side.

What they compile is then kept on disk, and a crash or a kernel that hangs costs one task.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence

import torch
from problems import Problem
from providers import Sets, calls, forget_compiled, has
from results import Row
from station import first_line
from workers import answer

ONE_TASK = 100  # seconds for one provider and problem, compilation included


def try_out_each(listed: Sequence[tuple[Problem, Sequence[str]]], device: str, seconds: float) -> None:
    """Run tasks that come on standard input once each, and say on standard output what came of them.

    A task is a provider and the place of a problem and its directions in what is listed. One that takes more
    than so many `seconds`, compilation included, ends this process.
    """
    for line in sys.stdin:
        provider, index = line.split()
        problem, directions = listed[int(index)]
        print("task", problem.text, provider, file=sys.stderr, flush=True)
        signal.setitimer(
            signal.ITIMER_REAL, seconds
        )  # without a handler: a kernel that hangs ends this process
        forget_compiled()
        verdict: Row = {d: _try_out(problem, provider, device, d) for d in directions}
        try:
            if device == "cuda":
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
        except Exception:  # after an illegal access nothing works here: end, and be replaced
            verdict["last"] = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        answer(verdict)
        if "last" in verdict:
            return


def _try_out(problem: Problem, provider: str, device: str, direction: str) -> str:
    """The fault of running it once, or nothing. Where other processes hold the memory, again when they are
    done."""
    if not has(provider.partition(":")[0], problem, direction):
        return ""
    told = ""
    for _ in range(20):
        try:
            calls(provider, Sets(problem, 1, device), direction)(0)
            if device == "cuda":
                torch.cuda.synchronize()
            return ""
        except torch.OutOfMemoryError as fault:
            told = first_line(fault)
        except Exception as fault:
            return first_line(fault)
        torch.cuda.empty_cache()
        time.sleep(2)
    return told
