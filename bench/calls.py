"""Calls whose kernels are timed: norms, directions, types and sizes, drawn at random by class.

Beside the classes of `bench.drawn` there is one for each family of kernels that few of their calls have. Of
their calls only kernels of that family are timed. Norms that are not bundled are in `bench/specs/`.
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any

import normgen
from bench.drawn import KINDS, Drawn, Sizes, between
from normgen.launching.launch import Binding
from normgen.measure.norms import contiguous_binding, direction_of
from normgen.package.direction import Direction

SPECS = Path(__file__).parent / "specs"
TYPES = ("bf16", "bf16", "f16", "f32", "bf16 with f32 params")

Attrs = tuple[tuple[str, int | bool], ...]
Norm = tuple[str, Attrs]

# Norms of rows and of images that are measured; a held-out spec is one that is not here.
ROWS: tuple[Norm, ...] = tuple(
    (name, ())
    for name in (
        "rmsnorm", "layernorm", "softmax", "add_rmsnorm", "rmsnorm", "layernorm", "log_softmax",
        "gated_rmsnorm", "l2norm", "rmsnorm_zero_centred", "rmsnorm_quantized_row", "dyt",
    )
)  # fmt: skip
_GROUPS = (("groups", 32),)
IMAGES: tuple[Norm, ...] = (
    ("groupnorm", _GROUPS),
    ("groupnorm_silu", _GROUPS),
    ("groupnorm_channels_last", _GROUPS),
    ("batchnorm", (("training", True),)),
    ("batchnorm_channels_last", (("training", True),)),
    ("instancenorm", ()),
    ("layernorm2d", ()),
    ("rmsnorm2d", ()),
)
WINDOWS: tuple[Norm, ...] = tuple(
    (norm, (("n", length),))
    for norm, lengths in (
        ("local_response_norm", (3, 5, 5, 9)),
        ("local_response_norm_recomputed", (3, 5, 5, 9)),
        ("local_response_norm_within", (3, 5)),
        ("local_response_norm_channels_last", (3, 5, 9)),
    )
    for length in lengths
)
TILES: tuple[Norm, ...] = (
    ("scaled_twice", ()),
    ("affine_to_channels_last", ()),
    ("affine_to_channels_last", ()),
    ("add_channels_last", ()),
    ("add_channels_last", ()),
    *(("rmsnorm_fp8", (("group", length),)) for length in (16, 128)),  # has two such kernels
)
RESIDENT: tuple[Norm, ...] = (
    ("batchnorm_channels_last", (("training", True),)),
    ("batchnorm_channels_last", (("training", True),)),
    *(("groupnorm_channels_last", (("groups", count),)) for count in (1, 16, 32)),
    *(("groupnorm_silu_channels_last", (("groups", count),)) for count in (8, 32)),
    ("instancenorm_channels_last", ()),
)
PLANES: tuple[Norm, ...] = (
    ("layernorm2d", ()),
    ("layernorm2d", ()),
    ("rmsnorm2d", ()),
    ("rmsnorm2d", ()),
    ("groupnorm", _GROUPS),
    ("batchnorm", (("training", True),)),
    ("batchnorm_channels_last", (("training", True),)),
    ("instancenorm", ()),
    ("instancenorm_channels_last", ()),
)
# Those whose backward is left out: it has no kernel, or none of the family that its class is of.
_ONLY_FORWARD = ("rmsnorm_quantized_row", "rmsnorm_fp8", "scaled_twice", "groupnorm_silu_channels_last")


@dataclass(frozen=True, slots=True)
class Class:
    """Calls that are alike."""

    norms: tuple[Norm, ...]
    sizes: Callable[[Random, str, Mapping[str, Any]], Sizes]  # of a norm with these attrs
    family: str = ""  # the only one whose kernels are timed; all are where there is none


def draw(seed: int, kinds: Sequence[str] = ()) -> Iterator[Drawn]:
    """Calls without an end, of each class in turn, or of some."""
    random, kinds = Random(seed), kinds or tuple(CLASSES)
    while True:
        for kind in kinds:
            norm, attrs = random.choice(CLASSES[kind].norms)
            sizes = CLASSES[kind].sizes(random, norm, dict(attrs))
            direction = random.choice(("forward", "backward", "backward"))
            if norm in _ONLY_FORWARD:
                direction = "forward"
            yield Drawn(kind, norm, attrs, direction, random.choice(TYPES), tuple(sizes.items()))


def kinds_of(text: str) -> tuple[str, ...]:
    """The classes of an argument, with commas between them."""
    kinds = tuple(filter(None, (each.strip() for each in text.split(","))))
    if unknown := [kind for kind in kinds if kind not in CLASSES]:
        raise ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(CLASSES)}")
    return kinds


@cache
def package_of(norm: str, attrs: Attrs) -> Any:
    """The package of a norm, which is bundled or one of the bench's own."""
    own = SPECS / f"{norm}.norm"
    return normgen.load(own if own.exists() else norm, **dict(attrs)).package


