"""What the compiler keeps in the cache beside kernels: made once, again where damaged."""

from __future__ import annotations

import warnings
from pathlib import Path

import jinja2
import pytest

from normgen.cache_results import kept, sources
from normgen.kernel.templates import environment

TEMPLATE = "shared/clear.cu.jinja"


pytestmark = pytest.mark.usefixtures("afresh")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NORMGEN_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("NORMGEN_CACHE", raising=False)
    return tmp_path


def template() -> object:
    return environment.__wrapped__().get_template(TEMPLATE)


def refuse(*_: object, **__: object) -> None:
    raise AssertionError("made again")


def test_what_it_depends_on_tells_results_apart() -> None:
    assert kept("number", ("a",), lambda: b"1") == b"1"
    assert kept("number", ("a",), refuse) == b"1"
    assert kept("number", ("b",), lambda: b"2") == b"2"
    assert kept("letter", ("a",), lambda: b"3") == b"3"


def test_templates_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    template()
    monkeypatch.setattr(jinja2.Environment, "compile", refuse)
    assert template().name == TEMPLATE


def test_a_damaged_entry_is_made_again(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    template()
    (entry,) = cache.glob("??/*.template")
    damaged = entry.read_bytes().replace(b"normgen1", b"normgen2")
    entry.write_bytes(damaged)
    template()
    assert caplog.text.count("is damaged") == 1 and entry.read_bytes() != damaged
    template()
    assert caplog.text.count("is damaged") == 1


@pytest.mark.parametrize("why", ["off", "no folder"])
def test_where_no_cache_can_be_used_it_is_left_alone_without_a_word(
    why: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = cache / "file"
    file.write_text("")
    monkeypatch.setenv(*{"off": ("NORMGEN_CACHE", "0"), "no folder": ("NORMGEN_CACHE_DIR", f"{file}/x")}[why])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kept("number", (), lambda: b"1") == b"1"
        assert kept("number", (), lambda: b"2") == b"2"
    assert list(cache.iterdir()) == [file]


def test_sources_are_told_apart_by_name_and_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for number, (name, text) in enumerate((("a.py", "1"), ("b.py", "1"), ("a.py", "2"), ("in/a.py", "1"))):
        folder = tmp_path / str(number)
        monkeypatch.setattr("importlib.resources.files", lambda _, folder=folder: folder)
        for part, content in ((name, text), ("__pycache__/a.pyc", "compiled")):
            (folder / part).parent.mkdir(parents=True)
            (folder / part).write_text(content)
            found.append(sources.__wrapped__())
    assert found[::2] == found[1::2] and len(set(found)) == 4
