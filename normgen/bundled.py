"""The specs that ship with normgen: package data of an installed wheel, the folder `specs` of a checkout."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from normgen.diagnostics import Source

if TYPE_CHECKING:
    from importlib.abc import Traversable


def names() -> tuple[str, ...]:
    """The names of the bundled specs, sorted."""
    return tuple(sorted(entry.name[:-5] for entry in _folder().iterdir() if entry.name.endswith(".norm")))


def read(name: str) -> Source | None:
    """The bundled spec of this name, or None where there is none. Messages call it by its file name."""
    if name not in names():
        return None
    file = f"{name}.norm"
    return Source(file, (_folder() / file).read_text(encoding="utf-8"))


def _folder() -> Traversable:
    """A wheel holds the specs in `normgen/specs`; in a checkout they stand beside the package."""
    installed = resources.files("normgen") / "specs"
    return installed if installed.is_dir() else Path(__file__).parent.parent / "specs"
