"""Whether CPU tensors run kernels, on the checked host executor, or PyTorch's operators."""

from __future__ import annotations

import os
from functools import cache

from normgen.torch.private import constant

VARIABLE = "NORMGEN_CPU"


@constant
def cpu_kernels() -> bool:
    """Whether CPU tensors run kernels on the host executor, which checks them and is slow."""
    return _cpu_kernels()


@cache
def _cpu_kernels() -> bool:
    wish = os.environ.get(VARIABLE, "")
    if wish not in ("", "kernels"):
        raise ValueError(f"{VARIABLE} is {wish!r}: set it to kernels, or unset it")
    return wish == "kernels"
