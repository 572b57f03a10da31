"""Norms as functions of PyTorch tensors: differentiable, compilable, on a GPU and on the CPU.

    import normgen.torch as nt

    rms = nt.load("rmsnorm")
    y = rms(x, w, eps=1e-6)

Submodules are imported lazily.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from normgen.torch import nn
    from normgen.torch.function import NormFunction
    from normgen.torch.loading import load
    from normgen.torch.patching.patch import patch, unpatch

__all__ = ["NormFunction", "load", "nn", "patch", "unpatch"]

_HOMES = {
    "NormFunction": "normgen.torch.function",
    "load": "normgen.torch.loading",
    "patch": "normgen.torch.patching",
    "unpatch": "normgen.torch.patching",
}


def __getattr__(name: str) -> Any:
    if name == "nn":
        return _imported("normgen.torch.nn")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'normgen.torch' has no attribute {name!r}")
    value = getattr(_imported(home), name)
    globals()[name] = value
    return value


def _imported(name: str) -> Any:
    """A module of this folder. ModuleNotFoundError with a cure where PyTorch is missing."""
    from importlib import import_module

    try:
        return import_module(name)
    except ModuleNotFoundError as fault:
        if fault.name != "torch":
            raise
        raise ModuleNotFoundError("normgen.torch needs PyTorch: pip install torch", name="torch") from fault


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
