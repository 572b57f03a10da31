"""Indentation of C++ text by its brackets, so that templates need not count columns."""

from __future__ import annotations

import re

_STRINGS_AND_COMMENTS = re.compile(r'"(?:\\.|[^"\\])*"|//.*$')
_INDENT = "    "


def tidy(text: str) -> str:
    """The text with each line indented by the braces and parentheses open around it, and no blank lines in a
    row.
    """
    out: list[str] = []
    depth = 0
    for raw in text.splitlines():
        line = raw.strip()
        if not line:
            if out and out[-1] and not out[-1].endswith("{"):
                out.append("")
            continue
        code = _STRINGS_AND_COMMENTS.sub("", line)
        leading = len(code) - len(code.lstrip(")}"))
        if line.startswith("}") and out and not out[-1]:
            out.pop()
        indent = 0 if line.startswith("#") else max(0, depth - leading)
        out.append(_INDENT * indent + line)
        depth += sum(code.count(c) for c in "({") - sum(code.count(c) for c in ")}")
    return "\n".join(out).strip("\n") + "\n"
