"""What every part of the suite shares: golden texts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden texts anew")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)`: the text is that of tests/golden/<name>."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        how = f"python -m pytest {request.node.nodeid} --update-golden"
        if not path.exists():
            pytest.fail(f"tests/golden/{name} is missing; create it with\n    {how}\nand read what it holds")
        assert text == path.read_text(encoding="utf-8"), f"differs from tests/golden/{name}; if right: {how}"

    return check
