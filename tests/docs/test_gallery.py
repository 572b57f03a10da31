"""The gallery: a place for every bundled spec, and what its page has."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from normgen import bundled
from tools.docs import bandwidth
from tools.docs.gallery import GROUPS, attrs_of, index, page, users
from tools.docs.thumbnail import SHARED

SECTIONS = ["Formulas", "Calls", "What is saved", "Bytes", "Bandwidth", "Kernels"]


@cache
def text(name: str) -> str:
    return page(name)


def test_every_bundled_spec_is_in_one_group_and_in_the_index() -> None:
    placed = Counter(name for names in GROUPS.values() for name in names)
    missing = set(bundled.names()) - set(placed)
    assert not missing, f"no page in the gallery: give {missing} a place in tools/docs/gallery.py"
    assert set(placed) == set(bundled.names()) and set(placed.values()) == {1}
    assert set(re.findall(r"\]\((\w+)\.md\)", index())) == set(bundled.names())


@pytest.mark.parametrize(
    "name, cells",
    [
        ("layernorm", 9),
        ("batchnorm", 9),
        ("groupnorm", 6),
        ("layernorm2d", 3),
        ("local_response_norm", 2),
        ("dyt", 1),
    ],
)
def test_the_index_shows_what_shares_a_statistic(name: str, cells: int) -> None:
    (line,) = (line for line in index().splitlines() if f"]({name}.md)" in line)
    picture = ElementTree.fromstring(line.split("|")[1].strip())
    highlighted = [each for each in picture if each.get("fill") == SHARED]
    assert len(highlighted) == cells and len(picture) > cells
    assert max(float(each.get("x", 0)) for each in highlighted) < float(picture.get("width", 0))


def test_labels_of_a_chart_are_inside_and_apart() -> None:
    (found,) = re.findall("<div>(.*)</div>", bandwidth.bandwidth("rmsnorm"))
    picture = ElementTree.fromstring(found)
    width, height = map(float, picture.get("viewBox", "").split()[2:])
    labels = [each for each in picture.iter() if each.tag.endswith("text")]
    places = [(float(each.get("x", 0)), float(each.get("y", 0))) for each in labels]
    assert all(0 <= x <= width - 4 and 0 <= y <= height for x, y in places)
    turned = [x for each, (x, _) in zip(labels, places, strict=True) if each.get("transform")]
    assert len(turned) == 2 * 15 and min(b - a for a, b in pairwise(turned)) > 12, "a label for each width"


def test_a_page_has_everything() -> None:
    shown = text("rmsnorm")
    assert re.findall("^## (.*)", shown, re.MULTILINE) == SECTIONS
    assert "Found in Transformer Engine" in shown and "norm(x, w=None, *, eps: float = 1e-06, " in shown
    assert "| `rstd` | 32768 | f32 | 131 KB |" in shown
    assert "### Backward: " in shown and "times the minimum" in shown
    assert "extern" in shown and "rmsnorm.norm:9" in shown and "struct Vector" not in shown
    assert shown.count("<svg") == 3


def test_markup_in_a_page_is_well_formed_and_holds_no_links() -> None:
    blocks = re.findall(r"^<div>.*</div>$", text("rmsnorm"), re.MULTILINE)
    assert len(blocks) == 5
    for block in blocks:
        ElementTree.fromstring(block.replace("&#x2061;", "").replace("&#91;", "("))
        assert not set("[]") & set(block)


def test_what_a_spec_needs_is_given() -> None:
    assert attrs_of("groupnorm") == {"groups": 32} and attrs_of("qk_norm") == {"head_dim": 128}
    assert attrs_of("rmsnorm_quantized_group") == {}


def test_who_has_a_norm_is_what_the_tables_of_the_docs_say() -> None:
    assert "Megatron" in users()["layernorm_zero_centred"] and "PyTorch" in users()["log_softmax"]
    assert set(users()) <= set(bundled.names()) and len(users()) >= len(bundled.names()) - 2


def test_bandwidth_is_shown_where_it_was_measured() -> None:
    drawn = bandwidth.bandwidth("rmsnorm")
    measured = bandwidth.there([row for row in bandwidth._results()["rows"] if row["op"] == "rmsnorm"])
    assert drawn.count("<polyline") == 2 * len(measured) and "H200" in drawn
    for provider, (name, _) in bandwidth.PROVIDERS.items():
        assert (f">{name}</text>" in drawn) == (provider in measured)
    images = bandwidth.bandwidth("groupnorm")
    assert "<svg" not in images and "| forward | nhwc | " in images
    assert bandwidth.bandwidth("scalenorm") == ""
