"""normgen: a compiler for normalization kernels. A `.norm` spec in, CUDA forward and backward out.

    rms = normgen.load("layer.norm")
    y, rstd = rms.forward(x, w)
    dx, dw = rms.backward(dy=dy, x=x, w=w, rstd=rstd)

Importing this is cheap: the first `load` imports the compiler, and nothing imports an array library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from normgen.api import check, compile_spec, load
    from normgen.devices.executors import use_driver
    from normgen.diagnostics import SpecError
    from normgen.runtime.ranks.group import Simulated
    from normgen.verify.report import CheckFailed

__version__ = "0.1.0"

__all__ = [
    "CheckFailed",
    "Simulated",
    "SpecError",
    "__version__",
    "check",
    "compile_spec",
    "load",
    "use_driver",
]

_HOMES = {
    "CheckFailed": "normgen.verify.report",
    "Simulated": "normgen.runtime.ranks.group",
    "SpecError": "normgen.diagnostics",
    "check": "normgen.api",
    "compile_spec": "normgen.api",
    "load": "normgen.api",
    "use_driver": "normgen.devices.executors",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'normgen' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
