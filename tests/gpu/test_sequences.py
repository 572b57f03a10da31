"""Random sequences of calls on a GPU against float64. `SEED=n make test-gpu` draws others."""

from __future__ import annotations

from random import Random

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
sequences = pytest.importorskip("tests.gpu.sequences")

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.mark.parametrize("index", range(160))
def test_a_sequence_of_calls_agrees_with_float64(index, seed):
    random = Random(f"{seed} {index}")
    calls = sequences.draw_sequence(random, sequences.ON_GPU, steps=40)
    assert sequences.play(calls, random, "cuda") == 40
