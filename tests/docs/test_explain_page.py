"""The page of `normgen explain --html` in a browser: what it loads, links, palettes, a picture of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from normgen.cli import exits
from tests.cli.commands import run

pytestmark = pytest.mark.site


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("explained") / "page.html"
    done = run("explain", "rmsnorm", "--html", "-o", str(target))
    assert done.exit_code == exits.OK, done.output
    return target


@pytest.fixture(params=["light", "dark"])
def page(request: pytest.FixtureRequest, browser: Any, written: Path) -> Iterator[Any]:
    page = browser.new_page(viewport={"width": 1300, "height": 900}, color_scheme=request.param)
    page.asked, page.said = [], []
    page.on("request", lambda each: page.asked.append(each.url))
    page.on("console", lambda each: page.said.append(each.text))
    page.on("pageerror", lambda each: page.said.append(str(each)))
    page.goto(written.as_uri())
    yield page
    assert page.said == [] and page.asked == [written.as_uri()]
    page.close()


def marked(page: Any, where: str) -> list[str]:
    found: list[str] = page.eval_on_selector_all(f"{where} .marked", "all => all.map(e => e.textContent)")
    return found


def test_a_line_of_the_spec_marks_its_statements_and_back(page: Any) -> None:
    page.click("#spec-9")
    assert any("rmsnorm.norm:9" in text for text in marked(page, ".cuda"))
    assert len(marked(page, ".formulas")) == 1
    page.click(".cuda li[data-lines='8']:visible >> nth=-1")
    assert len(marked(page, "#spec")) == 1 and "rstd[...]" in marked(page, "#spec")[0]
    page.click(".formulas tr[data-lines='6'] >> nth=0")
    assert "param" in marked(page, "#spec")[0] and not any("norm:9" in t for t in marked(page, ".cuda"))


def test_the_backward_is_one_click_away(page: Any) -> None:
    assert page.is_visible("[data-text=forward]") and not page.is_visible("[data-text=backward]")
    page.click("[data-tab=backward]")
    assert page.is_visible("[data-text=backward]") and not page.is_visible("[data-text=forward]")
    assert "rmsnorm_backward" in page.inner_text("[data-text=backward]")


def test_the_page_fits_its_window_and_shows_formulas_and_pictures(page: Any) -> None:
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    tall = page.eval_on_selector_all("math mfrac", "all => all.map(e => e.getBoundingClientRect().height)")
    assert tall and min(tall) > 20  # a fraction is typeset: its parts are above each other
    wide = page.eval_on_selector_all("svg", "all => all.map(e => e.getBoundingClientRect().width)")
    assert len(wide) == 2 and min(wide) > 600
    page.set_viewport_size({"width": 420, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_page_can_be_read_in_both_palettes(page: Any) -> None:
    """Text and paper are far apart in brightness."""
    colours = page.evaluate(
        "['color', 'backgroundColor'].map(k => getComputedStyle(document.body)[k].match(/\\d+/g).map(Number))"
    )
    text, paper = (sum(colour[:3]) / 3 for colour in colours)
    assert abs(text - paper) > 150
    assert len(page.screenshot()) > 30_000
