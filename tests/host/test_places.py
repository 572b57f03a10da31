"""Where device functions put things: parts of moments on banks of their own, and the rows whose tags in the
cache clusters take back."""

from __future__ import annotations

import numpy as np
import pytest

from normgen.devices.host.executor import HostExecutor
from tests.host.harness import called, run, write

PLACES = """
using Fold = FoldedColumns<@LENGTH@, @N@, @TEAMS@, @FOLD@>;
extern "C" __global__ void places(int* into) {
    int k = 0;
    for (int piece = 0; piece < Fold::PIECES; ++piece) {
        for (int team = 0; team < @TEAMS@; ++team) {
            for (int vector = 0; vector < Fold::VECTORS; ++vector) {
                into[k++] = Fold::place(piece, team, vector);
            }
        }
    }
}
"""


@pytest.mark.parametrize(
    ("length", "vector", "teams", "fold"),
    [(64, 8, 64, 1), (32, 4, 64, 1), (320, 8, 8, 10), (512, 8, 10, 16), (96, 8, 21, 1), (7, 1, 9, 1)],
)
def test_lanes_side_by_side_merge_parts_of_different_banks(
    length: int, vector: int, teams: int, fold: int
) -> None:
    """A part is 16 bytes, and eight of them are all banks. Lanes that merge a group read the parts that
    thread groups side by side have of one vector."""
    names = {"LENGTH": length, "N": vector, "TEAMS": teams, "FOLD": fold}
    text = PLACES
    for name, value in names.items():
        text = text.replace(f"@{name}@", str(value))
    vectors = -(-length // vector)
    pieces = vector if fold == 1 else 2 if fold % vector else 1
    found = np.zeros(pieces * teams * vectors, np.int32)
    run(HostExecutor(), called(text), "places", 1, 1, write(found))
    assert sorted(found) == list(range(found.size)), "every part has a place, and the room is full"
    for of_vector in found.reshape(pieces, teams, vectors).transpose(0, 2, 1).reshape(-1, teams):
        for first in range(teams - 7):
            banks = set(of_vector[first : first + 8] % 8)
            assert len(banks) == 8 or vectors % 8, "of rows that are no whole number of them some share one"


BACK = """
extern "C" __global__ void back(int* into, int step, int rows) {
    using L2Hints = ClusterL2Hints<@UNTAGGED@>;
    for (int unit = 0; unit < step; ++unit) {
        for (int row = L2Hints::first(unit, step, rows); row < rows - @UNTAGGED@; row += step) {
            into[row] += row % step == unit ? 1 : 100;
        }
    }
}
"""


@pytest.mark.parametrize(
    ("kept", "step", "rows"), [(60, 7, 1024), (1, 3, 5), (4, 16, 17), (5, 1, 21), (3, 8, 64)]
)
def test_clusters_demote_as_many_rows_as_are_untagged(kept: int, step: int, rows: int) -> None:
    """Each of the rows before the last ones once, by the cluster that read it."""
    found = np.zeros(rows, np.int32)
    run(HostExecutor(), called(BACK.replace("@UNTAGGED@", str(kept))), "back", 1, 1, write(found), step, rows)
    assert list(np.flatnonzero(found)) == list(range(rows - 2 * kept, rows - kept))
    assert set(found[found > 0]) == {1}


@pytest.mark.parametrize(("kept", "step", "rows"), [(60, 7, 240), (1, 3, 4), (5, 8, 3)])
def test_clusters_take_nothing_back_of_rows_that_the_cache_may_hold(kept: int, step: int, rows: int) -> None:
    found = np.zeros(rows, np.int32)
    run(HostExecutor(), called(BACK.replace("@UNTAGGED@", str(kept))), "back", 1, 1, write(found), step, rows)
    assert not found.any()


LAST = """
extern "C" __global__ void last(int* into) {
    const L2Hints<@UNTAGGED@, 32, 32> hints;
    if (threadIdx.x == 0) into[blockIdx.x] = hints.last;
}
"""


@pytest.mark.parametrize(("kept", "blocks", "tagged"), [(5, 21, True), (5, 20, False), (5, 3, False)])
def test_the_last_blocks_demote_lines_where_there_are_any(kept: int, blocks: int, tagged: bool) -> None:
    found = np.zeros(blocks, np.int32)
    run(HostExecutor(), called(LAST.replace("@UNTAGGED@", str(kept))), "last", blocks, 32, write(found))
    assert list(np.flatnonzero(found)) == (list(range(blocks - kept, blocks)) if tagged else [])
