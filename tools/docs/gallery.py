"""The bundled specs, a page each."""

from __future__ import annotations

from collections.abc import Iterable

from normgen import bundled
from normgen.cli.listing import describe
from tools.docs.pages import ROOT, Page


def gallery() -> Iterable[Page]:
    """A page per bundled spec, in the place of its file: links to `specs/x.norm` lead here."""
    rows = [describe(name) for name in bundled.names()]
    links = "\n".join(f"- [{row.name}]({row.name}.md): {row.doc}" for row in rows)
    yield Page("gallery/index.md", "docs/gallery/index.md", f"# Gallery\n\n{links}\n")
    for row in rows:
        source = f"specs/{row.name}.norm"
        text = (ROOT / source).read_text(encoding="utf-8")
        yield Page(f"gallery/{row.name}.md", source, f"# {row.name}\n\n{row.doc}\n\n```\n{text}```\n")
