"""Norms fused with the operation before or after them: a residual add, a gate, SiLU."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from normgen.torch.loading import function
from normgen.torch.nn.channels import grouped
from normgen.torch.nn.precision import kernel_eps
from normgen.torch.nn.shapes import check_normalized, flat
from normgen.torch.nn.whole import Whole, are_tensors, instead


class _Scaled(Whole, torch.nn.Module):
    """A module with the constructor of `torch.nn.RMSNorm`, and its weight."""

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.normalized_shape = shape
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        weight = torch.nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.register_parameter("weight", weight if elementwise_affine else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the weight to 1."""
        if self.weight is not None:
            torch.nn.init.ones_(self.weight)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class AddRMSNorm(_Scaled):
    """A residual add, then RMSNorm, in one kernel: h = x + residual, y = rms_norm(h) * weight.

    Args: those of `torch.nn.RMSNorm`.

    Shape: x and residual are (*, *normalized_shape). The result is a named tuple of h, the new residual
    stream, with the type of residual, and y, with the type of x; both have the shape of x.

    >>> norm = nt.nn.AddRMSNorm(4096)
    >>> h, y = norm(x, h)
    """

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> Any:
        if not are_tensors(x, residual):
            return instead(self, x=x, residual=residual)
        shape = self.normalized_shape
        check_normalized(shape, x)
        check_normalized(shape, residual)
        weight, eps = flat(self.weight, shape), kernel_eps(self.eps, x)
        made = function("add_rmsnorm")(flat(x, shape), flat(residual, shape), weight, eps=eps)
        return made if len(shape) == 1 else type(made)._make([each.view(x.shape) for each in made])


class GatedRMSNorm(_Scaled):
    """RMSNorm with a SiLU gate in one kernel; Mamba-2 (arXiv:2405.21060) uses `norm_before_gate=False`.

    Args: those of `torch.nn.RMSNorm`, and

    - norm_before_gate: whether the result is `rms_norm(x) * weight * silu(gate)`; if not, it is
      `rms_norm(x * silu(gate)) * weight`.
    - group_size: the number of elements of a row that are normalized together; all if None.

    Shape: x and gate are (*, *normalized_shape); the result has the shape and type of x.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        norm_before_gate: bool = True,
        group_size: int | None = None,
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine, device, dtype)
        self.norm_before_gate = norm_before_gate
        self.group_size = group_size
        length = prod(self.normalized_shape)
        if group_size is not None and (group_size < 1 or length % group_size):
            raise ValueError(f"group_size must divide the row length {length} but is {group_size}")

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        if not are_tensors(x, gate):
            return instead(self, x=x, gate=gate)
        shape = self.normalized_shape
        check_normalized(shape, x)
        check_normalized(shape, gate)
        if self.group_size is None:
            norm = function("gated_rmsnorm", norm_before_gate=self.norm_before_gate)
        else:
            groups = prod(shape) // self.group_size
            norm = function("gated_rmsnorm_grouped", groups=groups, norm_before_gate=self.norm_before_gate)
        weight, eps = flat(self.weight, shape), kernel_eps(self.eps, x)
        y = norm(flat(x, shape), flat(gate, shape), weight, eps=eps)
        return y if len(shape) == 1 else y.view(x.shape)

    def extra_repr(self) -> str:
        return (
            f"{super().extra_repr()}, norm_before_gate={self.norm_before_gate}, group_size={self.group_size}"
        )


class GroupNormSiLU(Whole, torch.nn.Module):
    """Group normalization and SiLU in one kernel, as in diffusion U-nets: silu(group_norm(input)).

    Args: those of `torch.nn.GroupNorm`, whose parameters and state dict it has. It is not a subclass of
    `torch.nn.GroupNorm`, because code that replaces those would lose the SiLU.

    Shape: the input is (N, num_channels, *); the result has its shape and type.
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if num_channels % num_groups:
            raise ValueError(f"num_channels ({num_channels}) must be divisible by num_groups ({num_groups})")
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.affine = affine
        for name, there in (("weight", affine), ("bias", affine and bias)):
            empty = torch.empty(num_channels, device=device, dtype=dtype) if there else None
            self.register_parameter(name, None if empty is None else torch.nn.Parameter(empty))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the weight to 1 and the bias to 0."""
        if self.weight is not None:
            torch.nn.init.ones_(self.weight)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not isinstance(input, torch.Tensor):
            return instead(self, input=input)
        return grouped("groupnorm_silu", self, input)

    def extra_repr(self) -> str:
        return (
            f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, "
            f"bias={self.bias is not None}"
        )
