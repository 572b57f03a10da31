"""How many texts a norm of images takes, whatever batches and sizes of images its calls have."""

from __future__ import annotations

import random
from functools import cache

import pytest

from normgen.families.rows.launch.any_size import FORM
from normgen.launching.images import VARIABLE
from normgen.launching.launch import Launch
from normgen.measure.norms import contiguous_binding, direction_of
from normgen.package.records import Package
from normgen.runtime.planning.choose import plan_launches
from tests.codegen.norms import H200, packaged

MOST = 3  # of a norm, direction and type
CHANNELS = 64  # of a model: a whole number of groups
COUNT = 200
# What takes more texts in one of its directions: so many of all calls below. A figure may fall, never rise.
MORE = {
    ("groupnorm", "backward"): 4,
    ("groupnorm_silu", "backward"): 5,
    ("layernorm2d", "backward"): 4,
    ("rmsnorm2d", "backward"): 4,
}
NORMS = ("batchnorm", "groupnorm", "groupnorm_silu", "instancenorm", "layernorm2d", "rmsnorm2d", "softmax2d")
DIRECTIONS = ("forward", "backward")
DTYPES = ("bf16", "f32")


@pytest.fixture(autouse=True)
def general(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts for images of all sizes are asked for."""
    monkeypatch.setenv(VARIABLE, "general")


@cache
def sizes() -> tuple[tuple[int, int], ...]:
    """Batches, and pixels of an image, of all residues."""
    drawn = random.Random(45)

    def between(least: float, most: float) -> int:
        return round(2 ** drawn.uniform(least, most))

    return tuple((between(0, 7), between(2, 8) * between(2, 8)) for _ in range(COUNT))


def launches(package: Package, direction: str, dtype: str, images: int, pixels: int) -> tuple[Launch, ...]:
    """What a call with so many images launches."""
    found = direction_of(package, direction)
    binding = contiguous_binding(found, lengths(package, images, pixels), dtype)
    return plan_launches(found.record, binding, H200).launches


def lengths(package: Package, images: int, pixels: int) -> dict[str, int]:
    """By axis, of a norm that has groups of channels or none, and pixels along one axis or two."""
    extents = {axis.name: axis.extent for axis in package.axes}
    found = {"B": images, "C": CHANNELS // (extents.get("G") or 1)}
    return found | ({"H": pixels, "W": 1} if "W" in extents else {"...": pixels})


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", NORMS)
def test_few_texts_serve_images_of_every_size(name: str, direction: str, dtype: str) -> None:
    package, texts = packaged(name), set()
    for images, pixels in sizes():
        texts |= {each.source for each in launches(package, direction, dtype, images, pixels)}
    assert len(texts) <= MORE.get((name, direction), MOST)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", NORMS[:4])
def test_a_warmed_up_norm_has_the_texts_of_all_sizes(name: str, direction: str) -> None:
    """What a call tells of others (`alike`) has every text that they take."""
    record = direction_of(packaged(name), direction)
    small = contiguous_binding(record, lengths(packaged(name), 2, 64), "bf16")
    plan = plan_launches(record.record, small, H200)
    known = {each.source for each in (*plan.launches, *plan.alike())}
    taken = {each.source for size in sizes() for each in launches(packaged(name), direction, "bf16", *size)}
    assert taken <= known


def test_rows_that_begin_apart_have_a_text_for_their_size() -> None:
    """Of operands that do not begin at the same element of a word one text cannot have all sizes."""
    mixed = direction_of(packaged("instancenorm"), "backward")
    extents, types = {"B": 4, "C": CHANNELS, "...": 49}, dict.fromkeys(mixed.operands, "bf16")
    for given, general in ((types, True), (types | {"x": "f32"}, False)):
        plan = plan_launches(mixed.record, contiguous_binding(mixed, extents, given), H200)
        assert plan.launches[0].entry.endswith(FORM) is general


def test_a_text_for_all_sizes_is_made_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself a size has a text of its own."""
    asked = {launch.entry for launch in launches(packaged("instancenorm"), "forward", "bf16", 5, 1000)}
    monkeypatch.delenv(VARIABLE)
    usual = {launch.entry for launch in launches(packaged("instancenorm"), "forward", "bf16", 5, 1000)}
    assert {entry.endswith(FORM) for entry in asked} == {True}
    assert {entry.endswith(FORM) for entry in usual} == {False}
