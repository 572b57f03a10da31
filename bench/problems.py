"""What `run.py` measures: ops, their shapes, which spec states each, and how many bytes each must move.

An `Op` is a norm that every provider knows by its own name; a `Problem` is an op at one shape, element type
and layout. Nothing here needs PyTorch: `references.py` says what each op is in its words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache

import normgen
from normgen.launching.launch import Binding
from normgen.launching.layout import REST, solve
from normgen.measure.arithmetic import Bytes, least_bytes
from normgen.measure.norms import contiguous_binding
from normgen.package.direction import Direction, directions
from normgen.runtime.norm import Norm

Shape = tuple[int, ...]
DTYPES = ("bf16", "f32")
BOTH, FORWARD = ("forward", "backward"), ("forward",)
GROUP = 16  # elements that share a scale where the input is fp8
CHAIN = 20  # calls that follow one another where decoding is measured, each on arrays of its own
# Relative l2 errors against float64 beyond which a result is wrong and not only rounded.
WRONG = {"f32": 1e-4, "bf16": 1e-2, "f16": 2e-3, "f8e4m3": 5e-2}
# How arrays lie: images as NCHW; the same shapes in channels-last memory; rows; the many short ones of
# attention heads; those of one step of decoding, whose caches are warm; rows whose results go into given
# arrays, for the host's share of a call.
IMAGES = ("nchw", "nhwc")
LAYOUTS = (*IMAGES, "rows", "heads", "decode", "given")


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand beside x. `of`: channels, groups (x's scales, one for `GROUP` elements of a row), or x (an
    array like x).

    `dtype`: None takes that of x. `start`: what it is near to. `state`: updated by the call; no gradient.
    """

    name: str
    dtype: str | None = None
    start: float = 1.0
    of: str = "channels"
    state: bool = False


@dataclass(frozen=True, slots=True)
class Op:
    """`specs`: by layout, the spec and its attrs; an attr "channels" is the number of channels. `numbers`:
    float attrs, as far as the spec has them.

    `shapes`: by layout. `operands`: beside x, which is `x` in the spec. `outputs`: the spec's results that
    are checked, in the order in which a provider returns them. `quantised`: they are fp8, the params have 16
    bits.
    """

    specs: Mapping[str, tuple[str, Mapping[str, object]]]
    shapes: Mapping[str, tuple[Shape, ...]]
    operands: tuple[Operand, ...] = ()
    numbers: Mapping[str, float] = field(default_factory=dict)
    directions: tuple[str, ...] = BOTH
    outputs: tuple[str, ...] = ("y",)
    x: str = "x"
    x_dtype: str | None = None
    quantised: bool = False


@dataclass(frozen=True, slots=True)
class Problem:
    """One op at one shape. `shape`: that of x, images as NCHW whatever the layout. `params`: the element type
    of gains and biases, where it is not that of x."""

    op: str
    shape: Shape
    dtype: str
    layout: str
    params: str | None = None

    @property
    def directions(self) -> tuple[str, ...]:
        """What is measured."""
        return FORWARD if self.layout in ("decode", "given") else OPS[self.op].directions

    @property
    def images(self) -> bool:
        """Whether x has channels and pixels."""
        return self.layout in IMAGES

    @property
    def channels(self) -> int:
        """The length of the params."""
        return self.shape[1] if self.images else self.shape[-1]

    @property
    def sets(self) -> int | None:
        """How many sets of buffers there are, where that is not what keeps caches cold."""
        return CHAIN if self.layout == "decode" else None

    @property
    def memory_shape(self) -> Shape:
        """The shape of x as it lies in memory."""
        if self.layout != "nhwc":
            return self.shape
        return (self.shape[0], *self.shape[2:], self.shape[1])

    @property
    def text(self) -> str:
        """One word that names it."""
        params = f":{self.params} params" if self.params else ""
        return f"{self.op}:{'x'.join(map(str, self.shape))}:{self.dtype}:{self.layout}{params}"

    def dtype_of(self, operand: Operand) -> str:
        """The element type of an operand beside x."""
        shared = self.params if operand.of == "channels" else None
        return operand.dtype or shared or self.dtype

    def call(self, direction: str) -> tuple[Direction, Binding]:
        """What is called, with contiguous arrays."""
        package, op = norm_of(self).package, OPS[self.op]
        forward, backward = directions(package)
        chosen = forward if direction == "forward" else backward
        assert chosen is not None
        lengths = solve([(forward.operands[op.x], self.memory_shape)], package.axes)
        sizes: dict[str, int | Shape] = dict(lengths.axes)
        if lengths.rest is not None:
            sizes[REST] = lengths.rest
        dtypes = {op.x: self.dtype} | {o.name: self.dtype_of(o) for o in op.operands}
        return chosen, contiguous_binding(chosen, sizes, dtypes)

    def bytes(self, direction: str) -> Bytes:
        """The fewest bytes that must move."""
        return least_bytes(*self.call(direction))


def norm_of(problem: Problem) -> Norm:
    """The norm that states a problem's op in its layout."""
    name, attrs = OPS[problem.op].specs[problem.layout]
    known = {key: problem.channels if value == "channels" else value for key, value in attrs.items()}
    return _load(name, tuple(known.items()))


@cache
def _load(name: str, attrs: tuple[tuple[str, object], ...]) -> Norm:
    return normgen.load(name, **dict(attrs))


