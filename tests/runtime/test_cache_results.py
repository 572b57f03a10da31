"""What the compiler keeps in the cache beside kernels: made once, again where damaged."""

from __future__ import annotations

import copy
import pickle
import warnings
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pytest

from normgen.cache_results import Late, kept, result_of, sources
from normgen.diagnostics import Source
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


SOURCE = Source("late.norm", "norm late\n")


def result(made: list[str]) -> dict[str, Any]:
    """A result with two late parts, one of them twice. `made`: what of it was made, in order."""

    def part(key: str) -> Late[str]:
        def make(times: int) -> str:
            made.append(key)
            return key.upper() * times

        return Late(key, make)

    made.append("result")
    first = part("first")
    return {"first": first, "again": first, "second": part("second"), "number": 3}


def found(made: list[str]) -> dict[str, Any]:
    return result_of("late", SOURCE, {"eps": 0.5}, (), lambda: result(made))


def test_late_parts_are_made_when_they_are_asked_for_and_once_for_all_processes() -> None:
    made: list[str] = []
    here = found(made)
    assert made == ["result"] and here["number"] == 3
    assert here["first"](1) == "FIRST" and here["again"] is here["first"]
    assert made == ["result", "first"]
    there = found(made)  # as another process would: of the result nothing is made
    assert there["first"](1) == "FIRST" and made == ["result", "first"]
    assert there["second"](1) == "SECOND"  # which nobody had asked for: the result is made again
    assert made == ["result", "first", "result", "second"]
    assert found(made)["second"](1) == "SECOND" and len(made) == 4
    assert there["second"](2) == "SECONDSECOND" and len(made) == 5  # asked for with something else


def test_late_parts_of_other_attrs_are_others() -> None:
    made: list[str] = []
    assert found(made)["first"](1) == "FIRST"
    other = result_of("late", SOURCE, {"eps": 1.0}, (), lambda: {"first": Late("first", lambda n: "other")})
    assert other["first"](1) == "other" and other["first"] != found(made)["first"]


def stage() -> dict[str, Any]:
    return {"first": Late("first", str)}


def test_a_pickle_holds_how_late_parts_are_made_and_parts_are_equal_by_that() -> None:
    made: list[str] = []
    whole = result(made)
    assert copy.deepcopy(whole)["first"] is whole["first"] and made == ["result"]
    assert whole["first"] != whole["second"] and whole != result([])
    for attrs in ({"eps": 0.5}, {"eps": np.float32(0.5)}):  # (the second one is in no cache)
        found = result_of("stage", SOURCE, attrs, (), stage)
        assert found == found and pickle.loads(pickle.dumps(found))["first"](1) == "1"
    same = [result_of("stage", SOURCE, {}, (), stage) for _ in range(2)]
    assert same[0] == same[1] and hash(same[0]["first"]) == hash(same[1]["first"])
    assert pickle.loads(pickle.dumps(same[0])) == same[1]


def test_two_parts_with_one_key_are_a_mistake() -> None:
    with pytest.raises(AssertionError, match="two parts have the key"):
        result_of("late", SOURCE, {}, (), lambda: [Late("same", str), Late("same", str)])
