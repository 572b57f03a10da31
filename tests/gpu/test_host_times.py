"""What calls cost on the host beside PyTorch's own, which is reported. Only what is far off fails."""

from __future__ import annotations

import importlib
import statistics
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
BATCHES = 20
TIMES, BESIDES = 3.0, 20.0  # of PyTorch's own, and microseconds besides


def test_calls_take_no_longer_than_a_few_times_those_of_pytorch(record_property):
    sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
    bench = importlib.import_module("torch_host")
    bench.EXTENSION.build()
    slow = []
    for name, pair in bench.calls().items():
        seen = [[bench._batch(call) for call in pair] for _ in range(BATCHES)]
        ours, theirs = (statistics.median(batch[place] for batch in seen) for place in (0, 1))
        record_property("note", f"{name}: {ours:.1f} us, PyTorch {theirs:.1f}")
        if ours > TIMES * theirs + BESIDES:
            slow.append(f"{name}: {ours:.1f} us, PyTorch {theirs:.1f}")
    assert not slow, slow
