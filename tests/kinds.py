"""The bundled specs: which stand for the others in `make test`, and what their attributes are in tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

# One of each kind: rows, several outputs, a save that is an output, 0-d params, states, images, channels that
# lie last, neighbours, quantised outputs, inputs of 8 bits.
USUAL = (
    "layernorm", "add_rmsnorm", "softmax", "qk_norm", "dyt", "adaln_modulate", "batchnorm", "groupnorm",
    "groupnorm_channels_last", "softmax2d", "local_response_norm", "rmsnorm_quantized_tensor", "rmsnorm_fp8",
)  # fmt: skip
# Attributes of the specs that are nothing without a value for them.
GROUPED = (
    "adagn", "gated_rmsnorm_grouped", "groupnorm", "groupnorm_channels_last", "groupnorm_silu",
    "groupnorm_silu_channels_last",
)  # fmt: skip
ATTRS: dict[str, dict[str, object]] = {"qk_norm": {"head_dim": 8}} | {name: {"groups": 4} for name in GROUPED}


def of_all(names: Iterable[str]) -> list[Any]:
    """All names as parameters; what is not of the usual ones is left to `make test-thorough`."""
    return [pytest.param(name, marks=() if name in USUAL else pytest.mark.thorough) for name in names]
