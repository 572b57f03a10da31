"""Running the command line in this process, and the specs that its tests use."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result

from normgen.cli import commands, exits

ROOT = Path(__file__).parent.parent.parent
SPEC = (ROOT / "specs" / "rmsnorm.norm").read_text()
# Reductions over several sets of axes, none of them the innermost ones of the result.
NO_KERNELS = """norm extreme
input x[D, E]
output y[E, D] = x - mean[D](max[E](x) * mean[E](x)) * max[D](sum[E](x^2))
"""
SPECS = {
    "rmsnorm": SPEC,
    "bad": "norm bad\ninput x[..., D]\nsave r[...] = rsqrt(x^2)\noutput y[..., D] = x * zz\n",
    "needs": "norm n\nattr k: int >= 1\ninput x[..., D]\noutput y[..., D] = x * k\n",
    "extreme": NO_KERNELS,
}


def run(*arguments: str, stdin: str | bytes | None = None) -> Result:
    """The result of a command; nothing that it raises gets lost."""
    return CliRunner().invoke(commands, list(arguments), prog_name="normgen", input=stdin)


# What no command that measures takes: arguments, exit code, and what is said of them.
UNMEASURED = [
    (["bad.norm"], exits.FAULTS, "bad.norm:4:"),
    (["extreme.norm"], exits.FAULTS, "unsupported"),
    (["rmsnorm", "--size", "Q=4"], exits.USAGE, "no axis"),
    (["rmsnorm", "--dtype", "f64"], exits.USAGE, "f64"),
    (["rmsnorm", "--direction", "sideways"], exits.USAGE, "sideways"),
    (["one_way.norm", "--direction", "backward"], exits.USAGE, "no backward"),
    (["open.norm"], exits.USAGE, "--attr gamma=0.1"),
]


def arguments_text(value: object) -> str | None:
    """The name of a case by its arguments."""
    return " ".join(value) if isinstance(value, list) else None


def check_refusal(command: str, arguments: list[str], code: int, said: str) -> None:
    """The command ends with the code and says why; there are two specs more that it may be given."""
    Path("one_way.norm").write_text("norm n\ninput x[..., D]: f8e4m3\noutput y[..., D]: f8e4m3 = x\n")
    Path("open.norm").write_text("norm n\nattr gamma\ninput x[..., D]\noutput y[..., D] = x * gamma\n")
    done = run(command, *arguments)
    assert (done.exit_code, said in done.stderr) == (code, True), done.output
