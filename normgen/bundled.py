"""The specs that ship with normgen: package data of a wheel, the folder `specs` of a checkout."""

from __future__ import annotations

from difflib import get_close_matches
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
    """The bundled spec of this name, or None. Messages call it by its file name."""
    if name not in names():
        return None
    file = f"{name}.norm"
    return Source(file, (_folder() / file).read_text(encoding="utf-8"))


def hint(name: str) -> str:
    """What to write instead of a name that no bundled spec has. Case does not matter."""
    if Path(f"{name}.norm").is_file():
        return f"for the file write {name}.norm"
    lower = name.lower()
    close = [lower] if lower in names() else get_close_matches(lower, names(), n=2)
    return f"did you mean {' or '.join(close)}?" if close else "`normgen list` shows the bundled specs"


def file_hint(path: str) -> str:
    """What to add to the message about a missing file that has the name of a bundled spec."""
    stem = Path(path).stem
    return f" (the bundled spec is called {stem})" if stem in names() else ""


def _folder() -> Traversable:
    """A wheel has the specs in `normgen/specs`; a checkout has them next to the package."""
    installed = resources.files("normgen") / "specs"
    return installed if installed.is_dir() else Path(__file__).parent.parent / "specs"
