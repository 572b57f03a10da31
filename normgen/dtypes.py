"""The element types that a tensor may have: one table, read by every stage.

Values are float32 inside a kernel; an element type matters at loads, at stores and where a spec rounds on
purpose.
`f64` exists for the host executor and the reference alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class DType:
    """One element type.

    `c_type` is its CUDA C++ spelling, `largest` its largest finite value, `saturates` whether a store clamps
    to `largest` (fp8) instead of overflowing to infinity.
    """

    name: str
    c_type: str
    bytes: int
    largest: float
    smallest_subnormal: float
    saturates: bool
    numpy_name: str

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy element type (from `ml_dtypes` for bf16 and fp8)."""
        return _numpy_dtype(self.numpy_name)


DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        DType("f32", "float", 4, 3.4028234663852886e38, 2.0**-149, False, "float32"),
        DType("f16", "__half", 2, 65504.0, 2.0**-24, False, "float16"),
        DType("bf16", "__nv_bfloat16", 2, 3.3895313892515355e38, 2.0**-133, False, "bfloat16"),
        DType("f8e4m3", "__nv_fp8_e4m3", 1, 448.0, 2.0**-9, True, "float8_e4m3fn"),
        DType("f8e5m2", "__nv_fp8_e5m2", 1, 57344.0, 2.0**-16, True, "float8_e5m2"),
        DType("f64", "double", 8, 1.7976931348623157e308, 2.0**-1074, False, "float64"),
    )
}

# What a kernel may read and write; a gradient is taken with respect to the 16-bit and wider ones.
DEVICE_DTYPES: tuple[str, ...] = ("f32", "f16", "bf16", "f8e4m3", "f8e5m2")
DIFFERENTIABLE_DTYPES: tuple[str, ...] = ("f32", "f16", "bf16", "f64")
ROUNDING_FUNCTIONS: tuple[str, ...] = ("bf16", "f16", "f8e4m3", "f8e5m2")


@cache
def _numpy_dtype(name: str) -> np.dtype[Any]:
    import numpy as np

    if name in ("float32", "float16", "float64"):
        return np.dtype(name)
    import ml_dtypes

    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return found


@cache
def _names_by_numpy() -> dict[Any, str]:
    return {d.numpy: d.name for d in DTYPES.values()}


def name_of_numpy(dtype: Any) -> str | None:
    """The normgen name of a NumPy element type, or None where normgen has none."""
    import numpy as np

    return _names_by_numpy().get(np.dtype(dtype))


def real(value: Any, name: str) -> float:
    """A number that stands for `name`, as a float: a bool is 0 or 1, as for PyTorch. TypeError for anything
    but a real number; ValueError where no float reaches it."""
    import numpy as np

    if isinstance(value, np.generic):
        known = value.dtype.kind in "biuf" or name_of_numpy(value.dtype) is not None
    else:
        known = isinstance(value, (int, float))
    if not known:
        raise TypeError(f"{name} must be a number but is a {type(value).__name__}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} is beyond the range of float32") from None


def round_to(values: Any, name: str) -> Any:
    """Round a float64 or float32 array to dtype `name` as a kernel's store does (nearest even; fp8 saturates,
    NaN stays).

    float64 goes through float32 first, which is what a kernel holds.
    """
    import numpy as np

    target = DTYPES[name]
    with np.errstate(over="ignore", invalid="ignore"):
        single = np.asarray(values, dtype=np.float64)
        if name == "f64":
            return single
        single = single.astype(np.float32)
        if target.saturates:
            single = np.clip(single, -target.largest, target.largest)
        return single.astype(target.numpy)
