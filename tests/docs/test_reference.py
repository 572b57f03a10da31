"""The reference is whole: public names, commands, functions, exit codes, environment variables."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

import normgen
from normgen.cli import commands, exits
from normgen.dsl.functions import built_in_names, prelude
from tools.docs.command_line import command_line
from tools.docs.language import MEANINGS, language

ROOT = Path(__file__).parent.parent.parent
ENVIRONMENT = (ROOT / "docs" / "reference" / "environment.md").read_text(encoding="utf-8")


@pytest.mark.site
def test_every_public_name_has_its_place() -> None:
    from tools.docs.api import api

    pages = {page.path: re.findall(r"^## (\w+)$", page.text, re.MULTILINE) for page in api()}
    named = [name for name in normgen.__all__ if name != "__version__"]
    assert pages["reference/api-normgen.md"] == [*named, "Norm", "Plan", "SpreadNorm", "Ranks", "Report"]
    assert {"LayerNorm", "RMSNorm", "from_spec"} < set(pages["reference/api-torch-nn.md"])
    functions = {"load", "patch", "unpatch", "NormFunction", "SpreadFunction", "SummedFunction", "Report"}
    assert functions == set(pages["reference/api-torch.md"])


@pytest.mark.site
@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("def f(x):\n    pass\n", "fake.f has no docstring"),
        ('class f:\n    """A class."""\n    def g(self): pass\n', "fake.f.g has no docstring"),
        ('def f(x, /, *, y: int = 1):\n    """Twice."""\n', None),
    ],
)
def test_a_public_name_without_a_docstring_is_a_fault(text: str, fault: str | None, tmp_path: Path) -> None:
    import griffe

    from tools.docs.api import Module, Undocumented, page

    (tmp_path / "fake.py").write_text(f'"""A module."""\n__all__ = ["f"]\n{text}')
    found = griffe.load("fake", search_paths=[tmp_path])
    if fault is None:
        assert "fake.f(x, /, *, y: int = 1)\n```\n\nTwice." in page(found, Module("fake", "fake"), found, {})
        return
    with pytest.raises(Undocumented, match=fault):
        page(found, Module("fake", "fake"), found, {})


@pytest.mark.site
def test_parameters_are_lists_and_types_are_explained(tmp_path: Path) -> None:
    import griffe

    from tools.docs.api import Module, page

    (tmp_path / "fake.py").write_text(
        '"""A module."""\n__all__ = ["Kept", "load"]\nName = str | int\nKEEP = "keep"\n'
        'class Kept:\n    """Kept."""\n    def __call__(self): """Call it."""\n'
        "def load(name: Name, how: str = KEEP) -> Kept:\n"
        '    """Load.\n\n    name: of a file. how: "keep" or\n    not. Raises KeyError.\n    """\n'
    )
    found = griffe.load("fake", search_paths=[tmp_path])
    text = page(found, Module("fake", "fake"), found, {"fake.Kept": "fake.md#kept"})
    assert "### Kept.\\_\\_call\\_\\_\n" in text
    assert "fake.load(name: Name, how: str = 'keep') -> Kept" in text
    assert "Types: `Name` is `str | int`; [`Kept`](fake.md#kept)." in text
    assert 'Load.\n\n- `name`: of a file.\n- `how`: "keep" or\n  not.\n\nRaises KeyError.\n' in text


def test_every_command_and_option_has_its_place() -> None:
    (page,) = command_line()

    def check(group: click.Group, path: str) -> None:
        for name, command in group.commands.items():
            _, heading, section = page.text.partition(f"# {path} {name}\n")
            assert heading
            for option in (each for each in command.params if isinstance(each, click.Option)):
                assert f"`{option.opts[0]}" in section.partition("\n## ")[0] or option.hidden
            if isinstance(command, click.Group):
                check(command, f"{path} {name}")

    check(commands, "normgen")


def test_every_function_has_its_place() -> None:
    (page,) = language()
    assert set(MEANINGS) == set(built_in_names())
    for name in prelude():
        assert f"### {name}\n\n```norm\nfn {name}" in page.text
    assert "`y = tanh(v); dv = dy * (1 - y^2)`" in page.text


def test_exit_codes_and_environment_variables_are_whole() -> None:
    codes = {
        int(code): name for code, name in re.findall(r"^\| (\d+) \| `(\w+)` \|", ENVIRONMENT, re.MULTILINE)
    }
    assert codes == {value: name for name, value in vars(exits).items() if isinstance(value, int)}
    read = set()
    for path in (ROOT / "normgen").rglob("*.py"):
        read |= set(re.findall(r'"(NORMGEN_[A-Z_]+)"', path.read_text(encoding="utf-8")))
    macros = {"NORMGEN_HOST"}  # of the C++ preprocessor
    assert set(re.findall(r"^\| `(NORMGEN_\w+)` \|", ENVIRONMENT, re.MULTILINE)) == read - macros


@pytest.mark.site
@pytest.mark.parametrize("path", sorted((ROOT / "specs").glob("*.norm")), ids=lambda path: path.stem)
def test_specs_have_colours(path: Path) -> None:
    from pygments.token import Error, Keyword

    from normgen.cli.html.lexer import SpecLexer

    tokens = list(SpecLexer().get_tokens(path.read_text(encoding="utf-8")))
    assert Error not in [kind for kind, _ in tokens]
    assert (Keyword.Declaration, "norm") in tokens and (Keyword.Declaration, "output") in tokens
