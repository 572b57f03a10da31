"""Random sequences of calls on a GPU against float64. `SEED=n make test-gpu` draws others."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from normgen.verify.cases import DTYPE_SETS
from tests.verify.subjects import OUTER, OUTER_SIZES

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
sequences = pytest.importorskip("tests.gpu.sequences")
made = pytest.importorskip("tests.gpu.calls")

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.mark.parametrize("family", OUTER)
def test_arrays_that_lie_anyhow_agree_with_float64(family):
    call = sequences.Call(OUTER[family], dtypes=DTYPE_SETS[1], sizes=tuple(OUTER_SIZES.items()))
    for layout in sequences.LAYOUTS:
        laid = (("x", layout), *((f"d{name}", layout) for name in call.norm.differentiated))
        sequences.check(made.run(replace(call, layouts=laid), "cuda"))


SEQUENCES = [*range(96), *(pytest.param(index, marks=pytest.mark.thorough) for index in range(96, 160))]


@pytest.mark.parametrize("index", SEQUENCES)
def test_a_sequence_of_calls_agrees_with_float64(index, seed):
    random = Random(f"{seed} {index}")
    calls = sequences.draw_sequence(random, sequences.ON_GPU, steps=40)
    assert sequences.play(calls, random, "cuda") == 40