def problems(
    ops: Iterable[str], dtypes: Iterable[str], shapes: Iterable[Shape], layouts: Iterable[str]
) -> list[Problem]:
    """All problems of these ops; no shapes: those of each op. Quantised ops take 16-bit params only."""
    given, chosen, wanted = list(dtypes), list(layouts), list(shapes)
    return [
        Problem(name, shape, dtype, layout)
        for name in ops
        for layout, usual in OPS[name].shapes.items()
        if layout in chosen
        for shape in usual
        if not wanted or shape in wanted
        for dtype in given
        if not (OPS[name].quantised and dtype == "f32")
    ]


def small(ops: Iterable[str]) -> list[Problem]:
    """Each op once, in its first layout, at a shape that takes no time."""
    made = []
    for name in ops:
        layout = next(iter(OPS[name].shapes))
        made.append(Problem(name, (2, 64, 12, 10) if layout == "nchw" else (48, 512), "bf16", layout))
    return made


def _both(name: str, **attrs: object) -> dict[str, tuple[str, Mapping[str, object]]]:
    return {"nchw": (name, attrs), "nhwc": (f"{name}_channels_last", attrs)}


def _images(*shapes: Shape) -> dict[str, tuple[Shape, ...]]:
    return {"nchw": shapes, "nhwc": shapes}


def _response_norm(spec: str) -> Op:
    """A local response norm across channels, as in AlexNet."""
    return Op(
        {"nchw": (spec, {"n": 5})},
        {"nchw": ((128, 96, 55, 55),)},
        (),
        {"alpha": 1e-4, "beta": 0.75, "k": 1.0},
    )


GAIN, BIAS = Operand("w"), Operand("b", start=0.0)
WIDE_GAIN, WIDE_BIAS = Operand("w", "f32"), Operand("b", "f32", 0.0)
MEAN, VAR = Operand("running_mean", "f32", 0.0, state=True), Operand("running_var", "f32", state=True)
RMS, LAYER = {"eps": 1e-6}, {"eps": 1e-5}

ROWS = (
    *((32768, d) for d in (256, 512, 1024, 2048, 4096)),
    *((16384, d) for d in (3000, 5119, 5120, 7168, 8192)),
    (8192, 16384),
    (4096, 32768),
    (2048, 65536),
    (1024, 131072),
    (1024, 262144),
)
HEADS = ((1048576, 64), (524288, 128))
DECODE = ((1, 4096), (16, 4096), (128, 4096))


OPS: dict[str, Op] = {
    "rmsnorm": Op(
        {layout: ("rmsnorm", {}) for layout in ("rows", "heads", "decode", "given")},
        {"rows": ROWS, "heads": HEADS, "decode": DECODE, "given": ((16, 4096),)},
        (GAIN,),
        RMS,
    ),
    "layernorm": Op(
        {layout: ("layernorm", {}) for layout in ("rows", "heads")},
        {"rows": ROWS, "heads": HEADS},
        (GAIN, BIAS),
        LAYER,
    ),
    "softmax": Op({"rows": ("softmax", {})}, {"rows": ROWS}),
    "add_rmsnorm": Op(
        {layout: ("add_rmsnorm", {}) for layout in ("rows", "decode")},
        {"rows": ROWS, "decode": DECODE},
        (Operand("residual", of="x"), GAIN),
        RMS,
        directions=FORWARD,
        outputs=("y", "h"),
    ),
    "groupnorm": Op(
        _both("groupnorm", groups=32),
        _images((8, 320, 64, 64), (2, 512, 256, 256), (1, 128, 512, 512), (8, 1280, 16, 16)),
        (GAIN, BIAS),
        LAYER,
    ),
    "batchnorm": Op(
        _both("batchnorm", training=True),
        _images((256, 256, 56, 56), (256, 512, 14, 14), (256, 64, 112, 112)),
        (WIDE_GAIN, WIDE_BIAS, MEAN, VAR),
        {"eps": 1e-5, "momentum": 0.1},
    ),
    "instancenorm": Op(
        {"nchw": ("instancenorm", {}), "nhwc": ("groupnorm_channels_last", {"groups": "channels"})},
        _images((8, 64, 256, 256)),
        (WIDE_GAIN, WIDE_BIAS),
        LAYER,
    ),
    "layernorm2d": Op(
        {"nchw": ("layernorm2d", {}), "nhwc": ("layernorm", {})},
        _images((32, 96, 56, 56)),
        (GAIN, BIAS),
        {"eps": 1e-6},
    ),
    # one keeps the denominators for the backward, the other computes them again
    "local_response_norm": _response_norm("local_response_norm"),
    "local_response_norm_recomputed": _response_norm("local_response_norm_recomputed"),
    "softmax2d": Op({"nchw": ("softmax2d", {}), "nhwc": ("softmax", {})}, _images((8, 151, 256, 256))),
    "rmsnorm_fp8": Op(
        {"rows": ("rmsnorm_fp8", {})},
        {"rows": ((16384, 4096), (16384, 8192))},
        (Operand("xs", "bf16", of="groups"), GAIN),
        RMS,
        FORWARD,
        ("q",),
        x="xq",
        x_dtype="f8e4m3",
        quantised=True,
    ),
    "rmsnorm_quantized_row": Op(
        {"rows": ("rmsnorm_quantized_row", {})},
        {"rows": ((16384, 4096), (16384, 8192))},
        (GAIN,),
        RMS,
        FORWARD,
        ("q",),
        quantised=True,
    ),
}
