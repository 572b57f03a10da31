"""Norms as functions of PyTorch tensors: differentiable, compilable, on a GPU and on the CPU.

import normgen.torch as nt

rms = nt.load("rmsnorm")
y = rms(x, w, eps=1e-6)
"""

from __future__ import annotations

from normgen.torch import nn
from normgen.torch.function import NormFunction
from normgen.torch.loading import load
from normgen.torch.patching import patch, unpatch

__all__ = ["NormFunction", "load", "nn", "patch", "unpatch"]
