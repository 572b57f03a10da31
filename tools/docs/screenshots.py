"""Screenshots of the built site, and of a session in a terminal of 80 columns, into docs/images/screens:
`make screenshots`."""

from __future__ import annotations

import html
import os
import subprocess
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
    width: int = 1280


PHONE = 390
SHOTS = (
    Shot("home-light", "index.html"),
    Shot("home-dark", "index.html", "dark"),
    Shot("home-phone", "index.html", width=PHONE),
    Shot("tutorial", "tutorials/your-own-norm.html"),
    Shot("gallery", "gallery/index.html"),
    Shot("gallery-phone", "gallery/index.html", width=PHONE),
    Shot("layernorm", "gallery/layernorm.html"),
    Shot("performance", "how/performance.html"),
    Shot("performance-phone", "how/performance.html", width=PHONE),
    Shot("reference", "reference/api-torch.html"),
    Shot("reference-phone", "reference/api-torch.html", width=PHONE),
    Shot("how-it-works", "how/index.html", "dark"),
)
SESSION = ("explain rmsnorm", "check rmsnorm --quick")
TERMINAL = """<body style="margin: 0; background: #16181d"><pre style="display: inline-block; margin: 0;
padding: 16px; width: 80ch; font: 12px/1.4 monospace; color: #e6e6e6">{}</pre></body>"""


def take() -> None:
    """Take all of them."""
    found = find_browser()
    if found is None:
        sys.exit(MISSING)
    TARGET.mkdir(parents=True, exist_ok=True)
    with served(ROOT / "site") as address, opened(found) as browser:
        for shot in SHOTS:
            page = browser.new_page(viewport={"width": shot.width, "height": 800}, color_scheme=shot.scheme)
            answer = page.goto(f"{address}/{shot.page}")
            assert answer is not None and answer.ok, shot.page
            page.screenshot(path=TARGET / f"{shot.name}.png")
            page.close()
        terminal = browser.new_page()
        terminal.set_content(TERMINAL.format(html.escape(session())))
        terminal.locator("pre").screenshot(path=TARGET / "terminal.png")


def session() -> str:
    """What a user sees who calls the commands of `SESSION`."""
    shown = []
    for line in SESSION:
        command = [sys.executable, "-m", "normgen", *line.split()]
        environment = {**os.environ, "COLUMNS": "80"}
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        shown.append(f"$ normgen {line}\n{done.stdout}")
    return "\n".join(shown)


if __name__ == "__main__":
    take()
