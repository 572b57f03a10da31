"""Where the tests of the command line run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import SPECS


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a few specs, current during the test, and nothing of the caller's environment."""
    monkeypatch.chdir(tmp_path)
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, text in SPECS.items():
        Path(f"{name}.norm").write_text(text)
    Path("latin.norm").write_bytes('norm n "\xe9"'.encode("latin-1"))
    return tmp_path
