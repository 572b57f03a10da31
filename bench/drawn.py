"""Calls drawn at random by class, for whoever judges how schedules are chosen: none is named in the code.

Classes: many rows whose width is a multiple of 8, or any other; few rows; long rows; images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from math import exp, isqrt, log
from random import Random
from types import MappingProxyType
from typing import Any

DIRECTIONS = ("forward", "backward")
_DTYPES = ("bf16", "bf16", "f16", "f32")  # as often as they are met
_ROW_NORMS = ("rmsnorm", "layernorm", "softmax", "add_rmsnorm")
_GROUPS = 32
_ROWS_ELEMENTS, _IMAGE_ELEMENTS = (20_000_000, 120_000_000), 40_000_000
_MOST_ROWS = 100_000

Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A norm in one direction at one size."""

    kind: str  # a key of `KINDS`
    norm: str
    attrs: tuple[tuple[str, int | bool], ...]
    direction: str
    dtype: str
    sizes: tuple[tuple[str, int], ...]

    @property
    def text(self) -> str:
        """In one line."""
        sizes = " x ".join(str(length) for _, length in self.sizes)
        return f"{self.kind}: {self.norm} {self.direction}, {sizes} {self.dtype}"


def line_of(drawn: Drawn) -> dict[str, Any]:
    """A call as lines of data have it; `of_line` reads it."""
    return {each.name: _plain(getattr(drawn, each.name)) for each in fields(drawn)}


def of_line(line: Mapping[str, Any]) -> Drawn:
    """The call of a line."""
    values = (line[each.name] for each in fields(Drawn))
    return Drawn(*(tuple(value.items()) if isinstance(value, dict) else value for value in values))


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, tuple) else value


def draw(seed: int, count: int) -> list[Drawn]:
    """So many calls, of each class in turn."""
    random, kinds = Random(seed), list(KINDS.items())
    return [_drawn(random, *kinds[place % len(kinds)]) for place in range(count)]


def _drawn(random: Random, kind: str, sizes: Callable[[Random], Sizes]) -> Drawn:
    lengths = dict(sizes(random))
    norm, attrs = (random.choice(_ROW_NORMS), {}) if kind != "images" else _image_norm(random, lengths)
    direction, dtype = random.choice(DIRECTIONS), random.choice(_DTYPES)
    return Drawn(kind, norm, tuple(attrs.items()), direction, dtype, tuple(lengths.items()))


