"""Takes the synchronisation out of a kernel text, one statement at a time.

Each mutant must be reported by the checked run, or the statement is superfluous, or it never ran. The probes
tell which: in them it is a trap.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_SYNCHRONISATION = re.compile(
    r"(?:\b(?:__syncthreads|__syncwarp|__threadfence|normgen_async_wait|normgen_named_barrier|normgen_cluster_sync|normgen_await_sent|normgen_bulk_wait)"
    r"|async_wait<[^<>;]*>|\b\w+\.sync)\s*\((?:[^()]|\([^()]*\))*\)\s*;"
)


def barrier_mutants(source: str) -> Iterator[tuple[int, str]]:
    """Each barrier, fence or wait statement in turn: its line (from 1), and the text without it."""
    return _replaced(source, "((void)0);")


def barrier_probes(source: str) -> Iterator[tuple[int, str]]:
    """The same statements in the same order, each a `__trap()`: a run is reported if it comes by."""
    return _replaced(source, "__trap();")


def _replaced(source: str, instead: str) -> Iterator[tuple[int, str]]:
    for statement in _SYNCHRONISATION.finditer(source):
        kept_lines = "\n" * statement[0].count("\n")
        line = source.count("\n", 0, statement.start()) + 1
        yield line, source[: statement.start()] + instead + kept_lines + source[statement.end() :]
