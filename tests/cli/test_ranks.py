"""`--shard`, of `normgen explain` and `normgen check`."""

from __future__ import annotations

import json

import pytest

import normgen
from normgen.cli import exits
from normgen.verify.refused import Refused
from tests.cli.commands import run

SCALED = "norm scaled\ninput x[..., D]\noutput y[..., D] = x * rsqrt(mean[D](x^2) + 1)\n"


def test_explain_says_what_ranks_exchange_and_have() -> None:
    done = run("explain", "rmsnorm", "--shard", "D")
    assert (done.exit_code, done.stderr) == (exits.OK, "")
    said = " ".join(done.stdout.split())
    for text in (
        "rmsnorm with D sharded",
        "forward(x, w) -> rstd, y: 1 exchange between ranks round 1: each rank sends 1 float per ...",
        "save rstd[...]: f32 = ",
        "rstd is whole: the same bits on every rank y is a shard",
        "backward(dy, x, w, rstd) -> dx, dw: 1 exchange",
    ):
        assert text in said
    done = run("explain", "rmsnorm", "--shard", "...", "--direction", "backward")
    assert "no exchange between ranks" in done.stdout and "forward" not in done.stdout
    assert "dw is a part: its value is the sum over ranks" in done.stdout
    done = run("explain", "groupnorm", "--attr", "groups=2", "--shard", "...", "--direction", "forward")
    assert "3 floats per B x G" in done.stdout


def test_explain_says_what_runs_that_straddle_groups_exchange() -> None:
    done = run("explain", "groupnorm", "--attr", "groups=3", "--shard", "(G C)", "--direction", "forward")
    assert (done.exit_code, done.stderr) == (exits.OK, "")
    whole, _, others = " ".join(done.stdout.split()).partition("Any other shards of (G C)")
    assert "Shards of whole groups, the same number on each rank: these are shards of G." in whole
    assert "no exchange between ranks" in whole and "1 exchange" not in whole
    assert "1 exchange between ranks round 1: each rank sends 3 floats per B x G" in others
    assert "always exchange between kernels" in others


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["explain", "rmsnorm", "--shard", "E"], exits.FAULTS, "rmsnorm has no axis 'E' to shard"),
        (["explain", "rmsnorm", "--shard", "D", "--emit", "ir"], exits.USAGE, "omit --emit"),
        (["explain", "local_response_norm", "--shard", "C"], exits.FAULTS, "has windows along C"),
        (["check", "local_response_norm", "--shard", "C=2"], exits.FAULTS, "has windows along C"),
        (["check", "rmsnorm", "--shard", "E=2"], exits.FAULTS, "rmsnorm has no axis 'E' to shard"),
        (["check", "rmsnorm", "--shard", "D"], exits.USAGE, "is not of the form D=3"),
        (["check", "rmsnorm", "--shard", "D=0"], exits.USAGE, "give 1 to 99 ranks"),
        (
            ["check", "rmsnorm", "--shard", "D=2", "--executor", "cuda"],
            exits.USAGE,
            "ranks on the host: omit",
        ),
        (
            ["check", "qk_norm", "--attr", "head_dim=4", "--shard", "H=2", "--shard", "K=3"],
            exits.USAGE,
            "share the same ranks",
        ),
    ],
)
def test_what_cannot_be_spread_is_said(arguments: list[str], code: int, said: str) -> None:
    done = run(*arguments)
    assert done.exit_code == code
    assert said in " ".join(done.stderr.split())


@pytest.mark.kernels
def test_check_runs_simulated_ranks_on_the_host() -> None:
    done = run("check", "-", "--shard", "D=2", "--quick", "--dtype", "f32", "--json", stdin=SCALED)
    assert (done.exit_code, done.stderr) == (exits.OK, ""), done.output
    rows = [row for row in json.loads(done.stdout)["rows"] if row["stage"] == "kernels"]
    assert [row["direction"] for row in rows] == ["forward", "backward"]
    assert {row["executor"] for row in rows} == {"host, checked, 2 ranks"}


@pytest.mark.kernels
def test_check_runs_ranks_whose_runs_straddle_groups() -> None:
    done = run("check", "groupnorm", "--attr", "groups=2", "--shard", "(G C)=3", "--quick", "--json")
    assert (done.exit_code, done.stderr) == (exits.OK, ""), done.output
    rows = [row for row in json.loads(done.stdout)["rows"] if row["stage"] == "kernels"]
    assert rows and all("(G C) in " in row["shape"] for row in rows)


@pytest.mark.kernels
def test_the_function_checks_ranks_too() -> None:
    report = normgen.check(SCALED, shard={"D": 2}, dtype="f32", quick=True)
    assert report.ok and {row.executor for row in report.rows if row.stage == "kernels"} == {
        "host, checked, 2 ranks"
    }
    with pytest.raises(Refused, match="on the host"):
        normgen.check(SCALED, shard={"D": 2}, executors=("cuda",))
