"""Work done ahead in several threads, and its results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")


def in_order(function: Callable[[Item], Made], items: Iterable[Item], threads: int) -> Iterator[Made]:
    """What `function` makes of each item, in the order of the items; what it raises is raised in its turn.

    Several threads are at most two items each ahead of the caller. One thread is the caller's own.
    """
    if threads <= 1:
        yield from map(function, items)
        return
    pool = ThreadPoolExecutor(threads)
    waiting: deque[Future[Made]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
