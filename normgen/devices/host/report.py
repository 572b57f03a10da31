"""Makes the runtime's reports readable: places in the kernel's source, quoted, and parameters by name."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from normgen.devices.host.compile import SOURCE_NAME

_TOKEN = re.compile(r"<(pc|line|buffer):(?:0x)?([0-9a-f]+|\(nil\))>")


def tell(report: str, library: Path, base: int, source: str, names: Sequence[str]) -> str:
    """The report with its tokens replaced, each fault followed by the lines of the source that it is about.

    `base`: where the library is loaded; `names`: what to call each buffer.
    """
    addresses = {
        int(value, 16) for kind, value in _TOKEN.findall(report) if kind == "pc" and value != "(nil)"
    }
    places = _places(library, {address: address - base for address in addresses})
    text = source.splitlines()
    told: list[str] = []
    for fault in report.splitlines():
        quoted: list[int] = []

        def replace(token: re.Match[str], quoted: list[int] = quoted) -> str:
            kind, value = token.groups()
            if kind == "buffer":
                return names[int(value)]
            if kind == "line":
                quoted.append(int(value))
                return f"line {value}"
            lines = places.get(int(value, 16), []) if value != "(nil)" else []
            quoted.extend(lines)
            return (
                "line " + ", called from line ".join(map(str, lines))
                if lines
                else f"an unknown line ({value})"
            )

        told.append(_TOKEN.sub(replace, fault))
        width = len(str(max(quoted, default=0)))
        for line in dict.fromkeys(quoted):
            if 0 < line <= len(text):
                told.append(f"    {line:>{width}} | {text[line - 1].strip()}")
    return "\n".join(told)


def _places(library: Path, offsets: dict[int, int]) -> dict[int, list[int]]:
    """The source lines of each address: that of the innermost function inlined there, then its callers'."""
    tool = shutil.which("addr2line")
    if not offsets or tool is None:
        return {}
    # A return address is that of the next instruction, which may belong to the next line.
    command = [tool, "-a", "-i", "-e", str(library), *(hex(offset - 1) for offset in offsets.values())]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    addresses = iter(offsets)
    places: dict[int, list[int]] = {}
    lines: list[int] = []
    for row in done.stdout.splitlines():
        if row.startswith("0x"):
            lines = places[next(addresses)] = []
            continue
        file, _, line = row.partition(" ")[0].rpartition(":")
        if Path(file).name == SOURCE_NAME and line.isdigit():
            lines.append(int(line))
    return places
