"""Whatever `python -m` runs for users has help, and refuses arguments that it does not know."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
    for path in [*sorted((ROOT / "normgen").rglob("*.py")), ROOT / "tools" / "build_pycuda.py"]
    if 'if __name__ == "__main__":' in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("module", MODULES)
def test_help_is_shown_and_nothing_is_done(module: str, tmp_path: Path) -> None:
    def run(argument: str) -> subprocess.CompletedProcess[str]:
        """Without a compiler or pip, so that nothing is built or installed by mistake."""
        command = [sys.executable, "-m", module, argument]
        environment = {"PATH": "/nonexistent", "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
        return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)

    shown = run("--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.lower().startswith("usage: ") and "--help" in shown.stdout
    refused = run("--no-such-option")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--no-such-option" in refused.stderr
    assert not [*tmp_path.iterdir()]


def test_every_entry_point_is_found() -> None:
    assert {"normgen", "tools.build_pycuda", "normgen.torch.extension"} <= {*MODULES}
