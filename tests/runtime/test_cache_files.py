"""A cache in hostile surroundings: what others may write is not used, and only a plain file is an entry."""

from __future__ import annotations

import os
import stat
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from normgen import cache_files
from normgen.cache import Cache, digest
from tests.threads import at_once

KEY = digest("a kernel", "its flags")

pytestmark = [
    pytest.mark.usefixtures("afresh"),
    pytest.mark.skipif(sys.platform == "win32", reason="Windows has other rights"),
]


def refused(root: Path, pattern: str) -> None:
    """The cache is not used, one warning says why, and a private directory takes its place."""
    with pytest.warns(RuntimeWarning, match=pattern) as caught:
        cache = Cache(root)
        assert cache.get_or_build_bytes(KEY, lambda: b"here") == b"here"
    assert len(caught) == 1 and "\n" not in str(caught[0].message)
    assert cache.root != root and stat.S_IMODE(cache.root.stat().st_mode) == 0o700
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # one warning, not one a use
        again = Cache(root)
        assert again.get_or_build_bytes(KEY, lambda: b"there") == b"here" and again.root == cache.root
    assert not [path for path in root.rglob("*") if path.is_file()]


@pytest.mark.parametrize("linked", [False, True], ids=["itself", "link"])
@pytest.mark.parametrize(
    ("mode", "who", "within"),
    [(0o777, "everyone", False), (0o775, "its group", True)],
    ids=["root", "folder"],
)
def test_a_directory_that_others_may_write_is_refused(
    tmp_path: Path, mode: int, who: str, within: bool, linked: bool
) -> None:
    root = tmp_path / "c"
    place = root / KEY[:2] if within else root
    theirs = tmp_path / "theirs" if linked else place
    theirs.mkdir(parents=True)
    theirs.chmod(mode)
    if linked:
        place.parent.mkdir(exist_ok=True)
        place.symlink_to(theirs)
    refused(root, f"{place} can be written by {who}: chmod go-w {place}; .* in a temporary")
    assert not [path for path in theirs.rglob("*") if path.is_file()]


def test_a_directory_that_cannot_be_made_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(tmp_path / "file" / "c", "cannot use the cache")
    (tmp_path / KEY[:2]).write_text("")
    with pytest.warns(RuntimeWarning, match="cannot write to the cache"):
        assert Cache(tmp_path).get_or_build_bytes(KEY, lambda: b"never") == b"here"


def test_another_user_s_directory_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_files.why_not_trusted(tmp_path) == ""
    (tmp_path / "link").symlink_to(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    said = f"{tmp_path} belongs to another user: set NORMGEN_CACHE_DIR to a directory of your own"
    assert cache_files.why_not_trusted(tmp_path) == said
    if os.getuid():  # links of the system's own are followed
        assert "symbolic link that belongs to another user" in cache_files.why_not_trusted(tmp_path / "link")


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("where", ["root", "folder", "entry"])
def test_what_belongs_to_another_user_is_not_used(tmp_path: Path, where: str) -> None:
    cache = Cache(tmp_path / "c")
    entry = cache.get_or_build(KEY, lambda path: path.write_bytes(b"theirs"))
    os.chown({"root": cache.root, "folder": entry.parent, "entry": entry}[where], 12345, 12345)
    if where == "entry":
        assert cache.get_or_build_bytes(KEY, lambda: b"ours") == b"ours"
        return
    with pytest.warns(RuntimeWarning, match="belongs to another user"):
        assert Cache(tmp_path / "c").get_or_build_bytes(KEY, lambda: b"ours") == b"ours"


def test_folders_and_entries_are_private_whatever_the_umask(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "deep")  # of one's own, which is followed
    (tmp_path / "deep").mkdir()
    before = os.umask(0)
    try:
        cache = Cache(tmp_path / "link" / "c")
        path = cache.get_or_build(KEY, lambda target: target.write_bytes(b"ours"))
    finally:
        os.umask(before)
    assert {stat.S_IMODE(p.stat().st_mode) for p in (cache.root, path.parent)} == {0o700}
    assert not path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    assert cache.get_or_build_bytes(KEY, lambda: b"never") == b"ours"
    path.chmod(0o666)
    assert cache.get_or_build_bytes(KEY, lambda: b"again") == b"again"


# What is in an entry's place, and is none.


def _directory(path: Path) -> None:
    path.mkdir()
    (path / "file").write_text("content")


def _link(path: Path) -> None:
    elsewhere = Cache(path.parent.parent / "elsewhere")
    path.symlink_to(elsewhere.get_or_build(KEY, lambda target: target.write_bytes(b"theirs")))


def _dangling(path: Path) -> None:
    path.symlink_to(path.parent / "nothing")


@pytest.mark.parametrize("make", [os.mkfifo, _directory, _link, _dangling])
def test_no_plain_file_is_no_entry(tmp_path: Path, make: Callable[[Path], None]) -> None:
    cache = Cache(tmp_path / "c")
    path = cache.path(KEY, ".so")
    path.parent.mkdir(mode=0o700)
    for _ in range(2):
        path.unlink(missing_ok=True)
        make(path)
        # A FIFO that is opened to read has its reader wait for ever.
        found = at_once(lambda: cache.get_or_build_bytes(KEY, lambda: b"binary", ".so"), seconds=20)
        assert found == [b"binary"]
    assert path.is_file() and not path.is_symlink()
    assert os.path.lexists(path.with_name(path.name + ".damaged"))
    assert not list((tmp_path / "c" / "elsewhere").rglob("*.damaged"))


@pytest.mark.parametrize("make", [os.mkfifo, _directory, _dangling])
def test_nor_is_it_a_lock_or_a_count(tmp_path: Path, make: Callable[[Path], None]) -> None:
    for number, name in enumerate((f"{KEY[:2]}/{KEY}.lock", "size", "size.lock")):
        root = tmp_path / str(number)
        (root / KEY[:2]).mkdir(mode=0o700, parents=True)
        root.chmod(0o700)
        make(root / name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ask = partial(Cache(root).get_or_build_bytes, KEY, lambda: b"binary")
            assert at_once(ask, seconds=20) == [b"binary"]
