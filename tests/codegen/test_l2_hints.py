"""Rows of which the second-level cache is told to keep what is read: which they are, that the last blocks
demote the lines of those before them, and that results have the same bits without.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from normgen.launching.launch import LaunchPlan
from normgen.launching.machine import HOST_MACHINE, Machine
from normgen.runtime.planning.choose import alternatives
from tests.codegen.norms import H200, bound, packaged, planned
from tests.codegen.ways import Offers, first, of_form
from tests.host.mutation import Altered
from tests.verify.subjects import bundled_subject, same_bits


def kept(plan: LaunchPlan) -> list[int]:
    """How many blocks demote lines, of each kernel that may have them: if there are more than four times
    as many, which kernels look at by themselves."""
    found = [re.search(r"constexpr int UNTAGGED = (\d+);", launch.source) for launch in plan.launches]
    return [int(each.group(1)) for each in found if each]


def tagged(name: str, direction: str, dtype: str, device: Machine, **extents: int) -> int:
    """How many blocks demote lines in a call, as its schedule is described."""
    record = getattr(packaged(name), direction)
    (way,) = alternatives(record, bound(record, dtype, **extents), device)
    lines = "\n".join(line for each in way.kernels for line in each.lines)
    found = re.search(r"loads are tagged evict_last, except in the last (\d+) ", lines)
    return int(found.group(1)) if found else 0


@pytest.mark.parametrize(
    ("name", "direction", "dtype", "rows", "columns", "form", "blocks"),
    [
        # blocks, or clusters that walk: half of a cache
        ("rmsnorm", "forward", "f32", 32768, 4096, "registers", 1920),
        ("rmsnorm", "forward", "bf16", 1024, 262144, "pipeline", 60),
        ("rmsnorm", "forward", "f32", 7680, 4096, "registers", 0),  # the cache holds all
        ("softmax", "backward", "f32", 16384, 8192, "registers", 0),  # writes less than it reads
    ],
)
def test_rows_that_the_cache_cannot_hold_are_marked(
    name: str, direction: str, dtype: str, rows: int, columns: int, form: str, blocks: int
) -> None:
    unknown = replace(H200, cache=0)  # a device whose cache is not known is told nothing
    with first(of_form(form, teams=1, bulk=form == "pipeline")):
        assert tagged(name, direction, dtype, H200, rest=rows, D=columns) == blocks
        assert not blocks or kept(planned(name, direction, dtype, H200, rest=rows, D=columns)) == [blocks]
        assert not any(kept(planned(name, direction, dtype, unknown, rest=rows, D=columns)))


SIDE_BY_SIDE = of_form("registers", teams=16)


# Rows, columns of 4 bytes: of whole blocks, of which the last has few, that begin anywhere, and in clusters,
# also of clusters that walk them.
@pytest.mark.parametrize(
    ("name", "rows", "columns", "offers"),
    [
        ("rmsnorm", 203, 32, SIDE_BY_SIDE),
        ("add_rmsnorm", 67, 1003, of_form("registers", cluster=1)),
        ("softmax", 9, 20000, of_form("registers", cluster=2)),
        ("layernorm", 11, 70000, of_form("pipeline", cluster=8, bulk=True)),
        ("layernorm", 23, 65536, of_form("pipeline", cluster=4, bulk=True)),
    ],
    ids=["side by side", "anywhere", "in clusters", "part of a slice", "pipeline"],
)
def test_tags_change_no_bits_and_rows_are_demoted(name: str, rows: int, columns: int, offers: Offers) -> None:
    found = bundled_subject(name)
    drawn = np.random.default_rng(rows).standard_normal((2, rows, columns)).astype(np.float32)
    operands = {"x": drawn[0]} | ({"residual": drawn[1]} if name == "add_rmsnorm" else {})
    if name != "softmax":
        operands["w"] = drawn[1, 0]
    if name == "layernorm":
        operands["b"] = drawn[1, 1]
    results = []
    for cache, tags in ((1 << 30, False), (columns, True)):
        executor = Altered(replace(HOST_MACHINE, cache=cache))
        with first(offers):
            plan = planned(name, "forward", "f32", executor.device, rest=rows, D=columns)
            assert (tagged(name, "forward", "f32", executor.device, rest=rows, D=columns) > 0) == tags
            assert all(kept(plan))
            results.append(found.norm.on(executor).forward(**operands).y)
    assert same_bits(*results)


def test_too_few_rows_for_tags_demote_none_outside_memory() -> None:
    """A kernel for many rows is run with few: what it would demote lies before its first row."""
    rows, columns = 203, 32
    x = np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32)
    executor = Altered(replace(HOST_MACHINE, cache=6 * rows * columns))
    with first(SIDE_BY_SIDE):
        plan = planned("rmsnorm", "forward", "f32", executor.device, rest=rows, D=columns)
        blocks, _, _ = plan.launches[0].grid
        assert blocks / 2 < kept(plan)[0] < blocks
        bundled_subject("rmsnorm").norm.on(executor).forward(x=x, w=x[0])
