"""Long lines of kernel texts, folded: comments at words, statements where brackets are fewest.

A text is folded once everything in it is spelled, since a user's names may be of any length.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from typing import Any

WIDTH = 110
_STEP = "    "
_WHOLE_WORDS: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
_CONTROL = re.compile(r"(?:\} )?(?:else )?(?:if constexpr|if|for|while) (?=\()|else (?!\{)")
_PROSE = re.compile(r"\s*// [^\s-]")
_FORMULA = re.compile(r"\s*// (?:(?:let|save|output|gradient|update) \w+.* = |note:)")
_TIGHT = re.compile(r"[(\[]$|\w<$")
_STRING = re.compile(r'"(?:\\.|[^"\\])*"')
# Where a line may go on: behind a comma or semicolon, before an operator; the tighter it binds, the later.
_BREAKS = (
    (r"[,;] ()", 0),
    (r"() [?:] ", 2),
    (r"() \|\| ", 3),
    (r"() && ", 4),
    (r"() [+-] ", 5),
    (r"() \* ", 6),
)
_BREAK = [(re.compile(pattern), binding) for pattern, binding in _BREAKS]
# Where it may only if all the rest then has one line: behind an assignment, behind a bracket.
_ENDINGS = ((re.compile(r" =()(?= )"), -1), (re.compile(r"\w\(()(?!\))"), 1))


def laid_out(text: str) -> str:
    """A text out of a template in lines that are full: where the template breaks a statement or a comment
    makes no difference."""
    return folded("\n".join(_joined(text.split("\n"))))


def folded(text: str) -> str:
    """The text with no line longer than `WIDTH`, but for what has nowhere to be cut."""
    out: list[str] = []
    for line in text.split("\n"):
        if len(line) <= WIDTH or line.startswith("#"):
            out.append(line)
        elif line.lstrip().startswith("// "):
            out += _comment(line)
        else:
            out += _statement(line)
    return "\n".join(out)


def _joined(lines: list[str]) -> Iterator[str]:
    """The lines with each statement on one. (Parameters of a kernel keep a line each.)"""
    line, head = "", False
    for following in lines:
        code = following.strip()
        if _is_prose(line) and _is_prose(following) and _margin(line) == _margin(following):
            line += code.removeprefix("//")
            continue
        if line and (_is_prose(line) or not code or code.startswith(("#", "//"))):
            yield line
            line = ""
        if line:
            line += ("" if _TIGHT.search(line) or code.startswith(")") else " ") + code
        else:
            line = following
        head = head or line.startswith("extern ")
        if head or not (_is_prose(line) or _goes_on(line)):
            head = head and not line.endswith("{")
            yield line
            line = ""
    if line:
        yield line


def _is_prose(line: str) -> bool:
    """Whether a line is a comment that may go on in the next: no formula, and no entry of a list."""
    return bool(_PROSE.match(line)) and not _FORMULA.match(line)


def _goes_on(line: str) -> bool:
    """Whether a line is not yet all of its statement, or of the head of a block."""
    code, comment = _parted(line.strip())
    if comment or not code or code.startswith(("#", "//")):
        return False
    code = _STRING.sub("", code)
    if code.count("{") > code.count("}"):
        return False
    if code.count("(") > code.count(")"):
        return True
    return code[-1] not in ";{}:" or (code[-1] == ":" and "?" in code)


def wrapped(text: str, width: int) -> list[str]:
    """A formula in lines: what goes on is further in."""
    return textwrap.wrap(text, width, subsequent_indent=_STEP, **_WHOLE_WORDS)


def _comment(line: str) -> list[str]:
    start = f"{_margin(line)}// "
    found = textwrap.wrap(line.removeprefix(start), WIDTH - len(start), **_WHOLE_WORDS)
    return [start + each for each in found]


def _statement(line: str) -> list[str]:
    """A line of code; a comment behind it goes above."""
    margin = _margin(line)
    code, comment = _parted(line.strip())
    above = _comment(f"{margin}// {comment}") if comment else []
    return [*above, *_code(code, margin)]


def _parted(line: str) -> tuple[str, str]:
    """The code of a line and the comment behind it."""
    blank = _STRING.sub(lambda found: "_" * len(found[0]), line)
    at = blank.find("  // ")
    return (line, "") if at < 0 else (line[:at], line[at + 5 :])


def _code(code: str, margin: str) -> list[str]:
    if len(margin + code) <= WIDTH:
        return [margin + code]
    if code.startswith("extern ") and code.endswith("("):  # the head of a kernel
        qualifiers, _, name = code.rpartition(" ")
        return [margin + qualifiers, margin + name]
    control = _CONTROL.match(code)
    if control is None:
        return _cut(code, margin, _STEP)
    end = _closing(code, control.end()) if code[control.end()] == "(" else control.end() - 1
    head, body = code[:end], code[end:].strip()
    if not body or body == "{":
        return _cut(code, margin, 2 * _STEP)
    return [*_code(head, margin), *_code(body, margin + _STEP)]


def _cut(code: str, margin: str, step: str) -> list[str]:
    """Code in lines as full as may be, each but the first a step further in."""
    out, inner = [], margin
    while len(inner + code) > WIDTH:
        at = _best_cut(code, WIDTH - len(inner), WIDTH - len(margin + step))
        if not at:
            break
        out.append(inner + code[:at].rstrip())
        code, inner = code[at:].lstrip(), margin + step
    return [*out, inner + code]


def _best_cut(code: str, width: int, rest: int) -> int:
    """Where to cut, so that what comes first has this width: outside of most brackets, before what binds
    least, as late as may be; 0 where that is nowhere. `rest`: the width of what comes after."""
    depths = _depths(code)
    found = [
        (depths[at], binding, -at)
        for pattern, binding in _BREAK
        for at in (each.start(1) for each in pattern.finditer(code))
        if 0 < at <= width and depths[at] < _IN_STRING
    ]
    found += [
        (depths[at], binding, -at)
        for pattern, binding in _ENDINGS
        for at in (each.start(1) for each in pattern.finditer(code))
        if at <= width and len(code[at:].lstrip()) <= rest and depths[at] <= (binding > 0)
    ]
    return -min(found)[2] if found else 0


_IN_STRING = 1 << 20


def _depths(code: str) -> list[int]:
    """How many brackets are open at each place, those of template arguments among them."""
    out, depth = [], 0
    strings = {at for found in _STRING.finditer(code) for at in range(found.start() + 1, found.end())}
    for at, character in enumerate(code):
        inside = at in strings
        if not inside:
            before = code[at - 1] if at else " "
            if character in ")]}" or (character == ">" and before not in " -"):
                depth -= 1
        out.append(_IN_STRING if inside else depth)
        if not inside and (character in "([{" or (character == "<" and (before.isalnum() or before == "_"))):
            depth += 1
    return [*out, depth]


def _closing(code: str, opening: int) -> int:
    """The place behind the bracket that closes the one at `opening`."""
    depths = _depths(code)
    return (
        next(at for at in range(opening + 1, len(code)) if depths[at] == depths[opening] and code[at] == ")")
        + 1
    )


def _margin(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]
