"""The programs of `bench/` as modules, with an imitation of PyTorch for those that import it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

BENCH = Path(__file__).parents[2] / "bench"
NAMES = tuple(path.stem for path in BENCH.glob("*.py"))
_TORCH = ("torch", "torch.nn", "torch.nn.functional", "torch._functorch")


def program(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A file of `bench/`, imported anew; what it imports of its folder too."""
    monkeypatch.syspath_prepend(str(BENCH))
    for other in NAMES:
        monkeypatch.delitem(sys.modules, other, raising=False)
    for module in _TORCH:
        monkeypatch.setitem(sys.modules, module, MagicMock())
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # put back afterwards: run.py sets it
    loaded = importlib.import_module(name)
    for other in NAMES:
        if other in sys.modules:
            monkeypatch.setitem(sys.modules, other, sys.modules[other])
    return loaded


def row(provider: str, us: float | None = None, **more: Any) -> dict[str, Any]:
    """A row of results; without `us` one that was not measured."""
    about = {"op": "groupnorm", "direction": "forward", "shape": [8, 320], "dtype": "bf16", "layout": "nchw"}
    measured = (
        {} if us is None else {"us": us, "copy_us": 10.0, "rho": 10.0 / us, "host_us": 5.0, "error": 0.0}
    )
    return about | {"provider": provider, "bytes": 1_000_000} | measured | more
