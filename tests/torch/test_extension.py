"""How the extension in C++ comes to be: found, built aside, or missed with a reason."""

from __future__ import annotations

import subprocess
import sys

import pytest

from normgen.cache import Cache
from normgen.torch import extension, native
from tests.torch.norms import torch


class Aside:
    """A process that builds, until `code` is its end."""

    code = None

    def poll(self):
        return self.code


class Recipe:
    """One whose build writes a file, or is refused."""

    def __init__(self, path):
        self.path, self.asked, self.aside = path, 0, Aside()

    def place(self, cache):
        return self.path

    def build_aside(self, cache):
        self.asked += 1
        return self.aside


@pytest.fixture
def state(monkeypatch, tmp_path):
    """An extension that nobody asked for yet, with a recipe that this test decides on."""
    recipe = Recipe(tmp_path / "extension.so")
    monkeypatch.setattr(native, "_recipe", lambda: recipe)
    found = native._Extension()
    monkeypatch.setattr(found, "_load", lambda _: setattr(found, "loaded", "loaded"))
    found.recipe = recipe
    return found


def test_nobody_waits_for_a_build_and_what_is_built_is_taken(state):
    assert not state.there and state.recipe.asked == 0  # nobody asked
    assert state.ask() is None and state.ask() is None
    assert state.recipe.asked == 1 and not state.there
    state.recipe.path.write_text("built")
    state.recipe.aside.code = 0
    assert state.there and state.ask() == "loaded" and state.recipe.asked == 1


def test_what_another_process_has_built_is_there_at_once(state):
    state.recipe.path.write_text("built")
    assert state.ask() == "loaded" and state.recipe.asked == 0


def test_a_build_that_failed_is_not_tried_again(state):
    state.ask()
    state.recipe.aside.code = 1
    assert not state.there and state.ask() is None
    assert "python -m normgen.torch.extension" in state.fault and state.recipe.asked == 1


def test_what_is_missing_is_said(monkeypatch, tmp_path):
    root = tmp_path / "torch"
    root.mkdir()
    assert extension.recipe(root) == "this PyTorch comes without its headers"
    monkeypatch.setattr(extension.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    assert extension.recipe().startswith("Python's headers are missing")
    assert extension.described() == f"in Python: {extension.recipe()}"
    monkeypatch.setattr(extension.shutil, "which", lambda _: None)
    assert extension.recipe().startswith("no C++ compiler is found")


def test_a_compiler_that_refuses_is_heard(tmp_path):
    found = extension.recipe()
    assert found.version == torch.__version__ and found.torch.samefile(torch.__path__[0])
    refusing = extension.Recipe("/bin/false", found.torch, found.version, found.include)
    with pytest.raises(subprocess.CalledProcessError):
        refusing.build(Cache(tmp_path))
    assert refusing.build_aside(Cache(tmp_path)).args[0] == sys.executable
