"""Rows of which no element needs another: who has them, what is shared, how many are under way together."""

import re
from dataclasses import replace
from functools import partial

import pytest

import normgen
from normgen.launching.machine import HOST_MACHINE, USUAL_MACHINE
from normgen.measure.norms import contiguous_binding
from normgen.package.direction import directions
from normgen.runtime.norm import Norm
from normgen.runtime.planning.choose import plan_launches
from normgen.verify.cases import Case, element_types
from tests.sampling import paired
from tests.verify.subjects import BF16, F32, bundled_subject, prove


@pytest.mark.parametrize(("dtypes", "team"), [(F32, 80), (BF16, 40)], ids=["f32", "bf16"])
def test_sums_over_rows_in_teams_that_are_not_whole_warps(dtypes, team):
    """320 channels last in 80 or 40 threads: moments forward, sums backward."""
    found = bundled_subject("batchnorm_channels_last")
    record = found.norm.package.forward
    binding = contiguous_binding(directions(found.norm.package)[0], {"C": 320, "...": 77}, dtypes.name)
    launches = plan_launches(record, binding, HOST_MACHINE).launches
    assert any(f"TEAM = {team};" in launch.source for launch in launches)
    prove(found, Case({"C": 320, "...": 77}, (77,), element_types(found.definition, dtypes), dtypes.name))


def test_a_block_stays_where_rows_share_what_a_part_of_the_axes_has():
    package = normgen.load("groupnorm_channels_last", groups=8).package
    forward, _ = directions(package)
    binding = contiguous_binding(forward, {"B": 2, "...": 64, "G": 8, "C": 8}, "f32")
    plans = [
        plan_launches(forward.record, binding, USUAL_MACHINE, strategy.name)
        for strategy in forward.record.strategies
    ]
    last = [plan.launches[-1] for plan in plans]
    assert any(launch.entry.endswith("_batch") and "segment" in launch.source for launch in last)


def test_what_neighbours_have_of_their_own_is_loaded_before_the_rows():
    package = normgen.load("groupnorm_channels_last", groups=64).package
    forward, _ = directions(package)
    binding = contiguous_binding(forward, {"B": 8, "...": 65536, "G": 64, "C": 1}, "bf16")
    folded = plan_launches(forward.record, binding, USUAL_MACHINE, "folded")
    apply = folded.launches[-1].source
    before, rows = apply.split("extern")[1].split("for (index_t first")
    assert apply.count("load_scalar(t3_ptr") == before.count("load_scalar(t3_ptr") == 1
    assert "t3_parts[item * EACH_T3 + i % EACH_T3]" in rows


def test_so_it_is_where_rows_are_summed_in_a_pipeline():
    package = normgen.load("groupnorm_channels_last", groups=32).package
    _, backward = directions(package)
    binding = contiguous_binding(backward, {"B": 8, "...": 4096, "G": 32, "C": 10}, "bf16")
    statistics = plan_launches(backward.record, binding, USUAL_MACHINE, "split").launches[0]
    assert statistics.entry.endswith("statistics_pipeline")
    source = re.sub(r"\(\s+", "(", statistics.source)
    before, rows, *_ = source.split("extern")[-1].split("for (index_t first")
    assert before.count("load_scalar(mu_ptr") == 1 and "load_scalar(mu_ptr" not in rows
    assert "mu_parts[item * EACH_MU + i % EACH_MU]" in rows


@pytest.mark.parametrize(("dtypes", "sizes"), paired([F32, BF16], ((8, 1), (4, 6), (2, 8))))
def test_neighbours_have_the_statistics_of_their_own_groups(sizes, dtypes):
    groups, channels = sizes
    found = bundled_subject("groupnorm_channels_last", (("groups", groups),))
    by_columns = Norm(found.norm.package, planner=partial(plan_launches, strategy="columns"))
    extents = {"B": 2, "...": 70, "G": groups, "C": channels}
    binding = contiguous_binding(directions(found.norm.package)[0], extents, dtypes.name)
    plan = plan_launches(found.norm.package.forward, binding, HOST_MACHINE, "columns")
    assert plan.launches[-1].entry.endswith("_batch")
    case = Case(extents, (70,), element_types(found.definition, dtypes), dtypes.name)
    prove(replace(found, norm=by_columns), case, directions=("forward",))
