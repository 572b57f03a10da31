"""The pages of the site that people write, and where they have their place in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent

# Pages whose place in the site differs from that of their file below docs/.
MOVED: Mapping[str, str] = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "docs/dependencies.md": "project/dependencies.md",
    "docs/pytorch.md": "guides/pytorch.md",
    "docs/arrays.md": "guides/arrays.md",
    "docs/autograd.md": "guides/autograd.md",
    "docs/commands.md": "guides/commands.md",
    "docs/binaries.md": "guides/binaries.md",
    "docs/language.md": "reference/language.md",
    "docs/specs.md": "reference/specs.md",
    "docs/glossary.md": "reference/glossary.md",
    "tests/diagnostics.md": "reference/diagnostics.md",
    "docs/design.md": "how/design.md",
    "docs/performance.md": "how/performance.md",
}


@dataclass(frozen=True)
class Page:
    """One page of the site."""

    path: str  # in the site: "how/checking.md"
    source: str  # the file of the repository that its relative links start from: "docs/how/checking.md"
    text: str  # Markdown


def written() -> Iterable[Page]:
    """The pages that people write."""
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")}
    for source in sorted(files | set(MOVED)):
        text = (ROOT / source).read_text(encoding="utf-8")
        yield Page(MOVED.get(source, source.removeprefix("docs/")), source, text)
