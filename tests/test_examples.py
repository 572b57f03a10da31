"""The examples: each says what it shows and how to run it, is in the list, and those without a GPU run."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_begins_with_what_it_shows_and_how_to_run_it(example: Path) -> None:
    text = example.read_text(encoding="utf-8")
    doc = ast.get_docstring(ast.parse(text))
    assert doc and f"python examples/{example.name}" in doc
    assert len(text.splitlines()) < 120, "an example is short"


def test_every_example_is_in_the_list() -> None:
    listed = set(re.findall(r"\]\(([^)]+)\)", (FOLDER / "README.md").read_text(encoding="utf-8")))
    files = [path for path in FOLDER.rglob("*") if path.suffix in (".py", ".c")]
    assert listed == {path.relative_to(FOLDER).as_posix() for path in files}


@pytest.mark.kernels
def test_numpy_norm(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(FOLDER / "numpy_norm.py"), run_name="__main__")
    assert "the backward reads dy x w scale" in capsys.readouterr().out
