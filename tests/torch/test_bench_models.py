"""`bench/torch_models.py` on the CPU: variants are the same model, and the table has what was measured."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest

from tests.torch.norms import nt

MISSING = "transformers", "torchvision", "diffusers", "liger_kernel"


@pytest.fixture
def bench(monkeypatch):
    """The program, with models of its own blocks whatever is installed, and `run`, which runs it."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "bench"))
    for library in MISSING:
        monkeypatch.setitem(sys.modules, library, None)
    bench = pytest.importorskip("torch_models")

    def run(out, *options):
        named = "torch_models.py", "--out", str(out), "--device", "cpu", "--small"
        monkeypatch.setattr(sys, "argv", [*named, *options])
        bench.main()

    monkeypatch.setattr(bench, "ROUNDS", 1)
    monkeypatch.setattr(bench, "run", run, raising=False)
    return bench


def test_variants_of_a_model_are_measured(bench, tmp_path, capsys):
    chosen = "eager,normgen,normgen fused,liger"
    bench.run(tmp_path, "--models", "llama", "--variants", chosen)
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


def test_what_has_no_time_left_is_a_dash_and_unknown_names_are_mistakes(bench, tmp_path, capsys):
    bench.run(tmp_path, "--models", "resnet", "--variants", "eager", "--budget", "0")
    assert "resnet, eager: out of time (see --models, --variants and --budget)" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        bench.run(tmp_path, "--models", "llama,bert")
    assert "--models: no bert: there are llama, resnet, unet" in capsys.readouterr().err


FUSED = {
    "resnet": {"batchnorm and relu (1)", "batchnorm and relu (bn1, bn2); batchnorm, sum and relu (bn3)"},
    "unet": {"groupnorm and silu (norm1, norm2)", "groupnorm and silu (norm)"},
}


@pytest.mark.parametrize(("name", "spec"), (("resnet", "batchnorm"), ("unet", "groupnorm")))
def test_stand_ins_have_the_norms_of_their_models_and_what_follows_them(bench, name, spec):
    report = nt.patch(bench.SUBJECTS[name]("cpu", True).model, fuse=True)
    assert {each.spec for each in report.replaced} == {spec} and not report.left
    assert {each.spec for each in report.fused} == FUSED[name]
