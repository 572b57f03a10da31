"""Every barrier, fence and wait of the sound kernels is taken out in turn: the checker reports each loss."""

from __future__ import annotations

import pytest

from normgen.devices.host.executor import HostFault
from tests.host.mutation import Altered, alterable, barrier_lines
from tests.host.sound import SOUND

MUTANTS = [
    pytest.param(name, number, id=f"{name}:{line}")
    for name, sound in SOUND.items()
    for number, line in enumerate(barrier_lines(sound.source), 1)
]


def test_barriers_are_found_and_lines_kept() -> None:
    assert len(MUTANTS) >= 16
    for source in (sound.source for sound in SOUND.values()):
        before, after = source.splitlines(), alterable(source).split("#line 1\n")[1].splitlines()
        assert len(before) == len(after)
        changed = [i for i, pair in enumerate(zip(before, after, strict=True), 1) if pair[0] != pair[1]]
        assert changed == sorted(set(barrier_lines(source)))
    assert not barrier_lines(SOUND["accumulate"].source)


@pytest.mark.parametrize(("name", "number"), MUTANTS)
def test_a_missing_barrier_is_reported(name: str, number: int) -> None:
    source = SOUND[name].source
    SOUND[name].run(Altered(text=source), source)  # with all of them it is sound
    for order in (0,) if name == "lock" else (0, 1, 2):  # whose blocks wait for each other in order
        with pytest.raises(HostFault):
            SOUND[name].run(
                Altered(order=order, text=source, without=number, seed=9, maximum_seconds=0.2), source
            )


def test_a_superfluous_barrier_is_told_from_one_that_does_not_run() -> None:
    call = SOUND["exchange"].run
    twice = SOUND["exchange"].source.replace("__syncthreads();", "__syncthreads(); __syncthreads();", 1)
    text = f"__device__ void unused() {{\n  __syncthreads();\n}}\n{twice}"
    lines = barrier_lines(text)
    call(Altered(text=text, without=1), text)
    call(Altered(text=text, trap=1), text)
    spare = [number for number, line in enumerate(lines, 1) if lines.count(line) == 2]
    assert len(spare) == 2
    for number in spare:
        call(Altered(text=text, without=number), text)
    for number, line in enumerate(lines[1:], 2):
        with pytest.raises(HostFault, match=rf"__trap\(\) at line {line}\n"):
            call(Altered(text=text, trap=number), text)
