"""The examples with PyTorch: a model trains, and a Llama computes the same with normgen's norms."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.torch.gloo import LONGEST, needs_gloo

FOLDER = Path(__file__).parent.parent.parent / "examples"


def test_pytorch_training():
    losses = runpy.run_path(str(FOLDER / "pytorch_training.py"))["train"](steps=12, width=32)
    assert len(losses) == 12 and losses[-1] < 0.85 * losses[0]


@needs_gloo
def test_ranks():
    """Under torchrun, in two processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, str(FOLDER / "ranks.py")],
        capture_output=True,
        text=True,
        timeout=LONGEST,
        cwd=FOLDER.parent,
    )
    assert done.returncode == 0, done.stderr
    found = re.findall(r"rank (\d): (\w+): off by (\d\.\de[-+]\d+)", done.stdout)
    assert len(found) == 10 and all(float(each[2]) < 1e-5 for each in found), done.stdout


def test_patch_transformers(capsys):
    pytest.importorskip("transformers", reason="transformers is not installed")
    runpy.run_path(str(FOLDER / "patch_transformers.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert "5 LlamaRMSNorm" in printed and "gradient of a gain" in printed
