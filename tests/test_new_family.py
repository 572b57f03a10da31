"""A family is a folder and a record: a copy of normgen with one more plans, emits and checks its kernels."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RECORD = '''

@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksRecord(TilesRecord):
    """One kernel of the blocks family."""

    family: ClassVar[str] = "blocks"
'''
COMPILE = '''"""A family that has what the tiles family has."""

from dataclasses import dataclass, fields

from normgen.families.tiles.compile.family import Tiles
from normgen.families.tiles.compile.plan import TilesPlan, plan_tiles
from normgen.package.kernels import BlocksRecord


@dataclass(frozen=True, slots=True)
class BlocksPlan(TilesPlan):
    """A plan of its own."""


def _as(kind, of):
    return kind(**{each.name: getattr(of, each.name) for each in fields(of)})


class Blocks(Tiles):
    """Kernels of the blocks family."""

    plans, rank = BlocksPlan, 0

    def plan(self, group):
        return _as(BlocksPlan, plan_tiles(group))

    def emit(self, plan, wording):
        return _as(BlocksRecord, super().emit(plan, wording))


FAMILY = Blocks()
'''
LAUNCH = '''"""The launch half."""

from normgen.families.tiles.launch.family import Tiles

FAMILY = Tiles()
'''
# Two memory orders: what tiles are for.
SPEC = """norm turned
input x[B, C, P]
input z[B, P, C]
output y[B, C, P] = x + z
"""


@pytest.mark.kernels
def test_a_folder_and_a_record_are_all_that_a_family_needs(tmp_path: Path) -> None:
    package = tmp_path / "normgen"
    shutil.copytree(ROOT / "normgen", package, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "specs").symlink_to(ROOT / "specs")
    with (package / "package" / "kernels.py").open("a", encoding="utf-8") as records:
        records.write(RECORD)
    for name, text in (("compile", COMPILE), ("launch", LAUNCH)):
        half = package / "families" / "blocks" / name
        half.mkdir(parents=True)
        (half / "family.py").write_text(text, encoding="utf-8")
        (half / "__init__.py").write_text("", encoding="utf-8")
    (package / "families" / "blocks" / "__init__.py").write_text("", encoding="utf-8")
    (tmp_path / "turned.norm").write_text(SPEC, encoding="utf-8")
    _run(tmp_path, "compile", "turned.norm", "--no-verify")
    _run(tmp_path, "compile", "turned.norm", "--no-verify", "--size", "C=8", "--size", "P=64")
    (one_shape,) = tmp_path.glob("turned_*.py")
    assert '"family": "blocks"' in one_shape.read_text(encoding="utf-8")
    assert "passed" in _run(tmp_path, "check", "turned.norm", "--quick")


def _run(folder: Path, *arguments: str) -> str:
    """normgen of a folder."""
    environment = os.environ | {"PYTHONPATH": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}
    command = [sys.executable, "-m", "normgen", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