def _image_norm(random: Random, lengths: dict[str, int]) -> tuple[str, dict[str, int | bool]]:
    """A norm of images of these channels: those of groups have theirs as channels of a group."""
    norm, attrs = random.choice(_IMAGE_NORMS)
    if "groups" in attrs:
        lengths["C"] = max(1, lengths["C"] // _GROUPS)
    return norm, dict(attrs)


_IMAGE_NORMS: tuple[tuple[str, Mapping[str, int | bool]], ...] = (
    ("groupnorm", {"groups": _GROUPS}),
    ("groupnorm_channels_last", {"groups": _GROUPS}),
    ("batchnorm", {"training": True}),
    ("instancenorm", {}),
    ("layernorm2d", {}),
)


def between(random: Random, least: float, most: float) -> int:
    """A length, of which every order of magnitude is as likely."""
    return int(exp(random.uniform(log(least), log(most))))


def _many(random: Random, width: int) -> Sizes:
    rows = between(random, *_ROWS_ELEMENTS) // width
    return {"...": max(1, min(_MOST_ROWS, rows)), "D": width}


def _multiples(random: Random) -> Sizes:
    return _many(random, between(random, 64, 60_000) // 8 * 8)


def _others(random: Random) -> Sizes:
    width = between(random, 65, 50_000)
    return _many(random, width if width % 8 else width + random.randrange(1, 8))


def _few(random: Random) -> Sizes:
    return {"...": between(random, 1, 1025), "D": between(random, 64, 130_000) // 8 * 8}


def _long(random: Random) -> Sizes:
    return {"...": between(random, 1, 121), "D": between(random, 100_000, 1_000_000)}


def _images(random: Random) -> Sizes:
    channels, pixels = between(random, 32, 1025) // 8 * 8, between(random, 49, 20_000)
    return {"B": max(1, min(256, _IMAGE_ELEMENTS // (channels * pixels))), "C": channels, "...": pixels}


KINDS: Mapping[str, Callable[[Random], Sizes]] = MappingProxyType(
    {
        "multiples of 8": _multiples,
        "other widths": _others,
        "few rows": _few,
        "long rows": _long,
        "images": _images,
    }
)

# ---------------------------------------------------------------------------------------- beside peers

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Compared:
    """A norm that peers have too, in one direction at one shape, in the words of `problems.Problem`."""

    kind: str  # a key of `COMPARED`
    op: str
    direction: str
    dtype: str
    params: str | None  # the element type of gains and biases, where it is not that of x
    layout: str
    shape: Shape  # of x, images as NCHW whatever the layout


@dataclass(frozen=True, slots=True)
class Kind:
    """A class of calls that are compared."""

    shape: Callable[[Random, str], Shape]  # of an op
    ops: Mapping[str, tuple[str, ...]]  # by direction
    layout: str = "rows"
    dtypes: tuple[str, ...] = _DTYPES
    params: str | None = None


def compared(seed: int, count: int) -> list[Compared]:
    """So many calls: one of each class in turn, forward in every other turn. Those of a smaller count are the
    first of a larger."""
    random, kinds = Random(seed), list(COMPARED.items())
    made = []
    for place in range(count):
        turn, at = divmod(place, len(kinds))
        name, kind = kinds[at]
        direction = DIRECTIONS[turn % len(DIRECTIONS)]
        op, dtype = random.choice(kind.ops[direction]), random.choice(kind.dtypes)
        made.append(Compared(name, op, direction, dtype, kind.params, kind.layout, kind.shape(random, op)))
    return made


def _rows(sizes: Callable[[Random], Sizes]) -> Callable[[Random, str], Shape]:
    return lambda random, op: tuple(sizes(random).values())


def _rows_of_any_class(random: Random, op: str) -> Shape:
    return _rows(random.choice((_multiples, _others, _few, _long)))(random, op)


def _image_shape(random: Random, op: str) -> Shape:
    """Images that are about as high as wide; channels that groups share evenly where there are groups."""
    batch, channels, pixels = _images(random).values()
    if op == "groupnorm":
        channels = max(1, channels // _GROUPS) * _GROUPS
    height = isqrt(pixels)
    return batch, channels, height, pixels // height


_WITH_GAINS = ("rmsnorm", "layernorm")
_ROW_OPS = {
    "forward": (*_WITH_GAINS, "softmax", "add_rmsnorm"),
    "backward": (*_WITH_GAINS, "softmax"),
}
_GAIN_OPS = {"forward": (*_WITH_GAINS, "add_rmsnorm"), "backward": _WITH_GAINS}
_IMAGE_OPS = dict.fromkeys(DIRECTIONS, ("groupnorm", "batchnorm", "instancenorm", "layernorm2d", "softmax2d"))

COMPARED: Mapping[str, Kind] = MappingProxyType(
    {
        "multiples of 8": Kind(_rows(_multiples), _ROW_OPS),
        "other widths": Kind(_rows(_others), _ROW_OPS),
        "few rows": Kind(_rows(_few), _ROW_OPS),
        "long rows": Kind(_rows(_long), _ROW_OPS),
        "f32 gains": Kind(_rows_of_any_class, _GAIN_OPS, dtypes=("bf16",), params="f32"),
        "images": Kind(_image_shape, _IMAGE_OPS, "nchw"),
        "images, channels last": Kind(_image_shape, _IMAGE_OPS, "nhwc"),
    }
)
