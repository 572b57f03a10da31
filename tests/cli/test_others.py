"""`normgen list`, `cache`, `completion`; colour, pipes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from normgen.cache import default_cache, digest
from normgen.cli import commands, exits
from tests.cli.commands import ROOT, SPEC, run


def test_list_names_every_bundled_spec() -> None:
    names = {path.stem for path in (ROOT / "specs").glob("*.norm")}
    listed = json.loads(run("list", "--json").stdout)
    assert listed["schema"] == 2
    assert {row["name"] for row in listed["specs"]} == names
    printed = run("list").stdout
    assert all(name in printed for name in names)
    rows = {row["name"]: row for row in listed["specs"]}
    assert rows["rmsnorm"]["required"] == [] and rows["groupnorm"]["required"] == ["groups: int"]


def test_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    monkeypatch.setenv("NORMGEN_CACHE_DIR", str(folder))
    assert run("cache", "dir").stdout.strip() == str(folder)
    for name in "abc":
        default_cache().get_or_build_bytes(digest(name), lambda: bytes(100_000))
    assert "entries: 3" in run("cache", "info").stdout
    monkeypatch.setenv("NORMGEN_CACHE_LIMIT", "200K")
    assert "limit: 205 KB" in run("cache", "info").stdout
    assert "removed 1 entry" in run("cache", "prune").stderr
    assert "entries: 2\nsize: 200 KB" in run("cache", "info").stdout
    assert "removed 1 entry" in run("cache", "prune", "--to", "150k").stderr
    monkeypatch.setenv("NORMGEN_CACHE_LIMIT", "0")
    assert "limit: none" in run("cache", "info").stdout
    assert "removed 0 entries" in run("cache", "prune").stderr
    refused = run("cache", "prune", "--to", "much")
    assert refused.exit_code == exits.USAGE and "'much' is not a size" in refused.stderr
    # Tuned schedules are no results that come again: they stay unless asked for.
    (folder / "tuned").mkdir()
    (folder / "tuned" / "a-b.json").write_text("{}")
    assert "removed 1 entry" in run("cache", "clear").stderr
    assert "entries: 0" in (told := run("cache", "info").stdout) and "tuned: 1 file" in told
    assert "removed 1 entry" in run("cache", "clear", "--tuned").stderr
    assert "tuned: 0 files" in run("cache", "info").stdout


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [({}, False), ({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False)],
)
def test_colour(environment: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    done = CliRunner().invoke(commands, ["compile", "bad.norm"], color=True)
    assert ("\x1b[" in done.stderr) == coloured


def test_text_of_a_spec_is_shown_as_it_is() -> None:
    """Docs are no markup: neither rich's nor the template's."""
    text = SPEC.replace('"gain"', '"[bold]gain[/bold] {{ 7*7 }} :smile:"')
    Path("marked.norm").write_text(text)
    done = run("compile", "marked.norm", "-o", "-", "--no-verify")
    assert "[bold]gain[/bold] {{ 7*7 }} :smile:" in done.stdout


def test_a_closed_pipe_is_no_fault() -> None:
    """`normgen explain ... | head -1` says nothing about the pipe."""
    command = f"{sys.executable} -m normgen explain rmsnorm --emit cuda | head -n 1"
    done = subprocess.run(
        ["bash", "-c", command],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == "" and done.stdout.count("\n") == 1
