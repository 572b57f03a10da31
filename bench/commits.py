"""Which commit is measured."""

from __future__ import annotations

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
