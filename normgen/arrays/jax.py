"""JAX's arrays."""

from __future__ import annotations

import sys
from typing import Any

from normgen.arrays import capsule
from normgen.arrays.device_array import DeviceArray, Foreign
from normgen.arrays.views import View, is_a, known_dtype


class Jax(Foreign):
    """Read-only arrays: results are computed outside and handed over when they are complete."""

    name = "jax"

    def knows(self, array: Any) -> bool:
        return is_a(array, "jax", "Array")

    def look(self, array: Any) -> View:
        if isinstance(array, sys.modules["jax"].core.Tracer):
            raise TypeError(
                "a traced JAX value has no data: call outside jax.jit, or through jax.pure_callback"
            )
        known_dtype(array.dtype, self)
        return capsule.look(array, self, readonly=True)

    def deliver(self, result: Any, stream: int) -> Any:
        jax = sys.modules["jax"]
        if isinstance(result, DeviceArray):
            return jax.dlpack.from_dlpack(super().deliver(result, stream))
        return jax.numpy.asarray(result)

    def cast(self, element: str) -> str:
        return f".astype(jax.numpy.{element})"
