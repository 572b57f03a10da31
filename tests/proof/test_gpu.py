"""The same proof on a GPU, where there is one: every spec of rows, all sets of element types, the lengths
of real models."""

from __future__ import annotations

import numpy as np
import pytest

from normgen.proof.cases import DTYPE_SETS
from normgen.proof.draw import draw, scalar_values
from normgen.proof.expected import Expectation
from normgen.proof.kernels import run_case
from normgen.proof.memory import cuda
from normgen.runtime.errors import MachineError
from normgen.runtime.executors import executor_of
from tests.proof.subjects import bundled_subject, case_of
from tests.proof.test_specs import COMBINATIONS, prove, told

pytestmark = pytest.mark.gpu

ROWWISE = (
    "adaln_modulate",
    "add_rmsnorm",
    "dyt",
    "gated_rmsnorm",
    "l2norm",
    "layernorm",
    "log_softmax",
    "qk_norm",
    "rmsnorm",
    "softmax",
)
WIDTHS = (1, 7, 64, 100, 1024, 3000, 4096, 8192, 16384, 65536, 262144)
ATTRS = {"qk_norm": (("head_dim", 128),)}


@pytest.fixture(scope="module", autouse=True)
def device() -> None:
    try:
        executor_of(("cuda", 0))
    except MachineError as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize(("name", "index"), COMBINATIONS)
def test_covering_cases(name: str, index: int) -> None:
    rows = prove(name, index, executors=("cuda",))
    failed = [row for row in rows if row.status == "failed"]
    assert not failed, told(failed)


@pytest.mark.parametrize("name", ROWWISE)
@pytest.mark.parametrize("width", WIDTHS)
def test_lengths_of_models(name: str, width: int) -> None:
    subject = bundled_subject(name, ATTRS.get(name, ()))
    scalars = scalar_values(subject.definition.program)
    memory, executor = cuda(), executor_of(("cuda", 0))
    for index, dtypes in enumerate(DTYPE_SETS):
        rows = max(1, min(257, 2**20 // width))
        case = case_of(subject, rows, width, dtypes, seed=index)
        drawn = draw(subject.definition, case, scalars)
        for outcome in run_case(subject, Expectation(subject, case, drawn, scalars), executor, memory):
            assert outcome.comparison.ok, (case.shape_text, case.dtype_name, outcome)


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
