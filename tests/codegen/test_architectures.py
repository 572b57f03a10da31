"""What is planned stays within what the devices of an architecture have."""

from __future__ import annotations

from itertools import product

import pytest

from normgen.families.rows.launch.lower import Rows
from normgen.launching.call import Call
from normgen.launching.machine import architecture, usual_machine
from tests.codegen.norms import bound, packaged, schedule_rows

# The most blocks of a cluster, and threads of a multiprocessor, as the CUDA programming guide has them.
FACTS = [
    ("sm_80", 1, 2048),
    ("sm_89", 1, 1536),
    ("sm_90", 16, 2048),
    ("sm_120", 8, 1536),
]
NAMES = ("rmsnorm", "layernorm", "softmax", "dyt")
LENGTHS = (64, 4096, 20001, 131072, 300000)


@pytest.mark.parametrize(("arch", "cluster", "threads"), FACTS)
def test_clusters_are_as_large_as_they_may_be_and_no_more_threads_are_resident(
    arch: str, cluster: int, threads: int
) -> None:
    device, largest = usual_machine(arch), 1
    for name, direction, dtype, length in product(NAMES, ("forward", "backward"), ("bf16", "f32"), LENGTHS):
        record = getattr(packaged(name), direction)
        (kernel,) = record.strategies[0].kernels
        call = Call(bound(record, dtype, rest=4096, D=length), device, "")
        found = [schedule_rows(kernel, call)[0]]
        if length == 131072:
            found += Rows().space(kernel, call)
        for s in found:
            largest = max(largest, s.cluster)
            assert s.threads * max(1, s.blocks) <= threads, f"{name} {direction} {dtype} {length}: {s}"
    assert largest == cluster


@pytest.mark.parametrize("arch", ["sm_75", "sm_130"])
def test_of_an_unknown_architecture_the_least_is_taken_for_granted(arch: str) -> None:
    facts = architecture(arch)
    assert facts.max_cluster == (8 if int(arch[3:]) >= 90 else 1)
    assert facts.programmatic == (int(arch[3:]) >= 90)
    assert facts.threads_per_multiprocessor <= 1536
