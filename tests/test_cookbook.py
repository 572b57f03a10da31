"""The specs of the cookbook: each passes a quick check, and each recipe shows a spec and both of its uses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import normgen

pytestmark = pytest.mark.kernels

FOLDER = Path(__file__).parent.parent / "docs" / "cookbook"
RECIPES = [path for path in sorted(FOLDER.glob("*.md")) if path.stem != "index"]
SPEC = re.compile(r"^```\n(norm .*?)^```$", re.MULTILINE | re.DOTALL)
# Bundled specs are checked with the others of their kind.
OWN = [path for path in RECIPES if "<!-- spec:" not in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("recipe", OWN, ids=lambda path: path.stem)
def test_the_spec_of_a_recipe_passes_a_check(recipe: Path) -> None:
    (text,) = SPEC.findall(recipe.read_text(encoding="utf-8"))
    report = normgen.check(text, quick=True, dtype="f32", executors=["host"])
    assert {row.direction for row in report.passed if row.stage == "kernels"} == {"forward", "backward"}


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_has_a_spec_and_both_uses(recipe: Path) -> None:
    text = recipe.read_text(encoding="utf-8")
    assert SPEC.search(text) and "**PyTorch.**" in text and "**NumPy.**" in text
    assert f"]({recipe.name})" in (FOLDER / "index.md").read_text(encoding="utf-8")
