"""Element types by PyTorch's name and by normgen's."""

from __future__ import annotations

import torch

from normgen.arrays.torch import element_types, names_of_types

TYPES: dict[str, torch.dtype] = element_types(torch)
NAMES: dict[torch.dtype, str] = names_of_types(torch)
