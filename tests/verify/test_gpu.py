"""The same checks on a GPU, where there is one: every spec of rows, all sets of element types, the lengths
of real models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest

from normgen.devices.executors import executor_of
from normgen.errors import MachineError
from normgen.runtime.norm import Norm
from normgen.runtime.planning.choose import plan_launches
from normgen.verify.cases import DTYPE_SETS, Case, DtypeSet, make_case
from normgen.verify.draw import draw, scalar_values
from normgen.verify.expected import Expectation, Subject
from normgen.verify.kernels import run_case
from normgen.verify.memory import cuda
from tests.sampling import paired
from tests.verify.subjects import bundled_subject, case_of
from tests.verify.test_specs import COMBINATIONS, check

pytestmark = pytest.mark.gpu

ROWWISE = "adaln_modulate add_rmsnorm dyt gated_rmsnorm l2norm layernorm log_softmax qk_norm rmsnorm softmax"
WIDTHS = (1, 7, 64, 66, 151, 513, 514, 1023, 1024, 1536, 3584, 4096, 5119, 8192, 16384, 65536, 262144)
LARGEST = 1 << 20
ATTRS = {"qk_norm": (("head_dim", 128),)}


@pytest.fixture(scope="module", autouse=True)
def device() -> None:
    try:
        executor_of(("cuda", 0))
    except MachineError as reason:
        pytest.skip(str(reason))


def prove_there(subject: Subject, case: Case, directions: tuple[str, ...] = ("forward", "backward")) -> None:
    """Run a case on the GPU and hold every result to its bound."""
    scalars = scalar_values(subject.definition.program)
    expectation = Expectation(subject, case, draw(subject.definition, case, scalars), scalars)
    for outcome in run_case(subject, expectation, executor_of(("cuda", 0)), cuda(), directions):
        assert outcome.comparison.ok, (case.shape_text, case.dtype_name, outcome)


@pytest.mark.parametrize(("name", "index"), COMBINATIONS)
def test_covering_cases(name: str, index: int) -> None:
    check(name, index, "cuda")


def lengths() -> Iterator[object]:
    """Each norm in each width, with element types in turn; the rest are thorough."""
    axes = enumerate(ROWWISE.split()), enumerate(WIDTHS), enumerate(DTYPE_SETS)
    for (i, name), (j, width), (k, dtypes) in product(*axes):
        marks = () if (i + j + k) % len(DTYPE_SETS) == 0 else pytest.mark.thorough
        yield pytest.param(name, width, dtypes, id=f"{name}-{width}-{dtypes.name}", marks=marks)


@pytest.mark.parametrize(("name", "width", "dtypes"), lengths())
def test_lengths_of_models(name: str, width: int, dtypes: DtypeSet) -> None:
    subject = bundled_subject(name, ATTRS.get(name, ()))
    rows = max(1, min(257, LARGEST // width))
    while rows > 1 and case_of(subject, rows, width).elements(subject.definition) > LARGEST:
        rows //= 2  # a row may have several heads
    prove_there(subject, case_of(subject, rows, width, dtypes, seed=DTYPE_SETS.index(dtypes)))


# (spec, samples, groups, channels of each, places): images that clusters hold, in registers and in pipelines,
# or that are split over blocks, and groups of channels that come last, held or folded.
IMAGES = (
    ("groupnorm", 3, 8, 4, 65536),
    ("groupnorm", 3, 8, 4, 131072),
    ("groupnorm", 2, 8, 8, 131072),
    ("groupnorm_channels_last", 8, 32, 40, 256),
    ("groupnorm_channels_last", 2, 32, 20, 1024),
    ("groupnorm_channels_last", 8, 32, 10, 4096),
    ("groupnorm_channels_last", 3, 64, 1, 16384),
)


@pytest.mark.parametrize(("image", "dtypes"), paired(IMAGES, DTYPE_SETS[:2]))
def test_images(image: tuple[str, int, int, int, int], dtypes: DtypeSet) -> None:
    name, samples, groups, channels, places = image
    subject = bundled_subject(name, (("groups", groups),))
    sizes = {"B": samples, "C": channels, "...": places}
    prove_there(subject, make_case(subject.definition, 1, 1, dtypes, sizes))


F32, BF16 = DTYPE_SETS[:2]
RUNS = ((F32, "forward"), (BF16, "backward"), (F32, "backward"), (BF16, "forward"))

# (samples, groups, channels of each, places): samples whose blocks keep them, all at once and in several
# rounds; slices that are short at the end, vectors across groups, narrow ones, groups of one channel,
# several vectors a thread, samples of which blocks keep a part.
RESIDENT = (
    (8, 32, 10, 4096),
    (2, 32, 10, 4096),
    (40, 32, 10, 4096),
    (3, 32, 3, 8191),
    (2, 7, 9, 5001),
    (4, 64, 1, 65536),
    (3, 4, 1500, 300),
    (2, 8, 16, 160001),
)


@pytest.mark.parametrize(("sizes", "run"), paired(RESIDENT, RUNS))
def test_samples_that_stay_on_chip(sizes: tuple[int, int, int, int], run: tuple[DtypeSet, str]) -> None:
    dtypes, direction = run
    samples, groups, channels, places = sizes
    subject = bundled_subject("groupnorm_channels_last", (("groups", groups),))
    norm = Norm(subject.norm.package, planner=partial(plan_launches, strategy="resident"))
    made = make_case(subject.definition, 1, 1, dtypes, {"B": samples, "C": channels, "...": places})
    prove_there(replace(subject, norm=norm), made, (direction,))


# (channels, places): bands of all samples, at once and in several rounds, of which blocks keep all or a part;
# one band, narrow vectors, slices that are short at the end.
BANDED = ((512, 50176), (256, 25087), (2048, 3136), (64, 200704), (96, 5001), (70, 9999), (1024, 50176))


@pytest.mark.parametrize(("sizes", "run"), paired(BANDED, RUNS))
def test_bands_that_stay_on_chip(sizes: tuple[int, int], run: tuple[DtypeSet, str]) -> None:
    dtypes, direction = run
    channels, places = sizes
    subject = bundled_subject("batchnorm_channels_last")
    norm = Norm(subject.norm.package, planner=partial(plan_launches, strategy="resident"))
    made = make_case(subject.definition, 1, 1, dtypes, {"C": channels, "...": places})
    prove_there(replace(subject, norm=norm), made, (direction,))


@pytest.mark.parametrize("name", ["rmsnorm", "layernorm"])
def test_rows_of_which_a_pipeline_holds_more_than_one(name: str) -> None:
    """Several for each cluster."""
    subject = bundled_subject(name)
    for dtypes in DTYPE_SETS[:2]:
        prove_there(subject, case_of(subject, 17, 262144, dtypes), ("backward",))


@pytest.mark.parametrize("name", ["rmsnorm", "layernorm"])
def test_backward_repeats_bit_by_bit(name: str) -> None:
    subject = bundled_subject(name)
    case, scalars = case_of(subject, 4096, 1024, DTYPE_SETS[1]), scalar_values(subject.definition.program)
    drawn, memory = draw(subject.definition, case, scalars), cuda()
    runs = []
    for _ in range(3):
        norm = subject.norm.on(executor_of(("cuda", 0)))
        operands = {
            t.name: memory.place(drawn.arrays[t.name], "bf16", case.memory_shape(t), 0, False)
            for t in subject.definition.program.operands
        }
        made = norm.forward(**operands)
        dy = memory.place(
            drawn.arrays["dy"], "bf16", case.memory_shape(subject.definition.program.operands[0]), 0, False
        )
        read = {k: v for k, v in {**operands, **made._asdict()}.items() if k in norm.backward_args}
        runs.append([np.asarray(g.get()).tobytes() for g in norm.backward(dy=dy, **read)])
    assert runs[0] == runs[1] == runs[2]
