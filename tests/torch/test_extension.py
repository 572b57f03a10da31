"""How the extension in C++ comes to be: found, built aside, or missed with a reason."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from normgen.cache import Cache
from normgen.torch import extension, native
from tests.torch.norms import torch


@pytest.fixture
def state(monkeypatch, tmp_path):
    """An extension that nobody asked for yet. Its recipe is where a build is to be written; a build that was
    begun is in `builds`, and has the end that this test gives it."""
    path, found = tmp_path / "extension.so", native._Extension()

    def build_aside(cache):
        found.builds.append(SimpleNamespace(code=None, poll=lambda: found.builds[0].code))
        return found.builds[0]

    recipe = SimpleNamespace(place=lambda cache: path, build_aside=build_aside)
    monkeypatch.setattr(native, "_recipe", lambda: recipe)
    monkeypatch.setattr(found, "_load", lambda _: setattr(found, "loaded", "loaded"))
    found.path, found.builds = path, []
    return found


def test_nobody_waits_for_a_build_and_what_is_built_is_taken(state):
    assert not state.there and not state.builds  # nobody asked
    assert state.ask() is None and state.ask() is None
    assert len(state.builds) == 1 and not state.there
    state.path.write_text("built")
    state.builds[0].code = 0
    assert state.there and state.ask() == "loaded" and len(state.builds) == 1


def test_what_another_process_has_built_is_there_at_once(state):
    state.path.write_text("built")
    assert state.ask() == "loaded" and not state.builds


def test_a_build_that_failed_is_not_tried_again(state):
    state.ask()
    state.builds[0].code = 1
    assert not state.there and state.ask() is None
    assert "python -m normgen.torch.extension" in state.fault and len(state.builds) == 1


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
