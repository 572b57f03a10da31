"""Rows of which no element needs another: who has them, what is shared, how many are under way together."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normgen.launching.machine import HOST_MACHINE
from normgen.runtime.planning.choose import plan_launches
from tests.codegen.holding import case, fresh, subject
from tests.codegen.norms import H200, bound
from tests.codegen.ways import first, of_form, offered, shared
from tests.planning.judged import DEVICES
from tests.verify.subjects import prove


def forty_threads(shape, device):
    """Pipelines of which 40 threads have a row."""
    return (each for each in offered(shape, device, ("pipeline",)) if each.team == 40)


def test_sums_over_rows_in_teams_that_are_not_whole_warps():
    """320 channels last in 40 threads: moments forward, sums backward."""
    found = fresh("batchnorm_channels_last", 0, "split")
    package = found.norm.package
    with first(forty_threads):
        for record in (package.forward, package.backward):
            binding = bound(record, "bf16", C=320, rest=77)
            launches = plan_launches(record, binding, HOST_MACHINE, "split").launches
            assert any("TEAM = 40;" in launch.source for launch in launches)
        prove(found, case(found, "bf16", C=320, rest=77))


def launches(form, groups, direction, strategy, **extents):
    record = getattr(subject("groupnorm_channels_last", groups).norm.package, direction)
    with first(of_form(form)):
        return plan_launches(record, bound(record, "bf16", G=groups, **extents), H200, strategy).launches


def test_a_block_stays_where_rows_share_what_a_part_of_the_axes_has():
    last = launches("batch", 8, "forward", "columns", B=2, rest=64, C=8)[-1]
    assert last.entry.endswith("_batch") and "segment" in last.source


def test_what_neighbours_have_of_their_own_is_loaded_before_the_rows():
    apply = launches("batch", 64, "forward", "folded", B=8, rest=65536, C=1)[-1].source
    before, rows = apply.split("extern")[1].split("for (index_t first")
    assert apply.count("load_scalar(t3_ptr") == before.count("load_scalar(t3_ptr") == 1
    assert "t3_parts[item * VEC + i]" in rows


def test_so_it_is_where_rows_are_summed_in_a_pipeline():
    statistics = launches("pipeline", 32, "backward", "split", B=8, rest=4096, C=10)[0]
    assert statistics.entry.endswith("statistics_pipeline")
    source = re.sub(r"\(\s+", "(", statistics.source)
    before, rows, *_ = source.split("extern")[-1].split("for (index_t first")
    assert before.count("load_scalar(mu_ptr") == 1 and "load_scalar(mu_ptr" not in rows
    assert "mu_parts[item * VEC + i]" in rows


@pytest.mark.parametrize(("groups", "channels", "dtype"), [(8, 1, "f32"), (4, 6, "bf16")])
def test_neighbours_have_the_statistics_of_their_own_groups(groups, channels, dtype):
    found = fresh("groupnorm_channels_last", groups, "columns")
    extents = {"B": 2, "rest": 70, "G": groups, "C": channels}
    record = found.norm.package.forward
    with first(of_form("batch")):
        plan = plan_launches(record, bound(record, dtype, **extents), HOST_MACHINE, "columns")
        assert plan.launches[-1].entry.endswith("_batch")
        prove(found, case(found, dtype, **extents), directions=("forward",))


@pytest.mark.parametrize(
    ("name", "strategy", "sizes", "kernels"),
    [
        ("dyt", "fused", {"rest": 7, "D": 3001}, 1),
        ("batchnorm", "split", {"B": 5, "C": 3, "rest": 1300}, 2),
    ],
)
def test_blocks_share_rows_without_exchanges(name, strategy, sizes, kernels):
    """Each takes a share of every row; of what is summed each leaves a partial. Not all threads have a vector
    in the last round."""
    found = fresh(name, 0, strategy)
    with first(shared(3)):
        record = found.norm.package.forward
        planned = plan_launches(record, bound(record, "bf16", **sizes), H200, strategy).launches
        shares = [each for each in planned if each.entry.endswith("_multipass")]
        assert len(shares) == kernels and all("MEMBERS = 3;" in each.source for each in shares)
        prove(found, case(found, "bf16", **sizes), directions=("forward",))


@settings(max_examples=40, deadline=None)
@given(
    norm=st.sampled_from((("dyt", "fused"), ("batchnorm", "split"))),
    length=st.integers(1, 64) | st.integers(1, 1 << 24),
    rows=st.sampled_from((1, 3, 5000)),
    dtype=st.sampled_from(("bf16", "f32")),
    device=st.sampled_from(sorted(DEVICES)),
)
def test_rows_without_exchanges_may_have_any_length(norm, length, rows, dtype, device):
    name, strategy = norm
    record = subject(name, strategy=strategy).norm.package.forward
    sizes = {"D": length, "rest": rows} if name == "dyt" else {"B": rows, "C": 3, "rest": length}
    plan = plan_launches(record, bound(record, dtype, **sizes), DEVICES[device], strategy)
    assert all(max(launch.grid) < 2**31 for launch in plan.launches)
