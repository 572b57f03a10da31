"""The additions that CONTRIBUTING shows as differences: they are to files as they are, and the form that they
add runs, and has a golden text.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def differences() -> Iterator[tuple[Path, str, str]]:
    """Files, with what is there and what takes its place: the first file that is named in the step, or in the
    paragraph, above a difference."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for found in re.finditer(r"```diff\n(.*?) *```", text, re.S):
        step = re.split(r"\n\n|\n(?=\d\. )", text[: found.start()].rstrip())[-1]
        name = re.findall(r"`([\w/]+\.py)`", step)[0]
        lines = [line.removeprefix("    ") for line in found[1].splitlines()]
        before, after = (
            "".join(f"{line[1:]}\n" for line in lines if line[0] in signs) for signs in (" -", " +")
        )
        yield next(p for p in (Path(name), Path("normgen", name)) if (ROOT / p).exists()), before, after


def test_differences_are_from_what_is_there() -> None:
    found = [*differences()]
    assert len(found) >= 7
    for path, before, _ in found:
        assert (ROOT / path).read_text(encoding="utf-8").count(before) == 1, f"{path} has not:\n{before}"


@pytest.mark.kernels
def test_the_form_that_is_added_runs(tmp_path: Path) -> None:
    for name in ("normgen", "bench", "tests"):
        ignored = shutil.ignore_patterns("__pycache__", "golden", "results", "timings")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    for name in ("specs", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    for path, before, after in differences():
        text = (tmp_path / path).read_text(encoding="utf-8")
        (tmp_path / path).write_text(text.replace(before, after, 1), encoding="utf-8")
    templates = tmp_path / "normgen" / "templates" / "rows"
    shutil.copy(templates / "registers.cu.jinja", templates / "paired.cu.jinja")
    arguments = ("-q", "-n", "0", "-p", "no:cacheprovider", "-k", "paired", "--update-golden")
    files = ("tests/codegen/test_rows_execution.py", "tests/codegen/test_golden.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments, *files],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr
    assert (tmp_path / "tests" / "golden" / "forms" / "rows.paired.cu").exists()