def call_of(drawn: Drawn) -> tuple[Direction, Binding]:
    """The direction and the arrays of a call."""
    direction = direction_of(package_of(drawn.norm, drawn.attrs), drawn.direction)
    dtype, _, mixed = drawn.dtype.partition(" with ")
    types: str | dict[str, str] = dtype
    if mixed:
        names = {n: o for n, o in direction.operands.items() if o.dtype is None and n in direction.reads}
        types = {n: "f32" if o.role == "param" else dtype for n, o in names.items()}
    return direction, contiguous_binding(direction, dict(drawn.sizes), types)


# ------------------------------------------------------------------------------------------------ sizes


def _of_images(random: Random, norm: str, attrs: Mapping[str, Any]) -> Sizes:
    sizes = dict(KINDS["images"](random))
    if random.random() < 0.3:  # small ones
        sizes["..."] = between(random, 4, 256)
        sizes["B"] = max(1, min(2048, 20_000_000 // (sizes["..."] * sizes["C"])))
    return _named(norm, attrs, *sizes.values())


def _of_planes(random: Random, norm: str, attrs: Mapping[str, Any]) -> Sizes:
    """Images that are about as high as wide, half of them small, at any batch."""
    height = between(random, *((3, 16) if random.random() < 0.5 else (16, 111)))
    pixels, channels = height * (height + random.randrange(2)), between(random, 32, 1025) // 8 * 8
    most = max(2, min(257, 40_000_000 // (pixels * channels)))
    return _named(norm, attrs, between(random, 1, most), channels, pixels)


def _of_windows(random: Random, norm: str, attrs: Mapping[str, Any]) -> Sizes:
    channels, height, width = between(random, 3, 2049), between(random, 3, 200), _often_even(random, 4, 200)
    images = between(random, 100_000, 60_000_000) // (channels * height * width)
    images = max(1, min(2048, images))
    if norm == "local_response_norm_within":
        return {"B": images, "C": channels, "H": height, "W": width}
    return {"B": images, "C": channels, "...": height * width}


def _of_matrices(random: Random, norm: str, attrs: Mapping[str, Any]) -> Sizes:
    columns = _often_even(random, 8, 16_384)
    rows = max(1, _often_even(random, 100_000, 80_000_000) // columns)
    match norm:
        case "rmsnorm_fp8":
            group = attrs["group"]
            return {"...": rows, "G": max(1, columns // group), "E": group}
        case "scaled_twice":
            return {"...": rows, "D": columns}
    images = between(random, 1, 257)
    return {"B": images, "C": columns, "...": max(1, rows // images)}


def _of_segments(random: Random, norm: str, attrs: Mapping[str, Any]) -> Sizes:
    channels = between(random, 32, 2049) // 8 * 8
    if norm == "batchnorm_channels_last":
        return {"...": max(512, between(random, 100_000, 12_000_000) // channels), "C": channels}
    elements = between(random, 200_000, 5_000_000)
    images = between(random, 1, min(257, 100_000_000 // elements))
    return _named(norm, attrs, images, channels, max(16, elements // channels))


def _named(norm: str, attrs: Mapping[str, Any], images: int, channels: int, pixels: int) -> Sizes:
    """The lengths of images by the axes that a norm has."""
    if norm == "batchnorm_channels_last":
        return {"...": images * pixels, "C": channels}
    return {"B": images, "C": max(1, channels // attrs.get("groups", 1)), "...": pixels}


def _often_even(random: Random, least: float, most: float) -> int:
    """A length that is a multiple of 16 half of the time."""
    found = between(random, least, most)
    return found // 16 * 16 or found if random.random() < 0.5 else found


def _of_rows(kind: str) -> Class:
    return Class(ROWS, lambda random, norm, attrs: KINDS[kind](random))


CLASSES: Mapping[str, Class] = MappingProxyType(
    {
        **{kind: _of_rows(kind) for kind in KINDS if kind != "images"},
        "images": Class(IMAGES, _of_images),
        "planes": Class(PLANES, _of_planes),
        "windows": Class(WINDOWS, _of_windows, "windows"),
        "tiles": Class(TILES, _of_matrices, "tiles"),
        "resident": Class(RESIDENT, _of_segments, "resident"),
    }
)
