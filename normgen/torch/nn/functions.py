"""The functions that modules call: loaded when first called, one for all modules that are alike."""

from __future__ import annotations

from functools import cache
from itertools import count
from typing import Any

from normgen.torch.function import NormFunction
from normgen.torch.loading import load


class _Loaded:
    """The functions so far, as attributes: what `torch.compile` reads anew each time that it is asked for."""


_LOADED = _Loaded()
_NUMBERS = count()  # of its attributes: no two threads get the same


def function(spec: str, **attrs: Any) -> NormFunction:
    """The function of a bundled spec or of a spec's text. `attrs`: whole numbers and choices."""
    found: NormFunction = getattr(_LOADED, _ready(spec, **attrs))
    return found


def _ready(spec: str, **attrs: Any) -> str:
    """Where the function is, once it is loaded."""
    return _load(spec, tuple(attrs.items()))


# `torch.compile` calls it once and takes what it returns for a constant. This is all that
# `torch.compiler.assume_constant_result` does, but for an import of the whole compiler.
_ready._dynamo_marked_constant = True  # type: ignore[attr-defined]


@cache
def _load(spec: str, attrs: tuple[tuple[str, Any], ...]) -> str:
    name = f"function_{next(_NUMBERS)}"
    setattr(_LOADED, name, load(spec, **dict(attrs)))
    return name
