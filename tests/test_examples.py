"""The examples: each says what it shows and how to run it, is in the list, and those without a GPU run."""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
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
    files = {
        path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.suffix in (".py", ".c")
    }
    tape = {name for name in files if name.startswith("autograd/")} - {"autograd/__init__.py"}
    assert tape and listed == files - tape | {"../docs/autograd.md"}


@pytest.mark.parametrize(
    ("example", "library", "command"),
    [
        ("cupy_norm", "cupy", "pip install cupy-cuda13x"),
        (
            "pycuda_norm",
            "pycuda",
            "pip install pycuda, or without a CUDA toolkit python -m tools.build_pycuda",
        ),
        ("patch_transformers", "transformers", "pip install torch transformers"),
        ("patch_transformers", "torch", "pip install torch transformers"),
        ("pytorch_training", "torch", "pip install torch"),
        ("ranks", "torch", "pip install torch"),
    ],
)
def test_an_example_says_how_to_install_what_is_missing(example: str, library: str, command: str) -> None:
    code = (
        "import runpy, sys; sys.modules[sys.argv[1]] = None; runpy.run_path(sys.argv[2], run_name='__main__')"
    )
    run = [sys.executable, "-c", code, library, str(FOLDER / f"{example}.py")]
    done = subprocess.run(run, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("this example needs ") and done.stderr.count("\n") == 1
    assert f": {command} (" in done.stderr and library in done.stderr


@pytest.mark.kernels
def test_numpy_norm(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(FOLDER / "numpy_norm.py"), run_name="__main__")
    assert "the backward reads dy x w scale" in capsys.readouterr().out
