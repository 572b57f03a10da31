"""What the preprocessor decides of a text: its conditions, and macros that stand for a few words."""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Mapping

from normgen.page.locals import declared
from normgen.page.syntax import parse, parts
from normgen.page.values import Facts, Known

_DIRECTIVE = re.compile(r"[ \t]*#[ \t]*(if|ifdef|ifndef|elif|else|endif|define|undef)\b[ \t]*(.*?)[ \t]*$")
_DEFINED = re.compile(r"defined\s*(?:\(\s*(\w+)\s*\)|(\w+))")


def preprocess(text: str, given: Mapping[str, int]) -> str:
    """A text without the lines that its conditions leave out. `given`: the macros that the compiler has; any
    other that no line defines is 0, as the language has it."""
    macros = {name: str(value) for name, value in given.items()}
    kept: list[str] = []
    # for each open condition whether its lines are in, and whether any of its branches has been
    open_: list[tuple[bool, bool]] = []
    for line in text.split("\n"):
        match = _DIRECTIVE.match(line)
        live = all(taken for taken, _ in open_)
        if match is None:
            if live:
                kept.append(_substituted(line, macros, given))
            continue
        word, rest = match[1], match[2].partition("//")[0].rstrip()
        if word in ("if", "ifdef", "ifndef"):
            asked = {"ifdef": f"defined({rest})", "ifndef": f"!defined({rest})"}.get(word, rest)
            taken = live and _holds(asked, macros)
            open_.append((taken, taken))
        elif word in ("elif", "else"):
            _, had = open_.pop()
            outer = all(taken for taken, _ in open_)
            taken = outer and not had and (word == "else" or _holds(rest, macros))
            open_.append((taken, had or taken))
        elif word == "endif":
            open_.pop()
        elif live and word == "define":
            name, _, value = rest.partition(" ")
            macros[name] = value.strip()
        elif live:
            macros.pop(rest, None)
    return "\n".join(kept)


def _substituted(line: str, macros: Mapping[str, str], given: Mapping[str, int]) -> str:
    for name, value in macros.items():
        if name in line and name not in given:
            line = re.sub(rf"\b{name}\b ?" if not value else rf"\b{name}\b", value, line)
    return line


def _holds(condition: str, macros: Mapping[str, str]) -> bool:
    plain = _DEFINED.sub(lambda found: str(int((found[1] or found[2]) in macros)), condition)
    plain = re.sub(r"[A-Za-z_]\w*", lambda found: macros.get(found[0], "0"), plain)
    (asked,) = parts(parse(f"constexpr bool asked = {plain};"))
    return any(value for _, value in declared(asked, Known(Facts(), ChainMap())))
