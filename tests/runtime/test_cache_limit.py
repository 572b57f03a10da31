"""The size of a cache: counted as it is written, and kept below its limit by removing what was used least."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path

import pytest

from normgen import cache_limit
from normgen.cache import Cache, digest
from normgen.cache_limit import entries, parse_size, prune, size_limit
from tests.threads import forked

SIZE = 10_000


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "c")


def put(cache: Cache, name: str, hours_ago: float = 0.0) -> Path:
    """An entry of about 10 kB that was used some time ago."""
    path = cache.get_or_build(digest(name), lambda target: target.write_bytes(bytes(SIZE)) and None)
    if hours_ago:
        then = time.time() - 3600 * hours_ago
        os.utime(path, (then, then))
    return path


def counted(cache: Cache) -> int:
    return int((cache.root / "size").read_text())


def held(cache: Cache) -> int:
    return sum(entry.bytes for entry in entries(cache.root))


def test_a_size_is_read_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"0": 0, "123": 123, "2K": 2048, "1.5m": 3 << 19, "2 GiB": 2 << 30, "1tb": 1 << 40}
    assert {text: parse_size(text) for text in sizes} == sizes
    for text in ("", "much", "-1", "1X", "1GG", "nan"):
        with pytest.raises(ValueError, match="write, for instance, 500M"):
            parse_size(text)
    monkeypatch.delenv("NORMGEN_CACHE_LIMIT", raising=False)
    assert size_limit() == 1 << 30
    monkeypatch.setenv("NORMGEN_CACHE_LIMIT", "5M")
    assert size_limit() == 5 << 20
    monkeypatch.setenv("NORMGEN_CACHE_LIMIT", "five")
    with pytest.warns(RuntimeWarning, match="NORMGEN_CACHE_LIMIT: 'five' is not a size"):
        assert size_limit() == 1 << 30


def test_what_was_used_least_goes_first(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    old, used, middle = (put(cache, name, hours) for name, hours in [("a", 9), ("b", 8), ("c", 7)])
    assert put(cache, "b") == used  # a hit, which counts as use
    monkeypatch.setenv("NORMGEN_CACHE_LIMIT", str(3 * (SIZE + 100)))
    new = put(cache, "d")
    assert [path.exists() for path in (old, used, middle, new)] == [False, True, False, True]
    assert counted(cache) == held(cache) < 3 * SIZE


def test_a_hit_writes_nothing_more_than_once_an_hour(cache: Cache) -> None:
    path = put(cache, "a", 0.9)
    before = path.stat()
    put(cache, "a")
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    put(cache, "a", 1.1)
    put(cache, "a")
    assert time.time() - path.stat().st_mtime < 60


def test_an_entry_larger_than_the_limit_is_there_for_who_built_it(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NORMGEN_CACHE_LIMIT", "1K")
    first = put(cache, "a")
    assert first.exists()
    assert put(cache, "b").exists() and not first.exists()


def test_a_write_below_the_limit_looks_at_no_other_entry(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(cache, "a")
    monkeypatch.setattr(cache_limit, "entries", None)
    size = put(cache, "b").stat().st_size
    assert counted(cache) == 2 * size > 2 * SIZE


def test_a_count_that_is_gone_damaged_or_too_high_is_made_anew(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NORMGEN_CACHE_LIMIT", "1M")
    for content in ("", "12x", "-5", "999999999", "9" * 40):
        put(cache, f"before {content}")
        (cache.root / "size").write_text(content)
        put(cache, f"after {content}")
        assert counted(cache) == held(cache) > 2 * SIZE, content
    (cache.root / "size").unlink()
    put(cache, "last")
    assert counted(cache) == held(cache)


def test_what_dead_processes_left_goes(cache: Cache) -> None:
    path = put(cache, "a")
    (path.parent / "old.lock").write_text("")
    for name, age in (("old.build-x", 2), ("new.build-x", 0)):
        (path.parent / name).mkdir()
        (path.parent / name / "entry.so").write_bytes(bytes(100))
        os.utime(path.parent / name, (time.time() - 86400 * age,) * 2)
    assert prune(cache.root, None) == 0
    assert sorted(child.name for child in path.parent.iterdir()) == sorted([path.name, "new.build-x"])
    assert prune(cache.root, 0) == 1
    assert [child.name for child in path.parent.iterdir()] == ["new.build-x"]
    assert counted(cache) == 0


def test_processes_that_fill_it_together_stay_below_the_limit(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NORMGEN_CACHE_LIMIT", str(20 * SIZE))

    def fill(worker: int) -> None:
        for number in range(40):
            content = bytes([number]) * SIZE
            # Every other key is one that the other workers write and use too.
            key = digest(str(number), str(worker if number % 2 else "all"))
            assert Cache(cache.root).get_or_build_bytes(key, lambda content=content: content) == content

    forked(*(partial(fill, worker) for worker in range(4)))
    # What one has put there and not yet counted may be counted twice, by another that looks at all of them.
    assert held(cache) <= counted(cache) <= 20 * SIZE
    assert len(list(entries(cache.root))) > 10
