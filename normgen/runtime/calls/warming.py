"""Texts compiled and loaded ahead of the calls that need them, several at a time."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from normgen.devices.executors import Executor
from normgen.launching.launch import Launch

_MOST = 8  # compilers at a time


def compile_all(executor: Executor, launches: Iterable[Launch]) -> None:
    """Compile and load the text of each launch, once however many have it. Raises what the first of them that
    cannot be compiled raises."""
    shared: dict[tuple[str, str], int] = {}
    for launch in launches:
        key = launch.source, launch.entry
        shared[key] = max(launch.shared, shared.get(key, 0))
    if not shared:
        return
    workers = min(len(shared), os.cpu_count() or 1, _MOST)
    with ThreadPoolExecutor(workers, thread_name_prefix="normgen-compile") as pool:
        made = [pool.submit(executor.function, *key, room) for key, room in shared.items()]
    for each in made:
        each.result()
