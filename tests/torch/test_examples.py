"""The examples with PyTorch: a model trains, and a Llama computes the same with normgen's norms."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent.parent / "examples"


def test_pytorch_training():
    losses = runpy.run_path(str(FOLDER / "pytorch_training.py"))["train"](steps=12, width=32)
    assert len(losses) == 12 and losses[-1] < 0.85 * losses[0]


def test_patch_transformers(capsys):
    pytest.importorskip("transformers", reason="transformers is not installed")
    runpy.run_path(str(FOLDER / "patch_transformers.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert "5 LlamaRMSNorm" in printed and "gradient of a gain" in printed
