"""Every array library. To add one, write a file next to this one and add a line here."""

from __future__ import annotations

from normgen.arrays import cupy, device_array, dlpack, jax, numpy, pycuda, torch
from normgen.arrays.views import Library

# The first that knows an array has it: an array may speak the protocols of several.
LIBRARIES: tuple[Library, ...] = (
    numpy.NUMPY,
    numpy.Number(),
    device_array.OWN,
    torch.TORCH,
    cupy.Cupy(),
    pycuda.PyCuda(),
    jax.Jax(),
    dlpack.Dlpack(),
    dlpack.INTERFACE,
)
