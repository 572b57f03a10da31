"""Formulas in TeX, `$...$` and `$$...$$`, as MathML: an extension of Python-Markdown.

Browsers typeset MathML themselves, without scripts. The forge typesets the same text.
"""

from __future__ import annotations

import re
from typing import Any
from xml.etree.ElementTree import Element, fromstring

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.blockprocessors import BlockProcessor
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor

# As on the forge: no space inside of the dollars, and no digit behind them ("from $5 to $10").
INLINE = r"(?<![\\$\w])\$(?![\s$])([^$\n]*?[^\s\\$])\$(?![\d$])"
# Where a formula has a line of its own, the limits of sums stand below and above.
LIMITS = {"msub": "munder", "msubsup": "munderover"}
BLOCK = re.compile(r"\A\$\$(.+?)\$\$\Z", re.DOTALL)


def mathml(tex: str, display: str) -> Element:
    """The formula as an element."""
    element = fromstring(re.sub(r' xmlns="[^"]*"', "", convert(tex, display=display)))
    if display == "block":
        for scripts in element.iter():
            if scripts.tag in LIMITS and scripts[0].text in ("∑", "∏"):
                scripts.tag = LIMITS[scripts.tag]
    return element


class _Inline(InlineProcessor):
    def handleMatch(self, m: re.Match[str], data: str) -> tuple[Element, int, int]:
        return mathml(m[1], "inline"), m.start(0), m.end(0)


class _Block(BlockProcessor):
    def test(self, parent: Element, block: str) -> bool:
        return BLOCK.match(block.strip()) is not None

    def run(self, parent: Element, blocks: list[str]) -> None:
        found = BLOCK.match(blocks.pop(0).strip())
        assert found
        parent.append(mathml(found[1].strip(), "block"))


class Formulas(Extension):
    """Both kinds of formulas."""

    def extendMarkdown(self, md: Markdown) -> None:
        md.ESCAPED_CHARS.append("$")
        md.inlinePatterns.register(_Inline(INLINE, md), "formula", 185)  # before escapes, after code
        md.parser.blockprocessors.register(_Block(md.parser), "formula", 105)


def makeExtension(**options: Any) -> Formulas:
    """What Python-Markdown asks for."""
    return Formulas(**options)
