"""Screenshots of the built site, into docs/images/screens: `make screenshots`."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from tools.docs.browser import MISSING, find_browser, opened, served
from tools.docs.pages import ROOT

TARGET = ROOT / "docs" / "images" / "screens"


@dataclass(frozen=True)
class Shot:
    """One screenshot."""

    name: str
    page: str
    scheme: str = "light"


SHOTS = (
    Shot("home-light", "index.html"),
    Shot("home-dark", "index.html", "dark"),
    Shot("tutorial", "tutorials/your-own-norm.html"),
    Shot("gallery", "gallery/layernorm.html"),
    Shot("reference", "reference/api-torch-nn.html"),
    Shot("how-it-works", "how/index.html", "dark"),
)


def take() -> None:
    """Take all of them."""
    found = find_browser()
    if found is None:
        sys.exit(MISSING)
    TARGET.mkdir(parents=True, exist_ok=True)
    with served(ROOT / "site") as address, opened(found) as browser:
        for shot in SHOTS:
            page = browser.new_page(viewport={"width": 1120, "height": 720}, color_scheme=shot.scheme)
            answer = page.goto(f"{address}/{shot.page}")
            assert answer is not None and answer.ok, shot.page
            page.screenshot(path=TARGET / f"{shot.name}.png")
            page.close()


if __name__ == "__main__":
    take()
