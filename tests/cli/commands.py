"""Running the command line in this process, and the specs that its tests use."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result

from normgen.cli import commands

ROOT = Path(__file__).parent.parent.parent
SPEC = (ROOT / "specs" / "rmsnorm.norm").read_text()
# The gradient of a maximum over part of a row compares it with values that no other kernel may compute anew.
NO_KERNELS = """norm extreme
input x[..., (G E)]
axis E = 4
save rstd[...] = rsqrt(mean[G, E](x^2) + 1)
output s[..., G] = max[E](x * rstd)
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
