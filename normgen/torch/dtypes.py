"""Element types by PyTorch's name and by normgen's."""

from __future__ import annotations

import torch

from normgen.dtypes import DTYPES

TYPES: dict[str, torch.dtype] = {
    d.name: getattr(torch, d.numpy_name) for d in DTYPES.values() if hasattr(torch, d.numpy_name)
}
NAMES: dict[torch.dtype, str] = {dtype: name for name, dtype in TYPES.items()}
