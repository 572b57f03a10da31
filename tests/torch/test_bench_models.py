"""`bench/torch_models.py` on the CPU: variants are the same model, and the table has what was measured."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
nt = pytest.importorskip("normgen.torch")


@pytest.fixture
def bench(monkeypatch):
    """The program, with models of its own blocks whatever is installed."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "bench"))
    for library in ("transformers", "torchvision", "diffusers", "liger_kernel"):
        monkeypatch.setitem(sys.modules, library, None)
    return pytest.importorskip("torch_models")


def _run(bench, monkeypatch, out, *options):
    monkeypatch.setattr(
        sys, "argv", ["torch_models.py", "--out", str(out), "--device", "cpu", "--small", *options]
    )
    bench.main()


def test_variants_of_a_model_are_measured(bench, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bench, "ROUNDS", 1)
    chosen = "eager,normgen,normgen fused,liger"
    _run(bench, monkeypatch, tmp_path, "--models", "llama", "--variants", chosen)
    with (tmp_path / "models.csv").open() as file:
        rows = {row["variant"]: row for row in csv.DictReader(file)}
    assert list(rows) == chosen.split(",") and {row["built of"] for row in rows.values()} == {"stand-in"}
    losses = [float(row["first loss"]) for row in rows.values() if row["first loss"]]
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-3)
    assert all(0 < float(rows[name]["norms"].rstrip("%")) < 100 for name in ("eager", "normgen"))
    assert rows["liger"]["ms"] == "" and rows["normgen fused"]["norms"] == ""
    printed = capsys.readouterr().out
    assert "llama  liger          -" in printed
    assert "llama, liger: ModuleNotFoundError: " in printed


def test_what_has_no_time_left_is_a_dash(bench, monkeypatch, tmp_path, capsys):
    _run(bench, monkeypatch, tmp_path, "--models", "resnet", "--variants", "eager", "--budget", "0")
    assert "resnet, eager: out of time (see --models, --variants and --budget)" in capsys.readouterr().out


def test_unknown_names_are_mistakes(bench, monkeypatch, tmp_path, capsys):
    with pytest.raises(SystemExit):
        _run(bench, monkeypatch, tmp_path, "--models", "llama,bert")
    assert "--models: no bert: there are llama, resnet, unet" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["resnet", "unet"])
def test_stand_ins_have_the_norms_of_their_models(bench, name):
    subject = bench.SUBJECTS[name]("cpu", True)
    report = nt.patch(subject.model)
    assert {each.spec for each in report.replaced} == {{"resnet": "batchnorm", "unet": "groupnorm"}[name]}
    assert not report.left
