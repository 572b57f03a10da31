"""What a compile that failed leaves: one file with the text and the compiler's words, to be reported.

The file is named after the complaint: however many kernels fail for one reason, and however often, one file
is left, with the last of them.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from normgen.errors import CompileError

# Places, lengths and addresses in a complaint, which differ from kernel to kernel.
_NUMBER = re.compile(r"0x[0-9a-f]+|\d+")


def compile_failure(source: str, command: Sequence[str], output: str) -> CompileError:
    """The error for text that did not compile. The file begins with the text, so that the lines which the
    compiler names are its lines; the command and the compiler's output follow in comments."""
    said = "\n".join(f"// {line}".rstrip() for line in (" ".join(command), *output.splitlines()))
    name = hashlib.sha256(_complaint(output).encode()).hexdigest()[:12]
    return CompileError(_keep(f"normgen-{name}.cu", f"{source}\n\n{said}\n"), tuple(command), output)


def _complaint(output: str) -> str:
    """The first error that a compiler reports, without its place."""
    lines = [line for line in output.splitlines() if line.strip()]
    first = next((line for line in lines if "error" in line), lines[0] if lines else "")
    return _NUMBER.sub("", first.partition("error")[2] or first)


def _keep(name: str, text: str) -> str:
    """The path of a file with this text that only its user can read: `name` among the temporary files, or
    another name where someone else has that; "" where no file can be written."""
    try:
        handle, path = tempfile.mkstemp(prefix="normgen-", suffix=".cu")
        with os.fdopen(handle, "w") as file:
            file.write(text)
    except OSError:
        return ""
    wanted = Path(path).with_name(name)
    try:
        os.replace(path, wanted)
    except OSError:
        return path
    return str(wanted)
