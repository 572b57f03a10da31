"""Whether kernel texts compile on the host, all of them in one unit. Nothing is made of them or run."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from normgen.cache import default_cache, digest
from normgen.devices.host.compile import SHIM, find_compiler, shim_digest
from normgen.errors import TextFault, ToolchainMissing

_FLAGS = ("-std=c++17", "-O0", "-w", "-fsyntax-only", "-x", "c++")
_SHIM = ("-I", str(SHIM), "-I", str(SHIM / "include"), "-include", str(SHIM / "simt.h"))
_ERROR = re.compile(
    r"^(?P<text>[^:\n]+):(?P<line>\d+):(?:\d+:)? (?:fatal )?error: (?P<said>.*)$", re.MULTILINE
)


def check_syntax(header: str, texts: Mapping[str, str]) -> None:
    """Compile texts that begin with one header, by the name of their entries. `TextFault` names the first
    that is at fault; `ToolchainMissing` where there is no compiler. What compiled once is remembered."""
    compiler = find_compiler()
    unit = _unit(header, texts)
    key = digest("host syntax", compiler.version, shim_digest(), " ".join(_FLAGS), unit)

    def check(target: Path) -> None:
        _compile(compiler.path, unit)
        target.write_text("compiles\n")

    default_cache().get_or_build(key, check, ".txt")


def _unit(header: str, texts: Mapping[str, str]) -> str:
    """One text: the header, and each of the others in a name space, with lines that count from its own
    start."""
    parts = [f'#line 1 "device functions"\n{header}']
    for entry, source in texts.items():
        assert source.startswith(header), entry
        parts.append(f'#undef CLUSTER_DIMS\nnamespace text_of_{entry} {{\n#line 1 "{entry}"')
        parts.append(f"{source[len(header) :].lstrip()}\n}}")
    return "\n".join(parts) + "\n"


def _compile(path: str, unit: str) -> None:
    command = [path, *_FLAGS, *_SHIM, "-"]
    try:
        done = subprocess.run(command, input=unit, capture_output=True, text=True, errors="replace")
    except OSError as fault:
        raise ToolchainMissing(f"the C++ compiler {path} does not run: {fault}") from fault
    if done.returncode == 0:
        return
    output = done.stderr or done.stdout or f"{path} returned {done.returncode} without a word"
    with tempfile.NamedTemporaryFile(
        "w", prefix="normgen-", suffix=".txt", delete=False, encoding="utf-8"
    ) as file:
        file.write(f"{' '.join(command)}\n{output}\n{unit}")
    first = _ERROR.search(output)
    said = f"{first['text']}, line {first['line']}: {first['said']}" if first else output.splitlines()[0]
    raise TextFault(f"internal error: generated code does not compile: {said} (all of it in {file.name})")
