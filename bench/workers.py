"""Tasks shared out among processes that are replaced when they die, so that one crash costs one task."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

# Each process compiles one text at a time; there are as many processes as cores. What PyTorch's compiler
# tunes by measuring is tuned again by whoever times it, undisturbed.
ALONE = {
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "TORCHINDUCTOR_AUTOTUNE_LOCAL_CACHE": "0",
    "OMP_NUM_THREADS": "1",
}


ENDING = 20  # seconds in which a process ends that is asked no more
Answer = dict[str, Any]


def answer(verdict: Answer) -> None:
    """Say in a process of `share_out` what came of its task, on a line of its own whatever was printed."""
    print(f"\nverdict {json.dumps(verdict)}", flush=True)


def share_out(
    tasks: list[str],
    command: list[str],
    jobs: int,
    log: Path,
    seconds: float = 1e9,
    told: Callable[[str, Answer], None] = lambda task, answer: None,
) -> dict[str, Answer]:
    """What the processes of `command` answer to each task.

    A process reads a task a line and answers `verdict JSON` on a line; other lines are passed over, standard
    error goes to `log`. Without an answer the task gets a fault; a process that answers "last" is replaced.
    What is not begun after so many `seconds` is missing from what is returned. `told` gets each task and its
    answer at once, in the thread of its process.
    """
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for task in tasks:
        waiting.put(task)
    found: dict[str, Answer] = {}
    end = time.monotonic() + seconds
    with log.open("w") as errors:
        threads = [
            threading.Thread(target=_serve, args=(waiting, found, command, errors, end, told))
            for _ in range(min(jobs, len(tasks)))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return found


def _serve(
    waiting: queue.SimpleQueue[str],
    found: dict[str, Answer],
    command: list[str],
    errors: IO[str],
    end: float,
    told: Callable[[str, Answer], None],
) -> None:
    process: subprocess.Popen[str] | None = None
    while True:
        try:
            task = waiting.get_nowait()
        except queue.Empty:
            break
        if time.monotonic() > end:
            break
        process = process or _start(command, errors)
        answer = _ask(process, task)
        if answer is None or answer.pop("last", False):
            process.kill()
            answer = answer or {"fault": _ending(process.wait())}
            process = None
        found[task] = answer
        told(task, answer)
    if process is not None:
        _end(process)


def _start(command: list[str], errors: IO[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        bufsize=1,
        env=os.environ | ALONE,
    )


def _ending(status: int) -> str:
    """What an exit status says of a process that owes an answer."""
    if status == -signal.SIGALRM:
        return "took too long"
    return f"its process ended with {signal.Signals(-status).name if status < 0 else status}"


def _end(process: subprocess.Popen[str]) -> None:
    """Let it end by itself, as long as that is quick."""
    try:
        process.communicate(timeout=ENDING)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _ask(process: subprocess.Popen[str], task: str) -> Answer | None:
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(task + "\n")
        process.stdin.flush()
    except OSError:
        return None
    for line in process.stdout:
        if line.startswith("verdict "):
            answer: Answer = json.loads(line.removeprefix("verdict "))
            return answer
    return None
