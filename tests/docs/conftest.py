"""The site, built and served on this machine, and a browser that reads it.

Where there is no browser, these tests are skipped with the command that installs it, and fail if
`NORMGEN_TEST_BROWSER` is set, as it is in CI.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tools.docs.browser import MISSING, find_browser, opened, served

ROOT = Path(__file__).parent.parent.parent
SITE = ROOT / "site"


@pytest.fixture(scope="session")
def built() -> Path:
    """The folder of the site, as `make docs` makes it."""
    shutil.rmtree(SITE, ignore_errors=True)
    for command in (["tools.docs"], ["zensical", "build", "--clean", "--strict"]):
        done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return SITE


@pytest.fixture(scope="session")
def address(built: Path) -> Iterator[str]:
    """Where the site is served."""
    with served(built) as address:
        yield address


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A headless browser of playwright."""
    found = find_browser()
    if found is None:
        (pytest.fail if os.environ.get("NORMGEN_TEST_BROWSER") else pytest.skip)(MISSING)
    with opened(found) as browser:
        yield browser
