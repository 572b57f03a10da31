"""Every barrier, fence and wait of the templates and the device functions is needed, and each order of an
atomic: without it the checked run reports a fault.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from math import prod
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from normgen.devices.host.executor import HostExecutor, HostFault
from normgen.families.columns.launch import family as columns
from normgen.families.columns.launch.schedule import ColumnSchedule
from normgen.families.columns.launch.space import starts
from normgen.families.resident.launch import residence
from normgen.families.rows.compile.plan import plan_folded, plan_in_pieces, plan_rows
from normgen.families.rows.launch.forms import FORMS
from normgen.families.rows.launch.schedule import RowSchedule, RowShape, warps
from normgen.families.rows.launch.space import cooperative, row_tiles
from normgen.launching import pick
from normgen.launching.machine import HOST_MACHINE, WARP, Machine
from normgen.package.records import Package
from normgen.runtime.norm import Norm
from normgen.runtime.planning.choose import plan_launches
from tests.codegen.alone import subject
from tests.codegen.norms import bulk_pair, package_of, packaged
from tests.codegen.residing import forgetful
from tests.codegen.test_columns import SCALED
from tests.codegen.ways import first, of_form, pipeline, shared
from tests.host.mutation import Altered, barrier_lines
from tests.sampling import sampled

USUAL = HOST_MACHINE
# Few blocks, so that each of them walks several rows and uses its scratch again.
ONE = replace(HOST_MACHINE, multiprocessors=1)
# So many that no warp adds up alone what they leave.
MANY = replace(HOST_MACHINE, multiprocessors=100)

# Two accumulators of each kind, so that one uses the scratch after the other.
WIDE = """norm accumulators
input x[..., D]
output a[D]: f32 = mean[...]((x - mean[...](x))^2)
output b[D]: f32 = mean[...]((x^2 - mean[...](x^2))^2)
output c[D]: f32 = max[...](x) + min[...](x)
"""
NARROW = WIDE.replace("[D]:", "[]:").replace("[...]", "[..., D]")
# The same of rows that share an operand.
SHARING = NARROW.replace("input x[..., D]", "input x[..., D]\nparam w[D]").replace("x^2", "x * w")
# Rows of frames, for blocks that exchange through memory.
FRAMES = """norm frames
input x[D, ...]
save rms[D] = sqrt(mean[...](x^2))
output y[D, ...] = x / rms
"""
CENTRED = """norm centred
input x[D, ...]
save mu[D] = mean[...](x)
save rstd[D] = rsqrt(mean[...]((x - mu)^2) + 0.01)
output y[D, ...] = (x - mu) * rstd
"""
# Moments of neighbours, which a block merges.
FOLDED = """norm folded
axis G = 6
input x[..., (G D)]
output a[G]: f32 = mean[D, ...]((x - mean[D, ...](x))^2)
output b[G]: f32 = mean[D, ...]((x^2 - mean[D, ...](x^2))^2)
"""
# Rows in pieces, which are added up for an accumulator that needs all of the row.
PIECES = """norm pieces
axis C = 3
input x[..., (C D)]
save rstd[C] = rsqrt(mean[..., D](x^2) + 0.01)
output y[..., (C D)] = x * rstd
output total[(C D)]: f32 = sum[...](x)
output bounded[(C D)]: f32 = sum[...](tanh(x * rstd))
"""
# Moments that blocks keep their rows for.
RESIDENT = """norm resident
axis B = 2
axis G = 3
input x[B, ..., (G D)]
save mu[B, G] = mean[D, ...](x)
save rstd[B, G] = rsqrt(mean[D, ...]((x - mu)^2) + 0.01)
output y[B, ..., (G D)] = (x - mu) * rstd
"""
# The same with gains, whose backward is a kernel of sums.
GAINS = RESIDENT.replace("save mu", "param w[(G D)] = 1\nsave mu").replace("* rstd\n", "* rstd * w\n")
# Rows of which blocks share each, and add up several.
WALKED = """norm walked
input x[..., D]
save mu[...] = mean[D](x)
save rstd[...] = rsqrt(mean[D]((x - mu)^2) + 0.01)
output y[..., D] = (x - mu) * rstd
output total[D]: f32 = sum[...]((x - mu) * rstd)
"""
# Windows over planes of odd lengths, which are walked pixel by pixel.
WINDOWED = """norm windowed
input x[D, ...]
output y[D, ...] = x * (1 + sum[D: -2 .. 2](x^2))^-0.75
"""
# The gradient of w takes two sums over rows, so that one second-stage block uses its scratch twice.
TWO_SUMS = """norm two_sums "A sum of a gain and its square."
input x[..., D]
param w[D]
output y[..., D] = x * w + w^2
"""


# Forwards that are one kernel of the rows family, by the plan of which it is.
PLANNED = dict.fromkeys((WIDE, NARROW, SHARING, FRAMES, CENTRED, WALKED), plan_rows)
PLANNED |= {FOLDED: plan_folded, PIECES: plan_in_pieces}


@cache
def package_for(text: str) -> Package:
    if text in PLANNED:
        return subject(text, PLANNED[text]).norm.package
    return package_of(text) if "\n" in text else packaged(text)


# Blocks of so many threads alone, about so many for a segment, of so many on a multiprocessor: three, whose
# thread groups have a row in registers and others in shared memory; and two that have room for a few rows
# only, and read the others twice.
SMALL_RESIDENCE = {"_THREADS": (64,), "_MEMBERS": (3,), "_BLOCKS": (16,), "FEWER": (0,), "DEPTH_BYTES": 96}
SMALL_ROOM = HOST_MACHINE.shared_per_block - 6000
TWICE = {"_THREADS": (64,), "_MEMBERS": (2,), "_BLOCKS": (), "DEPTH": 1, "STATIC_SHARED": SMALL_ROOM}


def refilled(shape: RowShape) -> RowSchedule:
    """Pairs whose pipeline holds a row and a half."""
    made = pipeline(shape, 64, 2, reload=True, stages=1)
    return replace(made, bulk=False, places=made.items * 3 // 2)


def word_aligned(shape: RowShape) -> RowSchedule:
    """Two rows a block, three vectors a thread."""
    team, vector = warps(-(-shape.length // shape.realigned), 3), shape.realigned
    return RowSchedule("word_aligned", vector, team, 2, 3, 1, reload=True, realigned=True, stages=2)


# Schedules that are otherwise not the first choice: pairs of blocks, three that exchange through memory, four
# lanes a row.
FIRST: dict[str, Callable[[RowShape], RowSchedule]] = {
    "again": lambda shape: pipeline(shape, 64, 2, reload=True),
    "refilled": refilled,
    "bulk": lambda shape: bulk_pair(shape, HOST_MACHINE)[0],
    "words": word_aligned,
    "tile": lambda shape: next(s for s in row_tiles(shape) if s.team == 4),
    "cooperative": lambda shape: cooperative(shape, 64, 1, 1),
    "shared": lambda shape: next(iter(shared(3)(shape, HOST_MACHINE))),
}


@dataclass(frozen=True)
class Case:
    """A kernel of a bundled norm or of a text, and sizes at which all that it may have to wait for happens.

    `runs`: how many of the barriers and waits of its text are needed, `spare`: how many only other kernels
    need that call the same device functions. `over`: a result and the operand in whose place it goes. `wrt`:
    whose gradients are wanted. `first`: the schedule that it has.
    `twice`: of a resident kernel, whether it reads some rows twice. `ahead`: of columns, whether the next
    tile is on its way.
    """

    norm: str
    direction: str
    form: str
    rows: int
    length: int
    device: Machine
    runs: int
    over: tuple[str, str] | None = None
    spare: int = 0
    wrt: tuple[str, ...] = ()
    first: str = ""
    twice: bool = False
    ahead: bool = False


CASES = {
    "registers, realigned, one warp": Case(
        "layernorm", "forward", "registers", 9, 767, ONE, 1, ("y", "x"), first="one warp"
    ),
    "registers, realigned, no exchange": Case(
        "dyt", "forward", "registers", 9, 1027, ONE, 1, ("y", "x"), first="realigned"
    ),
    "registers, pieces that are added up": Case(PIECES, "forward", "registers", 40, 24, USUAL, 3),
    "stream": Case("layernorm", "forward", "multipass", 3, 600, ONE, 1, first="of its form"),
    "stream, realigned": Case(
        "layernorm", "forward", "multipass", 5, 1027, ONE, 2, ("y", "x"), first="realigned"
    ),
    "stream, shared": Case(WALKED, "forward", "multipass", 5, 600, ONE, 2, first="shared"),
    "stream, no exchange": Case(NARROW, "forward", "multipass", 3, 5000, ONE, 3, first="of its form"),
    "stream, no exchange, shared": Case(NARROW, "forward", "multipass", 3, 5000, ONE, 3, first="shared"),
    "batch": Case(SHARING, "forward", "batch", 40, 600, ONE, 4, first="of its form"),
    "pipeline, realigned": Case("rmsnorm", "backward", "pipeline", 12, 4001, ONE, 9),
    "pipeline, teams within warps": Case("layernorm", "backward", "pipeline", 100, 64, ONE, 6),
    # A norm without exchanges: after one between warps nobody still reads the pipeline when a sum is
    # gathered.
    "pipeline, teams of warps": Case("dyt", "backward", "pipeline", 40, 600, ONE, 8),
    "pipeline, cluster, re-read": Case("rmsnorm", "backward", "pipeline", 6, 4104, ONE, 9, first="again"),
    "pipeline, cluster, refilled": Case("rmsnorm", "backward", "pipeline", 6, 4096, ONE, 9, first="refilled"),
    "pipeline, cluster, bulk, no exchange": Case(
        "rmsnorm", "backward", "pipeline", 10, 4096, USUAL, 7, wrt=("w",), first="bulk"
    ),
    "pipeline, accumulators": Case(WIDE, "forward", "pipeline", 100, 40, ONE, 9),
    "pipeline, folded": Case(FOLDED, "forward", "pipeline", 7, 302, ONE, 5),
    "pipeline, cluster, bulk": Case("layernorm", "backward", "pipeline", 8, 4096, USUAL, 8, first="bulk"),
    "word_aligned": Case("add_rmsnorm", "backward", "word_aligned", 24, 259, ONE, 10, first="words"),
    "row_tile": Case("add_rmsnorm", "forward", "row_tile", 70, 35, ONE, 4, first="tile"),
    "second_stage, several warps": Case(NARROW, "forward", "second_stage", 800, 32, MANY, 3),
    "second_stage, two sums": Case(TWO_SUMS, "backward", "second_stage", 40, 64, USUAL, 2),
    "cooperative": Case(FRAMES, "forward", "cooperative", 1536, 2, USUAL, 9, first="cooperative"),
    "cooperative, moments": Case(CENTRED, "forward", "cooperative", 1536, 2, USUAL, 9, first="cooperative"),
    "resident, read twice": Case(
        RESIDENT, "forward", "resident", 200, 8, USUAL, 14, ("y", "x"), 1, twice=True
    ),
    "resident sums": Case(GAINS, "backward", "resident", 90, 8, USUAL, 16, ("dx", "x"), spare=2),
    "windows, pixels": Case(WINDOWED, "forward", "pixels", 253, 40, USUAL, 1),
    "columns": Case("softmax2d", "forward", "registers", 33, 40, USUAL, 2),
    "columns, moments": Case("layernorm2d", "forward", "registers", 33, 40, USUAL, 2),
    "columns, wide sums": Case("layernorm2d", "backward", "registers", 700, 40, ONE, 2),
    "columns, narrow sums": Case(SCALED, "backward", "registers", 700, 40, ONE, 4),
    "columns, wide sums, next tile": Case(
        "layernorm2d", "backward", "registers", 700, 40, ONE, 4, ahead=True
    ),
    "columns, narrow sums, next tile": Case(SCALED, "backward", "registers", 700, 40, ONE, 6, ahead=True),
    "columns that stream": Case("softmax2d", "forward", "multipass", 2, 20000, USUAL, 2),
}


def call(case: Case, executor: HostExecutor) -> None:
    package = package_for(case.norm)
    record = getattr(package, case.direction)
    lengths = {"B": 1, **dict.fromkeys(("...", "H"), case.rows), **dict.fromkeys("CD", case.length), "W": 1}
    lengths |= {axis.name: axis.extent for axis in package.axes if axis.extent is not None}
    random = np.random.default_rng(5)
    arrays = {}
    for tensor in record.reads:
        shape = tuple(prod(lengths[axis] for axis in dim) for dim in tensor.dims)
        arrays[tensor.name] = random.uniform(0.5, 1.5, shape).astype(np.float32)
    out = {case.over[0]: arrays[case.over[1]]} if case.over else None

    def asked(shape: RowShape, device: Machine) -> list[RowSchedule]:
        every = of_form(case.form)(shape, device) if case.form in FORMS else ()
        match case.first:
            case "":
                return []
            case "of its form":
                return list(every)
            case "one warp":
                return [each for each in every if each.realigned and each.team == WARP]
            case "realigned":
                return [each for each in every if each.realigned]
            case name:
                return [FIRST[name](shape)]

    usual = columns.pick

    def of_columns(*given: Any) -> ColumnSchedule:
        found = starts(columns.shape_of(*given[1:3]))
        like = (s for s in found if s.form == case.form and s.team > 1 and s.ahead == case.ahead)
        return next(like, None) or usual(*given)

    kept = patch.multiple(residence, **(TWICE if case.twice else SMALL_RESIDENCE))
    planner = partial(plan_launches, strategy="resident" if case.form == "resident" else None)
    anew = patch.object(pick, "predicted", forgetful(pick.predicted))
    with anew, first(asked), patch.object(columns, "pick", of_columns), kept:
        wanted = {"wrt": case.wrt} if case.wrt else {}
        getattr(Norm(package, planner=planner).on(executor), case.direction)(**arrays, out=out, **wanted)


@cache
def text_of(case: Case) -> str:
    """The case's kernel as it is launched; the sound one is not blamed."""
    executor = Altered(case.device, 2)
    call(case, executor)
    return next(text for entry, text in executor.texts.items() if entry.endswith(f"_{case.form}"))


def faulty(case: Case, order: int, **altered: str | int) -> bool:
    """Whether the kernel is reported, altered so."""
    try:
        call(case, Altered(case.device, order, text_of(case), **altered))
    except HostFault:
        return True
    return False


@pytest.mark.parametrize("name", sampled(CASES, *range(0, len(CASES), 2)))
def test_a_missing_barrier_is_reported(name: str) -> None:
    case = CASES[name]
    reported, superfluous = [], []
    for number, line in enumerate(barrier_lines(text_of(case)), 1):
        if faulty(case, 0, without=number):
            reported.append(line)
        elif faulty(case, 0, trap=number):  # else it is not reached
            superfluous.append(line)
    assert (len(reported), len(superfluous)) == (case.runs, case.spare), (reported, superfluous)
