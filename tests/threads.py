"""Calls at once, for the tests of what threads and processes may share."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from functools import partial
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


def forked(*calls: Callable[[], Any], seconds: float = 60) -> None:
    """Call these, each in a process of its own, and see them end well."""
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=call) for call in calls]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(seconds)
    assert [worker.exitcode for worker in workers] == [0] * len(calls)
