"""The first tutorial as a notebook: `python -m tools.docs.notebook` writes it next to the page.

Python blocks become cells, commands cells of the shell, and cells write specs and other files.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "your-own-norm.md"
NOTEBOOK = PAGE.with_suffix(".ipynb")

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$\n?", re.MULTILINE | re.DOTALL)
_RUN = ("console", "python", "")  # a block without a language is a spec; others are only to be read
_FILE = re.compile(r"# (\w+\.py)\n")
_NORM = re.compile(r"norm (\w+)")
# Colab and other hosts begin without normgen.
INSTALL = """import importlib.util

if not importlib.util.find_spec("normgen"):
    %pip install --quiet "normgen[torch]"
"""


def notebook(page: str) -> str:
    """A page of Markdown as the JSON text of a notebook without results."""
    cells = [_cell("code", INSTALL)]
    at = 0
    for block in _BLOCK.finditer(page):
        if block[1] not in _RUN:
            continue
        cells += [_cell("markdown", page[at : block.start()]), _cell("code", _code(block[1], block[2]))]
        at = block.end()
    cells.append(_cell("markdown", page[at:]))
    made = {
        "cells": [cell | {"id": f"cell-{n}"} for n, cell in enumerate(cells) if cell["source"]],
        "metadata": {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def _cell(kind: str, text: str) -> dict[str, Any]:
    result = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {"cell_type": kind, "metadata": {}, **result, "source": text.strip().splitlines(keepends=True)}


def _code(language: str, text: str) -> str:
    if language == "console":
        commands = [line[2:] for line in text.splitlines() if line.startswith("$ ")]
        return "\n".join(["%%bash", *commands])
    if found := _FILE.match(text):
        return f"%%writefile {found[1]}\n{text}"
    if found := _NORM.match(text):
        return f"%%writefile {found[1]}.norm\n{text}"
    return text


if __name__ == "__main__":
    NOTEBOOK.write_text(notebook(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
