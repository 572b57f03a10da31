"""What `channels.py` measures: the channel norms in PyTorch's words, their shapes, and which spec is which.

An `Op` is a function of PyTorch tensors and the specs that state the same; a `Problem` is an op at one shape,
element type and memory layout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod

import torch
import torch.nn.functional as F

Tensor = torch.Tensor
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f8e4m3": torch.float8_e4m3fn}
GROUP = 16  # elements that share a scale where the input is fp8
# Relative l2 errors against float64 beyond which a result is wrong and not only rounded.
WRONG = {"f32": 1e-4, "bf16": 1e-2, "f16": 2e-3, "f8e4m3": 5e-2}


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand beside x. `of`: channels, or groups (x's scales, one for `GROUP` elements of a row).

    `dtype`: None takes that of x. `start`: what it is near to. `state`: updated by the call; no gradient.
    """

    name: str
    dtype: str | None = None
    start: float = 1.0
    of: str = "channels"
    state: bool = False


GAIN, BIAS = Operand("w"), Operand("b", start=0.0)
WIDE_GAIN, WIDE_BIAS = Operand("w", "f32"), Operand("b", "f32", 0.0)
MEAN, VAR = Operand("running_mean", "f32", 0.0, state=True), Operand("running_var", "f32", state=True)


@dataclass(frozen=True, slots=True)
class Op:
    """`function`: x and the operands, in order, to y (or several results, first the one that is checked).

    `specs`: by layout, the spec and its attrs; an attr "channels" is the number of channels. `numbers`: float
    attrs, as far as the spec has them. `writes`: bytes that are written for an element of x, where that is
    not one y of x's type. `quantised`: the first result is fp8, and the backward is another op's.
    """

    function: Callable[..., Tensor | tuple[Tensor, ...]]
    specs: Mapping[str, tuple[str, Mapping[str, object]]]
    shapes: tuple[tuple[int, ...], ...]
    operands: tuple[Operand, ...] = ()
    numbers: Mapping[str, float] = field(default_factory=dict)
    x_dtype: str | None = None
    writes: float | None = None
    quantised: bool = False


