"""How the extension in C++ comes to be: found, built aside, or missed with a reason."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from normgen.cache import Cache
from normgen.torch import extension, native
from tests.threads import at_once
from tests.torch.norms import torch


@pytest.fixture
def state(monkeypatch, tmp_path):
    """An extension that nobody asked for yet. Its recipe is where a build is to be written; a build that was
    begun is in `builds`, and has the end that this test gives it."""
    path, found = tmp_path / "extension.so", native._Extension()

    def build_aside(cache):
        found.builds.append(SimpleNamespace(code=None, poll=lambda: found.builds[0].code))
        return found.builds[0]

    recipe = SimpleNamespace(built=lambda cache: path if path.exists() else None, build_aside=build_aside)
    monkeypatch.setattr(native, "_recipe", lambda: recipe)
    monkeypatch.setattr(found, "_load", lambda *_: setattr(found, "loaded", "loaded") or True)
    found.path, found.builds = path, []
    return found


COMPILER = """#!/bin/sh
if [ "$1" = --version ]; then echo "a compiler"; exit; fi
while [ "$1" != -o ]; do shift; done
exec c++ -shared -fPIC -I{include} {source} -o "$2"
"""
MODULE = """#include <Python.h>
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "normgen_node"};
PyMODINIT_FUNC PyInit_normgen_node() { return PyModule_Create(&definition); }
"""


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """The recipe of an extension in which nothing is: what there is to build takes no time."""
    recipe = extension.recipe()
    source, compiler = tmp_path / "module.cpp", tmp_path / "compiler"
    source.write_text(MODULE)
    compiler.write_text(COMPILER.format(include=recipe.include, source=source))
    compiler.chmod(0o700)
    monkeypatch.setenv("CXX", str(compiler))
    cache = Cache(tmp_path / "cache")
    monkeypatch.setattr(native, "default_cache", lambda: cache)
    monkeypatch.setattr(native, "_recipe", extension.recipe)
    return extension.recipe(), cache


def test_the_builder_runs_nothing_of_the_callers_folder(quick, monkeypatch, tmp_path):
    recipe, cache = quick
    for name in ("shutil", "subprocess", "platform", "sitecustomize", "normgen"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    for path in (str(tmp_path), "", "."):
        monkeypatch.setenv("PYTHONPATH", path)
        cache.discard(recipe.place(cache))
        assert recipe.build_aside(cache).wait(60) == 0
        assert recipe.built(cache) and not (tmp_path / "ran").exists()


def test_what_is_built_depends_on_all_that_must_suit_it(quick, monkeypatch):
    recipe, _ = quick
    kinds = [
        recipe,
        replace(recipe, cuda=not recipe.cuda),
        replace(recipe, compiler="/usr/bin/other"),
        replace(recipe, identity="a compiler, newer"),
        replace(recipe, version="0.1"),
    ]
    keys = [each.key for each in kinds]
    monkeypatch.setattr(extension.platform, "machine", lambda: "another")
    assert len({*keys, recipe.key}) == len(kinds) + 1


@pytest.mark.parametrize("left", ("nothing of use", ""), ids=("that does not load", "of half a write"))
@pytest.mark.parametrize("way", ("ask", "build"))
def test_a_build_of_no_use_is_made_anew_once(quick, left, way):
    recipe, cache = quick
    if left:
        cache.get_or_build(recipe.key, lambda target: target.write_text(left), ".so")
    else:
        recipe.place(cache).parent.mkdir(mode=0o700, parents=True)
        recipe.place(cache).write_text("torn")
    found = native._Extension()
    if way == "ask":
        assert found.ask() is None and not found.fault
        assert found._builder.wait(60) == 0
        assert found.ask() is not None
    else:
        assert found.build() is not None
    assert found.loaded.__name__ == "normgen_node" and not found.fault


def test_a_build_that_never_loads_is_given_up(quick, monkeypatch, tmp_path):
    (tmp_path / "module.cpp").write_text("int nothing;")
    found = native._Extension()
    assert found.ask() is None and found._builder.wait(60) == 0
    assert found.ask() is None and "PyInit" in found.fault
    assert native._Extension().build() is None


@pytest.mark.parametrize("fault", (OSError("no more processes"), ValueError("an embedded null")))
def test_a_builder_that_cannot_be_started_ends_no_call(quick, monkeypatch, fault):
    def refuse(*_, **__):
        raise fault

    monkeypatch.setattr(native, "_recipe", lambda: quick[0])
    with monkeypatch.context() as patched:
        found = native._Extension()
        patched.setattr(extension.subprocess, "Popen", refuse)
        assert found.ask() is None and str(fault) in found.fault and not found.there
    found = native._Extension()
    monkeypatch.setattr(extension.sys, "executable", "")
    assert found.ask() is None and "its Python" in found.fault


def test_threads_that_ask_at_once_begin_one_build(quick):
    found = native._Extension()
    at_once(*[found.ask] * 8)
    assert not found.fault and found._builder.wait(60) == 0
    assert found.ask() is not None


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
    refusing = replace(found, compiler="/bin/false")
    with pytest.raises(subprocess.CalledProcessError):
        refusing.build(Cache(tmp_path))
    assert refusing.build_aside(Cache(tmp_path)).args[0] == sys.executable
