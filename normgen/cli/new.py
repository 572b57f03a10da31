"""`normgen new`: write a small commented spec, to start a new norm from."""

from __future__ import annotations

from pathlib import Path

import click

from normgen.cli.console import say
from normgen.cli.files import Refused

SPEC = """\
# A norm is a few lines of mathematics. This one is RMSNorm: change it into yours.
norm {name} "Describe in one sentence what it computes."

# Numbers that a call may set, each with its default.
attr   eps = 1e-6              "keeps rows of zeros finite"

# Input tensors. Capitals name axes: D is the last one, `...` is any number of axes before it.
input  x[..., D]
param  w[D] = 1                "gain: trained; 1 if a call omits it"

# What the forward saves for the backward. mean[D](...) is a mean over D; sum, max and min are alike.
save   rstd[...] = rsqrt(mean[D](x^2) + eps)

# Outputs. normgen derives the backward.
output y[..., D] = x * rstd * w
"""

NEXT = """\
Compare the forward and the backward with float64, on the CPU:
  normgen check {file} --quick
See the derivative, and the kernels for a GPU:
  normgen explain {file}
Train with it in Python:
  layer = normgen.torch.nn.from_spec("{file}", sizes={{"D": 4096}})
"""


@click.command("new", short_help="Write a small spec to start a norm from.")
@click.argument("name")
@click.option(
    "-o",
    "--output",
    "folder",
    metavar="DIR",
    default=".",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Directory of the new file (default: the current one).",
)
def new_command(name: str, folder: Path) -> None:
    """Write NAME.norm: a short commented spec that compiles unchanged.

    Edit it into the norm that you want, and verify it by `normgen check`. An existing file is not changed.
    """
    from normgen.diagnostics import Source
    from normgen.dsl import load_definition

    name = name.removesuffix(".norm")
    if not name.isidentifier():
        raise click.BadParameter(f"{name!r} is not a name: use letters, digits and _, as in my_norm")
    path = folder / f"{name}.norm"
    text = SPEC.format(name=name)
    load_definition(Source(str(path), text), {})  # some names are keywords
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise Refused(f"{path} already exists: choose another name") from None
    except OSError as fault:
        raise Refused(f"cannot write {path}: {fault.strerror}") from fault
    say(f"wrote {path}")
    click.echo(NEXT.format(file=path), nl=False, err=True)
