"""The specs of the cookbook: each passes a quick check, and each recipe shows a spec, the flow of its data
and its uses. `--update-golden` draws the pictures anew.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import normgen
from normgen.cli.html.explained import explained
from normgen.cli.sizes import Setting, usual_sizes
from normgen.codegen.compilation import Compilation
from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.launching.machine import usual_machine
from tests.sampling import sampled

pytestmark = pytest.mark.kernels

FOLDER = Path(__file__).parent.parent / "docs" / "cookbook"
RECIPES = [path for path in sorted(FOLDER.glob("*.md")) if path.stem != "index"]
SPEC = re.compile(r"^```\n(norm .*?)^```$", re.MULTILINE | re.DOTALL)
FLOW = re.compile(r"^<!-- flow(?:: (.+?))? -->\n\n!\[[^\]]+\]\(([\w-]+\.svg)\)$", re.MULTILINE)
# Text takes the colour of what is around a picture, and there is nothing around one in a file.
STYLE = "<style>svg{color:#222}@media(prefers-color-scheme:dark){svg{color:#ddd}}</style>"
# Bundled specs are checked with the others of their kind.
OWN = [path for path in RECIPES if "<!-- spec:" not in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("recipe", sampled(OWN, 0, 3))
def test_the_spec_of_a_recipe_passes_a_check(recipe: Path) -> None:
    (text,) = SPEC.findall(recipe.read_text(encoding="utf-8"))
    report = normgen.check(text, quick=True, dtype="f32", executors=["host"])
    assert {row.direction for row in report.passed if row.stage == "kernels"} == {"forward", "backward"}


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_has_a_spec_and_both_uses(recipe: Path) -> None:
    text = recipe.read_text(encoding="utf-8")
    assert SPEC.search(text) and "**PyTorch.**" in text and "**NumPy.**" in text
    assert f"]({recipe.name})" in (FOLDER / "index.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_the_picture_of_a_recipe_is_that_of_its_spec(recipe: Path, request: pytest.FixtureRequest) -> None:
    """The flow of data of the forward in bf16. The comment before it gives attrs and lengths of axes."""
    text = recipe.read_text(encoding="utf-8")
    ((given, file),) = FLOW.findall(text)
    spec = SPEC.search(text)
    assert spec is not None
    made = picture(spec[1], dict(each.split("=") for each in given.split()))
    if request.config.getoption("--update-golden"):
        (FOLDER / file).write_text(made, encoding="utf-8")
    how = f"python -m pytest {request.node.nodeid} --update-golden"
    assert made == (FOLDER / file).read_text(encoding="utf-8"), f"{how} draws it"


def picture(spec: str, given: dict[str, str]) -> str:
    """The picture as a file of its own. Axes are capitalised, attrs are not."""
    attrs = {name: int(value) for name, value in given.items() if name.islower()}
    sizes = {name: int(value) for name, value in given.items() if name not in attrs}
    compilation = Compilation(load_definition(Source("recipe.norm", spec), attrs))
    lengths = usual_sizes(compilation.package, sizes)
    (forward,) = explained(compilation, Setting(lengths, "bf16", usual_machine("sm_90"), "forward"))
    head, body = str(forward.picture).split(">", 1)
    return f"{head}>{STYLE}{body}\n"
