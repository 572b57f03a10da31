"""How seldom the compiler spills registers of what is taken, on each architecture that it has registers of
its own for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import cycle, islice
from multiprocessing import get_context
from typing import NamedTuple

import pytest

from bench.calls import call_of, draw
from bench.drawn import KINDS, Drawn
from bench.registers import DEVICES, reported
from normgen.runtime.planning.choose import fastest

# The classes of calls whose reports the model of spills was fitted to.
TOLD = tuple(KINDS)
CALLS, SEED = 90, 41  # a seed that the model of spills has not seen
SELDOM, MOST = 1 / 20, 300  # of the kernels; bytes per thread


class Compiled(NamedTuple):
    """A kernel with what it takes, and the bytes that the compiler spills per thread."""

    text: str
    spilled: int


def compiled(drawn: Drawn, arch: str) -> list[Compiled]:
    """The kernels of a call. (In a process of its own.)"""
    direction, binding = call_of(drawn)
    taken = fastest(direction.record, binding, DEVICES[arch])
    found = []
    for each in taken.kernels:
        usage = reported(each, arch)
        assert usage is not None, each.text
        text = f"{each.kernel.name} on {arch} ({drawn.text}): {each.text}"
        found.append(Compiled(text, usage.spilled))
    return found


def every(calls: int, seed: int) -> Iterator[Compiled]:
    """The kernels of so many calls, each for one architecture."""
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        for found in pool.map(compiled, islice(draw(seed, TOLD), calls), islice(cycle(DEVICES), calls)):
            yield from found


@pytest.mark.thorough
@pytest.mark.nvrtc
def test_what_is_taken_seldom_spills() -> None:
    kernels = list(every(CALLS, SEED))
    spilling = [each for each in kernels if each.spilled]
    for each in spilling:
        print(f"{each.spilled} bytes: {each.text}")
    assert len(kernels) >= CALLS
    assert len(spilling) <= SELDOM * len(kernels), f"{len(spilling)} of {len(kernels)}"
    assert max((each.spilled for each in spilling), default=0) <= MOST
