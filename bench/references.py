"""Each op in PyTorch's words: what the eager and the compiled provider run, and, in float64, the truth.

A function takes x and the operands of the op, in order, and returns its results, those first that are
checked.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from problems import GROUP

Tensor = torch.Tensor
Function = Callable[..., tuple[Tensor, ...]]


def _of_type(x: Tensor, w: Tensor) -> Tensor:
    """x in the type of its gains: kernels of PyTorch take both in one, or fall back to slow ones."""
    return x if x.dtype == w.dtype else x.to(w.dtype)


def _rmsnorm(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return (F.rms_norm(_of_type(x, w), w.shape, w, 1e-6).to(x.dtype),)


def _layernorm(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    return (F.layer_norm(_of_type(x, w), w.shape, w, b, 1e-5).to(x.dtype),)


def _softmax(x: Tensor) -> tuple[Tensor, ...]:
    return (torch.softmax(x, -1),)


def _add_rmsnorm(x: Tensor, residual: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    h = x + residual
    return F.rms_norm(_of_type(h, w), w.shape, w, 1e-6).to(h.dtype), h


def _groupnorm(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    return (F.group_norm(x, 32, w, b, 1e-5),)


def _batchnorm(x: Tensor, w: Tensor, b: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, ...]:
    return (F.batch_norm(x, mean, var, w, b, True, 0.1, 1e-5),)


def _instancenorm(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    return (F.instance_norm(x, weight=w, bias=b, eps=1e-5),)


def _layernorm2d(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    return (F.layer_norm(x.permute(0, 2, 3, 1), w.shape, w, b, 1e-6).permute(0, 3, 1, 2),)


def _local_response_norm(x: Tensor) -> tuple[Tensor, ...]:
    return (F.local_response_norm(x, 5, 1e-4, 0.75, 1.0),)


def _softmax2d(x: Tensor) -> tuple[Tensor, ...]:
    return (torch.softmax(x, 1),)


def _wide(t: Tensor) -> Tensor:
    return t if t.dtype == torch.float64 else t.float()


def _to_fp8(y: Tensor, scale: Tensor) -> Tensor:
    return y / scale if y.dtype == torch.float64 else (y / scale).to(torch.float8_e4m3fn)


def _wide_rmsnorm(x: Tensor, w: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * _wide(w)


def _rmsnorm_fp8(x: Tensor, xs: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    values = (_wide(x).unflatten(-1, (-1, GROUP)) * _wide(xs).unsqueeze(-1)).flatten(-2)
    y = _wide_rmsnorm(values, w)
    scale = y.abs().amax() / 448
    q = _to_fp8(y, scale)
    return q, scale, q.t().contiguous()


def _rmsnorm_quantized_row(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    y = _wide_rmsnorm(_wide(x), w).to(x.dtype)
    stored = _wide(y)
    scale = stored.abs().amax(-1, keepdim=True) / 448
    return _to_fp8(stored, scale), scale.squeeze(-1), y


REFERENCES: dict[str, Function] = {
    "rmsnorm": _rmsnorm,
    "layernorm": _layernorm,
    "softmax": _softmax,
    "add_rmsnorm": _add_rmsnorm,
    "groupnorm": _groupnorm,
    "batchnorm": _batchnorm,
    "instancenorm": _instancenorm,
    "layernorm2d": _layernorm2d,
    "local_response_norm": _local_response_norm,
    "local_response_norm_recomputed": _local_response_norm,
    "softmax2d": _softmax2d,
    "rmsnorm_fp8": _rmsnorm_fp8,
    "rmsnorm_quantized_row": _rmsnorm_quantized_row,
}
