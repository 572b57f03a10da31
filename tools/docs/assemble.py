"""The sources of the site, written into one folder: pages, and the files that they link to."""

from __future__ import annotations

import posixpath
import re
import shutil
from collections import defaultdict
from collections.abc import Iterable, Sequence

from tools.docs.links import by_palette, coloured, relinked, titled
from tools.docs.pages import ROOT, Page, written

TARGET = ROOT / "build" / "docs"
# What the configuration names. Other files go along once a page links to them.
ASSETS = ("docs/assets/site.css",)

# Pages of figures are linked to, but would fill the results of a search.
UNSEARCHED = "---\nsearch: {exclude: true}\n---\n\n"
# Without the navigation of a section, the home page has room for two columns.
HOME = "---\nhide: [navigation]\n---\n\n"


class DeadLink(Exception):
    """A page links to a missing file."""


class Places:
    """The places of the repository's files in the site. Files that are no pages go into `files/`."""

    def __init__(self, pages: Iterable[Page]) -> None:
        self._pages = {page.source: page for page in pages}
        self._made = {page.path: page for page in pages}
        self.taken = list(ASSETS)  # files that are no generated pages, and linked to

    def page(self, file: str) -> Page | None:
        """The page of a file of the repository."""
        if (ROOT / file).is_dir():
            file = posixpath.join(file, "README.md")
        return self._pages.get(file) or self._made.get(file.removeprefix("docs/"))

    def __call__(self, file: str) -> str:
        if page := self.page(file):
            return page.path
        if (ROOT / file).is_dir():
            file = posixpath.join(file, "README.md")
        if not (ROOT / file).exists():
            raise DeadLink(file)
        if file not in self.taken:
            self.taken.append(file)
        return _place(file)

    def title(self, file: str) -> str | None:
        """The title of the page of a file."""
        page = self.page(file)
        return _title(page.text) if page else None


def assemble(generated: Iterable[Page]) -> Sequence[Page]:
    """Write all sources again; returns the pages."""
    shutil.rmtree(TARGET, ignore_errors=True)
    pages = [*written(), *generated]
    place = Places(pages)
    for page in pages:
        _write(page, place)
    _write_summaries(pages)
    for file in place.taken:  # grows while Markdown files among them are written
        if file.endswith(".md"):
            _write(Page(_place(file), file, UNSEARCHED + (ROOT / file).read_text(encoding="utf-8")), place)
        else:
            _copy(file)
    return pages


def _place(file: str) -> str:
    return file.removeprefix("docs/") if file.startswith("docs/") else f"files/{file}"


def _copy(file: str) -> None:
    target = TARGET / _place(file)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(ROOT / file, target)


def _write(page: Page, place: Places) -> None:
    target = TARGET / page.path
    target.parent.mkdir(parents=True, exist_ok=True)
    text = HOME + page.text if page.path == "index.md" else page.text
    if page.path.endswith(".md"):
        try:
            text = titled(text, page.source, place.title)
            text = by_palette(relinked(coloured(text), page.source, page.path, place))
        except DeadLink as link:
            raise DeadLink(f"{page.source} links to {link}, which does not exist") from None
    target.write_text(text, encoding="utf-8")


def _write_summaries(pages: Iterable[Page]) -> None:
    """Write the order of a folder's pages in the navigation: that of the links in its index."""
    folders = defaultdict[str, dict[str, str]](dict)
    for page in pages:
        folder, name = posixpath.split(page.path)
        if folder and name.endswith(".md"):
            folders[folder][name] = _title(page.text)
    for folder, titles in folders.items():
        index = TARGET / folder / "index.md"
        linked = re.findall(r"\]\(([\w.-]+\.md)[#)]", index.read_text()) if index.exists() else []
        order = {name: at for at, name in enumerate(dict.fromkeys(["index.md", *linked]))}
        ordered = sorted(titles, key=lambda name: (order.get(name, len(order)), name))
        lines = [f"* [{titles[name]}]({name})" for name in ordered]
        (TARGET / folder / "SUMMARY.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _title(text: str) -> str:
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    assert found, f"a page without a title: {text[:80]!r}"
    return found[1]
