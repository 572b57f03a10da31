"""Of which images kernels are made for: of one size, or of all, as the environment asks for."""

from __future__ import annotations

import os

VARIABLE = "NORMGEN_IMAGE_TEXTS"


def for_all_sizes() -> bool:
    """Whether one text is to serve images of all sizes, where there is such a one. Those for one size are
    faster, and each new size is compiled for."""
    return os.environ.get(VARIABLE) == "general"
