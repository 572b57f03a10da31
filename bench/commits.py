"""Which commit is measured, and what was kept of it."""

from __future__ import annotations

import gzip
import subprocess
from pathlib import Path


def commit_of_tree() -> str:
    """The commit of this tree, in short; nothing where git does not know it."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip()


def text_of(path: Path) -> str:
    """What a file of measurements holds, compressed or not."""
    content = path.read_bytes()
    return (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