@dataclass(frozen=True, slots=True)
class Problem:
    """One op at one shape. `layout`: nchw, nhwc (the same shape in channels-last memory) or rows."""

    op: str
    shape: tuple[int, ...]
    dtype: str
    layout: str

    @property
    def directions(self) -> tuple[str, ...]:
        """What is measured."""
        return ("forward",) if OPS[self.op].quantised else ("forward", "backward")

    @property
    def channels(self) -> int:
        """The length of the params."""
        return self.shape[-1] if self.layout == "rows" else self.shape[1]

    def bytes(self, direction: str) -> int:
        """The fewest bytes that must move: x in and y out; x (or y) and dy in and dx out; params."""
        op, size = OPS[self.op], DTYPES[self.dtype].itemsize
        read = DTYPES[op.x_dtype or self.dtype].itemsize
        elements = prod(self.shape)
        small = sum(
            self.channels * DTYPES[o.dtype or self.dtype].itemsize for o in op.operands if o.of == "channels"
        )
        if direction == "backward":
            return 3 * size * elements + 2 * small
        scales = sum(elements // GROUP * 2 for o in op.operands if o.of == "groups")
        written = size if op.writes is None else op.writes
        return int((read + written) * elements) + small + scales

    @property
    def text(self) -> str:
        """One word that names it."""
        return f"{self.op}:{'x'.join(map(str, self.shape))}:{self.dtype}:{self.layout}"


def _group_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.group_norm(x, 32, w, b, 1e-5)


def _batch_norm(x: Tensor, w: Tensor, b: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    return F.batch_norm(x, mean, var, w, b, True, 0.1, 1e-5)


def _instance_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.instance_norm(x, weight=w, bias=b, eps=1e-5)


def _layer_norm_2d(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x.permute(0, 2, 3, 1), w.shape, w, b, 1e-6).permute(0, 3, 1, 2)


def _local_response_norm(x: Tensor) -> Tensor:
    return F.local_response_norm(x, 5, 1e-4, 0.75, 1.0)


def _softmax_2d(x: Tensor) -> Tensor:
    return torch.softmax(x, 1)


def _wide(t: Tensor) -> Tensor:
    return t if t.dtype == torch.float64 else t.float()


def _to_fp8(y: Tensor, scale: Tensor) -> Tensor:
    return y / scale if y.dtype == torch.float64 else (y / scale).to(torch.float8_e4m3fn)


def _rms_norm(x: Tensor, w: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * _wide(w)


def _rms_norm_fp8(x: Tensor, xs: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    values = (_wide(x).unflatten(-1, (-1, GROUP)) * _wide(xs).unsqueeze(-1)).flatten(-2)
    y = _rms_norm(values, w)
    scale = y.abs().amax() / 448
    q = _to_fp8(y, scale)
    return q, scale, q.t().contiguous()


def _rms_norm_quantized_row(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    y = _rms_norm(_wide(x), w).to(x.dtype)
    stored = _wide(y)
    scale = stored.abs().amax(-1, keepdim=True) / 448
    return _to_fp8(stored, scale), scale.squeeze(-1), y


def _both(name: str, **attrs: object) -> dict[str, tuple[str, Mapping[str, object]]]:
    return {"nchw": (name, attrs), "nhwc": (f"{name}_channels_last", attrs)}


EPS = {"eps": 1e-5}
LONG = ((32768, 1024), (32768, 4096), (8192, 16384), (2048, 65536))
OPS: dict[str, Op] = {
    "group_norm": Op(
        _group_norm,
        _both("groupnorm", groups=32),
        ((8, 320, 64, 64), (2, 512, 256, 256), (1, 128, 512, 512), (8, 1280, 16, 16)),
        (GAIN, BIAS),
        EPS,
    ),
    "batch_norm": Op(
        _batch_norm,
        _both("batchnorm", training=True),
        ((256, 256, 56, 56), (256, 512, 14, 14), (256, 64, 112, 112)),
        (WIDE_GAIN, WIDE_BIAS, MEAN, VAR),
        {"eps": 1e-5, "momentum": 0.1},
    ),
    "instance_norm": Op(
        _instance_norm,
        {"nchw": ("instancenorm", {}), "nhwc": ("groupnorm_channels_last", {"groups": "channels"})},
        ((8, 64, 256, 256),),
        (WIDE_GAIN, WIDE_BIAS),
        EPS,
    ),
    "layernorm2d": Op(
        _layer_norm_2d,
        {"nchw": ("layernorm2d", {}), "nhwc": ("layernorm", {})},
        ((32, 96, 56, 56),),
        (GAIN, BIAS),
        {"eps": 1e-6},
    ),
    "local_response_norm": Op(
        _local_response_norm,
        {"nchw": ("local_response_norm", {"n": 5})},
        ((128, 96, 55, 55),),
        (),
        {"alpha": 1e-4, "beta": 0.75, "k": 1.0},
    ),
    "softmax2d": Op(
        _softmax_2d,
        {"nchw": ("softmax2d", {}), "nhwc": ("softmax", {})},
        ((8, 151, 256, 256),),
    ),
    "rmsnorm_fp8": Op(
        _rms_norm_fp8,
        {"rows": ("rmsnorm_fp8", {})},
        ((16384, 4096), (16384, 8192)),
        (Operand("xs", "bf16", of="groups"), GAIN),
        {"eps": 1e-6},
        x_dtype="f8e4m3",
        writes=2,
        quantised=True,
    ),
    "rmsnorm_quantized_row": Op(
        _rms_norm_quantized_row,
        {"rows": ("rmsnorm_quantized_row", {})},
        ((16384, 4096), (16384, 8192)),
        (GAIN,),
        {"eps": 1e-6},
        writes=3,
        quantised=True,
    ),
    "layer_norm": Op(
        lambda x, w, b: F.layer_norm(x, w.shape, w, b, 1e-5),
        {"rows": ("layernorm", {})},
        LONG,
        (GAIN, BIAS),
        EPS,
    ),
    "rms_norm": Op(
        lambda x, w: F.rms_norm(x, w.shape, w, 1e-6), {"rows": ("rmsnorm", {})}, LONG, (GAIN,), {"eps": 1e-6}
    ),
    "softmax": Op(lambda x: torch.softmax(x, -1), {"rows": ("softmax", {})}, LONG),
}
# What runs unless told otherwise: not the rows norms, which `bandwidth.py` is about.
USUAL = [name for name in OPS if name not in ("layer_norm", "rms_norm", "softmax")]


def problems(
    ops: list[str], dtypes: list[str], shapes: list[tuple[int, ...]], layouts: list[str]
) -> list[Problem]:
    """All problems of these ops; `shapes` empty: those of each op. Quantised ops take 16-bit params only."""
    found = []
    for dtype in dtypes:
        for name in ops:
            op = OPS[name]
            if op.quantised and dtype == "f32":
                continue
            for shape in shapes or op.shapes:
                for layout in op.specs:
                    if layout in layouts and (len(shape) == 2) == (layout == "rows"):
                        found.append(Problem(name, shape, dtype, layout))
    return found
