"""Every barrier, fence and wait of the sound kernels is taken out in turn: the checker reports each loss."""

from __future__ import annotations

import pytest

from normgen.runtime.host import HostExecutor, HostFault
from tests.host.mutation import barrier_mutants, barrier_probes
from tests.host.planted import SOUND

MUTANTS = [
    pytest.param(name, line, mutant, id=f"{name}:{line}")
    for name, (source, _) in SOUND.items()
    for line, mutant in barrier_mutants(source)
]


def test_mutants_are_found_and_keep_the_lines() -> None:
    assert len(MUTANTS) >= 16
    for source, _ in SOUND.values():
        for line, mutant in barrier_mutants(source):
            before, after = source.splitlines(), mutant.splitlines()
            assert len(before) == len(after)
            assert [i for i, pair in enumerate(zip(before, after, strict=True), 1) if pair[0] != pair[1]] == [
                line
            ]
    assert not list(barrier_mutants(SOUND["accumulate"][0]))


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize(("name", "line", "mutant"), MUTANTS)
def test_a_missing_barrier_is_reported(name: str, line: int, mutant: str, order: int) -> None:
    if name == "lock" and order:
        pytest.skip("its blocks wait for each other in ascending order")
    with pytest.raises(HostFault):
        SOUND[name][1](HostExecutor(True, order, seed=9, maximum_steps=10**6), mutant)


def test_a_probe_tells_whether_a_barrier_runs() -> None:
    source, call = SOUND["exchange"]
    unused = "__device__ void unused() {\n  __syncthreads();\n}\n"
    probes = list(barrier_probes(unused + source))
    assert [line for line, _ in probes] == [line for line, _ in barrier_mutants(unused + source)]
    (line, never), *others = probes
    assert line == 2
    call(HostExecutor(True), never)
    for line, probe in others:
        with pytest.raises(HostFault, match=rf"__trap\(\) at line {line}\n"):
            call(HostExecutor(True), probe)
