"""The site, built anew and served on this machine, and a browser that reads it.

The browser is Debian's, or another Chromium or Chrome on the path. Where there is none, these tests are
skipped with the command that installs it, and fail if `NORMGEN_TEST_BROWSER` is set, as it is in CI.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
SITE = ROOT / "site"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# It asks for nothing from outside, and needs no display and no sandbox (which root has not).
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


@pytest.fixture(scope="session")
def built() -> Path:
    """The folder of the site, as `make docs` makes it."""
    shutil.rmtree(SITE, ignore_errors=True)
    for command in (["tools.docs"], ["zensical", "build", "--clean", "--strict"]):
        done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return SITE


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="session")
def address(built: Path) -> Iterator[str]:
    """Where the site is served."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(built))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A headless browser of playwright."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        missing = f"no browser is there ({', '.join(BROWSERS)}): apt-get install chromium"
        if os.environ.get("NORMGEN_TEST_BROWSER"):
            pytest.fail(missing)
        pytest.skip(missing)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=list(FLAGS))
        yield browser
        browser.close()
