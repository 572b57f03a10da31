"""Links as they are written for the repository, turned into those of the site."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable

# Fenced blocks and code in a line hold no links.
_CODE = re.compile(r"(^(`{3,}|~{3,}).*?^\2`*[ \t]*$|`(?:[^`\n]|\n(?!\s*\n))+`)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r'(!\[[^\]]*\]\(|\]\(|\b(?:href|src|srcset)=")([^)"\s]+)(?=[)"\s])')
_ABSOLUTE = re.compile(r"^(#|[a-z]+:|/)")


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """`text` with all of it changed but its code."""
    parts, start = [], 0
    for code in _CODE.finditer(text):
        parts += [change(text[start : code.start()]), code[0]]
        start = code.end()
    return "".join([*parts, change(text[start:])])


def linked(text: str, change: Callable[[str, bool], str]) -> str:
    """`text` with other targets for its relative links. `change`: a target, and whether it is a picture's."""

    def link(found: re.Match[str]) -> str:
        if _ABSOLUTE.match(found[2]):
            return found[0]
        return found[1] + change(found[2], found[1].startswith(("src", "!")))

    return outside_code(text, lambda part: _LINK.sub(link, part))


def relinked(text: str, source: str, path: str, place: Callable[[str], str]) -> str:
    """`text` with the relative links of the repository's file `source` leading on from `path` in the site.

    `place` says where the site has a file of the repository.
    """

    def link(given: str, _picture: bool) -> str:
        target, mark, anchor = given.partition("#")
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        return f"{posixpath.relpath(place(file), posixpath.dirname(path) or '.')}{mark}{anchor}"

    return linked(text, link)


_NAMED = re.compile(r"\[([\w./-]+\.md)\]\(([^)#\s]+)(?=[)#])")


def titled(text: str, source: str, title: Callable[[str], str | None]) -> str:
    """`text` with the title of the page as the words of links like `[specs.md](specs.md)`."""

    def link(found: re.Match[str]) -> str:
        words = title(posixpath.normpath(posixpath.join(posixpath.dirname(source), found[2])))
        return f"[{words or found[1]}]({found[2]}"

    return outside_code(text, lambda part: _NAMED.sub(link, part))


_SPEC = re.compile(r"^```\n(?=norm [a-z]\w*\b)", re.MULTILINE)


_GIVEN = re.compile(r"^```norm (\S.*)$", re.MULTILINE)


def coloured(text: str) -> str:
    """Mark blocks of specs with their language, and put the attr values of a mark in front of its block."""
    return _GIVEN.sub(r"With `\1`:\n\n```norm", _SPEC.sub("```norm\n", text))


_PICTURE = re.compile(r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="([^"]+)">\s*'
                      r'<img src="([^"]+)"(\s+alt="[^"]*")?[^>]*>\s*</picture>')  # fmt: skip


def by_palette(text: str) -> str:
    """Pictures in two colours follow the palette of the site in place of the system's."""
    return _PICTURE.sub(
        lambda found: (
            f'<img src="{found[2]}#only-light"{found[3] or ""}>'
            f'<img src="{found[1]}#only-dark"{found[3] or ""}>'
        ),
        text,
    )
