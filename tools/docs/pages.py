"""What the site is made of: pages that people write, and a table of those that are generated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent

# Pages whose place in the site is not that of their file below docs/.
MOVED: Mapping[str, str] = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "project/security.md",
    "docs/dependencies.md": "project/dependencies.md",
    "docs/pytorch.md": "guides/pytorch.md",
    "docs/arrays.md": "guides/arrays.md",
    "docs/autograd.md": "guides/autograd.md",
    "docs/commands.md": "guides/commands.md",
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


def bundled_specs() -> Iterable[Page]:
    """A page per bundled spec, in the place of its file: links to `specs/x.norm` lead here."""
    from normgen import bundled
    from normgen.cli.listing import describe

    rows = [describe(name) for name in bundled.names()]
    links = "\n".join(f"- [{row.name}]({row.name}.md): {row.doc}" for row in rows)
    yield Page("gallery/index.md", "docs/gallery/index.md", f"# Gallery\n\n{links}\n")
    for row in rows:
        source = f"specs/{row.name}.norm"
        text = (ROOT / source).read_text(encoding="utf-8")
        yield Page(f"gallery/{row.name}.md", source, f"# {row.name}\n\n{row.doc}\n\n```\n{text}```\n")


# Each makes the pages of one folder anew at every build. The order does not matter.
GENERATED: tuple[Callable[[], Iterable[Page]], ...] = (bundled_specs,)
