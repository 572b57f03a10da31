"""Calls at once, for the tests of what threads and processes may share."""

from __future__ import annotations

import ctypes
import multiprocessing
import subprocess
import threading
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any


def at_once(*calls: Callable[[], Any], seconds: float = 60) -> list[Any]:
    """What these return, each in a thread of its own. What one raises is raised here, and so is a hang."""
    results: dict[int, Any] = {}
    raised: list[BaseException] = []

    def run(index: int) -> None:
        try:
            results[index] = calls[index]()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=partial(run, index), daemon=True) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
    if raised:
        raise raised[0]
    assert len(results) == len(calls), f"calls that do not end: {set(range(len(calls))) - set(results)}"
    return [results[index] for index in range(len(calls))]


_FOREIGN = """#include <pthread.h>
static void* twice(void* call) { ((void (*)())call)(); ((void (*)())call)(); return 0; }
void foreign(void* call) { pthread_t made; pthread_create(&made, 0, twice, call); pthread_join(made, 0); }
"""


@cache
def _foreign() -> Any:
    folder = Path(mkdtemp())
    (folder / "foreign.c").write_text(_FOREIGN)
    command = ["gcc", "-shared", "-fPIC", "foreign.c", "-o", "foreign.so", "-lpthread"]
    subprocess.run(command, cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "foreign.so")).foreign


def foreign(call: Callable[[], Any]) -> list[Any]:
    """What two calls return in a thread that Python has not made, and forgets after each."""
    results: list[Any] = []
    run = ctypes.CFUNCTYPE(None)(lambda: results.append(call()))
    _foreign()(run)
    return results


def forked(*calls: Callable[[], Any], seconds: float = 60) -> None:
    """Call these, each in a process of its own, and see them end well."""
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=call) for call in calls]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(seconds)
    assert [worker.exitcode for worker in workers] == [0] * len(calls)
