"""The notebook of the first tutorial: it is that of the page, and every cell of it runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tools.docs.notebook import NOTEBOOK, PAGE, notebook

ROOT = Path(__file__).parent.parent.parent


def test_the_notebook_is_that_of_the_page():
    text = notebook(PAGE.read_text(encoding="utf-8"))
    assert text == NOTEBOOK.read_text(encoding="utf-8"), "python -m tools.docs.notebook writes it"


def test_every_cell_of_the_notebook_runs(tmp_path, monkeypatch):
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    made = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(made)
    client = nbclient.NotebookClient(made, timeout=600, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    printed = [output.get("text", "") for cell in made.cells for output in cell.get("outputs", [])]
    assert any("->" in text for text in printed), "the losses of the first and the last step"
    assert (tmp_path / "kernels" / "absnorm.py").is_file()
