"""Running the command line in this process, and the specs that its tests use."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result

from normgen.cli import commands

ROOT = Path(__file__).parent.parent.parent
SPEC = (ROOT / "specs" / "rmsnorm.norm").read_text()
NO_KERNELS = "norm windowed\ninput x[B, C, ...]\noutput y[B, C, ...] = sum[C: -1..1](x)\n"
SPECS = {
    "rmsnorm": SPEC,
    "bad": "norm bad\ninput x[..., D]\nsave r[...] = rsqrt(x^2)\noutput y[..., D] = x * zz\n",
    "needs": "norm n\nattr k: int >= 1\ninput x[..., D]\noutput y[..., D] = x * k\n",
    "windowed": NO_KERNELS,
}


def run(*arguments: str, stdin: str | bytes | None = None) -> Result:
    """The result of a command; nothing that it raises gets lost."""
    return CliRunner().invoke(commands, list(arguments), prog_name="normgen", input=stdin)
