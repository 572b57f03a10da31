"""Where device functions put things: parts of moments on banks of their own, and the rows whose tags in the
cache clusters take back."""

from __future__ import annotations

import numpy as np
import pytest

from normgen.devices.host.executor import HostExecutor
from tests.host.harness import run, write

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
    [(64, 8, 64, 1), (320, 8, 8, 10), (512, 8, 10, 16), (7, 1, 9, 1)],
)
def test_lanes_side_by_side_merge_parts_of_different_banks(
    length: int, vector: int, teams: int, fold: int
) -> None:
    """A part is 16 bytes, and eight of them are all banks. Lanes that merge a group read the parts that
    thread groups side by side have of one vector."""
    text = PLACES.replace("@LENGTH@", str(length)).replace("@N@", str(vector))
    text = text.replace("@TEAMS@", str(teams)).replace("@FOLD@", str(fold))
    vectors = -(-length // vector)
    pieces = vector if fold == 1 else 2 if fold % vector else 1
    found = np.zeros(pieces * teams * vectors, np.int32)
    run(HostExecutor(), text, "places", 1, 1, write(found))
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


@pytest.mark.parametrize("kept", [1, 60])
def test_clusters_demote_as_many_rows_as_are_untagged(kept: int) -> None:
    """Each of the rows before the last ones once, by the cluster that read it; none of rows that the cache
    may hold."""
    text = BACK.replace("@UNTAGGED@", str(kept))
    for step, rows in ((7, 1024), (3, 5), (16, 4 * kept + 1), (1, 21 * kept), (3, 4 * kept), (8, kept)):
        found = np.zeros(rows, np.int32)
        run(HostExecutor(), text, "back", 1, 1, write(found), step, rows)
        demoted = range(rows - 2 * kept, rows - kept) if rows > 4 * kept else ()
        assert list(np.flatnonzero(found)) == list(demoted), (step, rows)
        assert set(found[found > 0]) <= {1}


LAST = """
extern "C" __global__ void last(int* into) {
    const L2Hints<@UNTAGGED@, 32, 32> hints;
    if (threadIdx.x == 0) into[blockIdx.x] = hints.last;
}
"""


def test_the_last_blocks_demote_lines_where_there_are_any() -> None:
    text = LAST.replace("@UNTAGGED@", "5")
    for blocks, tagged in ((21, range(16, 21)), (20, ()), (3, ())):
        found = np.zeros(blocks, np.int32)
        run(HostExecutor(), text, "last", blocks, 32, write(found))
        assert list(np.flatnonzero(found)) == list(tagged)
