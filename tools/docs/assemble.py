"""The sources of the site, written into one folder: pages, and the files that they link to."""

from __future__ import annotations

import posixpath
import re
import shutil
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from tools.docs.links import by_palette, relinked
from tools.docs.pages import GENERATED, ROOT, Page, written

TARGET = ROOT / "build" / "docs"
# Assets in docs/, which go along as they are.
ASSETS = ("*.css", "*.svg", "*.png")


class Places:
    """Where the site has the files of the repository: those that are no pages in `files/`, once linked to."""

    def __init__(self, pages: Iterable[Page]) -> None:
        self._pages = {page.source: page.path for page in pages}
        self.taken: dict[str, None] = {}  # in order

    def __call__(self, file: str) -> str:
        if (ROOT / file).is_dir():
            file = posixpath.join(file, "README.md")
        if file in self._pages:
            return self._pages[file]
        if file.startswith("docs/") or not (ROOT / file).exists():
            return file.removeprefix("docs/")  # an asset; or nothing, which the builder finds
        self.taken[file] = None
        return f"files/{file}"


def assemble() -> Sequence[Page]:
    """Write everything anew; returns the pages."""
    shutil.rmtree(TARGET, ignore_errors=True)
    for pattern in ASSETS:
        for asset in (ROOT / "docs").rglob(pattern):
            _copy(str(asset.relative_to(ROOT)), str(asset.relative_to(ROOT / "docs")))
    pages = [*written(), *(page for make in GENERATED for page in make())]
    place = Places(pages)
    for page in pages:
        _write(page, place)
    _write_summaries(pages)
    written_of = 0
    while written_of < len(place.taken):  # Markdown files among them may link to more
        file = list(place.taken)[written_of]
        written_of += 1
        if file.endswith(".md"):
            _write(Page(f"files/{file}", file, (ROOT / file).read_text(encoding="utf-8")), place)
        else:
            _copy(file, f"files/{file}")
    return pages


def _copy(file: str, path: str) -> None:
    target = TARGET / path
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(ROOT / file, target)


def _write(page: Page, place: Places) -> None:
    target = TARGET / page.path
    target.parent.mkdir(parents=True, exist_ok=True)
    text = relinked(page.text, page.source, page.path, place)
    target.write_text(by_palette(text), encoding="utf-8")


def _write_summaries(pages: Iterable[Page]) -> None:
    """Say in what order the navigation has the pages of a folder: in that of the links in its index."""
    folders = defaultdict[str, list[str]](list)
    for page in pages:
        folder, name = posixpath.split(page.path)
        if folder:
            folders[folder].append(name)
    for folder, names in folders.items():
        index = TARGET / folder / "index.md"
        linked = re.findall(r"\]\(([\w.-]+\.md)[#)]", index.read_text()) if index.exists() else []
        order = {name: at for at, name in enumerate(dict.fromkeys(["index.md", *linked]))}
        ordered = sorted(names, key=lambda name: (order.get(name, len(order)), name))
        lines = [f"* [{_title(TARGET / folder / name)}]({name})" for name in ordered]
        (TARGET / folder / "SUMMARY.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _title(page: Path) -> str:
    found = re.search(r"^# (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else page.stem
