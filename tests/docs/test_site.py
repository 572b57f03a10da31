"""The site in a browser: every page, every link, formulas, search, light and dark."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

import pytest

from tests.docs.conftest import ROOT

pytestmark = pytest.mark.site
# What a page is asked for: its anchors, where it leads, and what of it is no prose.
READ = """() => ({
    ids: [...document.querySelectorAll('[id], a[name]')].map(e => e.id || e.name),
    links: [...document.querySelectorAll('a[href]')].map(e => e.href),
    broken: [...document.images].filter(e => e.offsetParent && !e.naturalWidth).map(e => e.src),
    text: document.querySelector('article')?.innerText ?? '',
    prose: [...document.querySelectorAll('article p, article li, article td')].map(e => {
        const copy = e.cloneNode(true);
        copy.querySelectorAll('code, pre, math').forEach(c => c.remove());
        return copy.textContent;
    }).join('\\n'),
    title: document.title,
    fractions: document.querySelectorAll('article math mfrac').length,
})"""


@dataclass
class Read:
    """What the browser saw of one page."""

    ids: set[str]
    links: list[str]
    broken: list[str]
    text: str
    prose: str
    title: str
    fractions: int


@dataclass
class Visit:
    """What the browser saw of all pages."""

    pages: dict[str, Read] = field(default_factory=dict)  # by address
    errors: list[str] = field(default_factory=list)  # of the console, and of requests
    requests: set[str] = field(default_factory=set)


@pytest.fixture(scope="module")
def visit(built: Path, address: str, browser: Any) -> Visit:
    """All pages, opened one after the other."""
    visit, page = Visit(), browser.new_page()

    def say(what: str) -> None:
        visit.errors.append(f"{page.url}: {what}")

    page.on("request", lambda request: visit.requests.add(request.url))
    page.on("response", lambda got: got.status < 400 or say(f"{got.status} {got.url}"))
    page.on("requestfailed", lambda failed: "ERR_ABORTED" in failed.failure or say(f"{failed.url} failed"))
    page.on("pageerror", lambda error: say(str(error)))
    page.on("console", lambda told: told.type in ("error", "warning") and say(told.text))
    for path in sorted(built.rglob("*.html")):
        url = f"{address}/{path.relative_to(built)}"
        page.goto(url, wait_until="load")
        read = page.evaluate(READ)
        visit.pages[url] = Read(**{**read, "ids": set(read["ids"])})
    page.close()
    return visit


@pytest.fixture
def page(address: str, browser: Any) -> Iterator[Any]:
    """The home page in a window of its own."""
    context = browser.new_context(color_scheme="light", viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.goto(address)
    yield page
    context.close()


def test_pages_open_without_errors_and_alone(visit: Visit, address: str) -> None:
    assert len(visit.pages) > 50
    assert not visit.errors, "\n".join(visit.errors)
    assert not [url for url in visit.requests if not url.startswith((address, "data:", "blob:"))]
    assert not [(url, read.broken) for url, read in visit.pages.items() if read.broken]
    untitled = [url for url, read in visit.pages.items() if len(read.text) < 40 or not read.title]
    assert [url.rpartition("/")[2] for url in untitled] in ([], ["404.html"])


def test_links_lead_somewhere(visit: Visit, built: Path, address: str) -> None:
    dead = set()
    for url, read in visit.pages.items():
        for link in read.links:
            target, anchor = urldefrag(link)
            if not target.startswith(address):
                continue
            target = re.sub(r"/$", "/index.html", target).partition("?")[0]
            there = (built / unquote(target.removeprefix(f"{address}/"))).is_file()
            known = target not in visit.pages or not anchor or unquote(anchor) in visit.pages[target].ids
            if not (there and known):
                dead.add(f"{url}: {link}")
    assert not dead, "\n".join(sorted(dead))


def test_every_page_is_reached_from_home(visit: Visit, address: str) -> None:
    seen, todo = set(), [f"{address}/index.html"]
    while todo:
        url = todo.pop()
        if url in visit.pages and url not in seen:
            seen.add(url)
            todo += [re.sub(r"/$", "/index.html", urldefrag(link)[0]) for link in visit.pages[url].links]
    assert set(visit.pages) - seen == {f"{address}/404.html"}


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", ["index", "how/performance", "gallery/index", "reference/api-torch"])
def test_pages_fit_their_window(name: str, width: int, address: str, page: Any) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(f"{address}/{name}.html")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    if width > 1000:
        wide = (
            """all => all.filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.innerText.slice(0, 60))"""
        )
        assert page.eval_on_selector_all("article .md-typeset__scrollwrap", wide) == []


def test_code_of_the_home_page_is_not_cut_off(page: Any) -> None:
    """Nor does the button that copies it cover any."""
    covered = page.eval_on_selector_all(
        "article pre > code", "all => all.filter(e => e.scrollWidth > e.clientWidth).map(e => e.innerText)"
    )
    assert covered == []
    field = page.locator(".md-search").bounding_box()
    side = page.locator(".md-header__inner").bounding_box()
    assert side["x"] + side["width"] - field["x"] - field["width"] < 40, "the search field ends the header"


def test_results_of_runs_are_not_searched(built: Path) -> None:
    found = json.loads((built / "search.json").read_text(encoding="utf-8"))
    places = [item["location"] for item in found["items"]]
    assert any(place.startswith("how/performance") for place in places)
    assert not [place for place in places if place.startswith("files/")]


def test_formulas_are_typeset(visit: Visit, page: Any) -> None:
    """As MathML that the browser lays out, and nowhere as TeX."""
    tex = [url for url, read in visit.pages.items() if re.search(r"\$\$|\$\\|\\frac|\\sqrt", read.prose)]
    assert not tex
    page.goto(next(url for url, read in visit.pages.items() if read.fractions))
    boxes = page.evaluate("""() => {
        const [above, below] = document.querySelector('math mfrac').children;
        return [above.getBoundingClientRect().bottom, below.getBoundingClientRect().top];
    }""")
    assert boxes[0] <= boxes[1], "the numerator stands above the denominator"


def test_specs_are_coloured(visit: Visit, page: Any) -> None:
    assert not [url for url, read in visit.pages.items() if "```" in read.prose]
    page.goto(next(url for url in visit.pages if url.endswith("gallery/rmsnorm.html")))
    assert page.locator("pre .kd").first.inner_text() == "norm"
    colours = page.evaluate(
        """['.kd', '.sd'].map(e => getComputedStyle(document.querySelector(`pre ${e}`)).color)"""
    )
    assert len(set(colours)) == 2


def test_search_finds_and_leads_there(page: Any) -> None:
    page.get_by_role("button", name="Search").first.click()
    page.locator("dialog input:visible").fill("inside a kernel")
    page.locator("dialog").get_by_text("Inside a kernel").first.click()
    page.wait_for_url(re.compile(r"glossary\.html"))


def test_the_palette_follows_the_system_and_the_switch(page: Any) -> None:
    def scheme() -> str:
        return str(page.evaluate("document.body.getAttribute('data-md-color-scheme')"))

    def background() -> int:
        shade = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(map(int, re.findall(r"\d+", shade)[:3]))

    assert scheme() == "default" and background() > 600
    page.emulate_media(color_scheme="dark")
    page.wait_for_function("document.body.getAttribute('data-md-color-scheme') == 'slate'")
    assert background() < 300
    assert page.locator("img[src$='only-dark']").first.is_visible()
    assert not page.locator("img[src$='only-light']").first.is_visible()
    page.locator("label[title='Switch to light mode']").click()
    page.wait_for_function("document.body.getAttribute('data-md-color-scheme') == 'default'")
    page.locator("label[title='Switch to dark mode']").click()
    assert scheme() == "slate"
    page.reload()
    assert scheme() == "slate", "the choice is kept"


def test_mkdocs_reads_the_same_configuration(built: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {str(path.relative_to(built)) for path in built.rglob("*.html")}
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.html")} == pages


@pytest.mark.parametrize("link", ["nowhere.md", "index.md#nowhere", "#nowhere"])
def test_a_dead_link_fails_the_build(link: str, built: Path, tmp_path: Path) -> None:
    config = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[0].replace("build/docs", "docs")
    (tmp_path / "mkdocs.yml").write_text(re.sub(r"  - tools\.docs\.\w+\n", "", config))
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# Home\n\n[a link]({link})\n")
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0
    assert "does not exist" in done.stdout + done.stderr
