"""`normgen new`: a small spec with comments, to begin a norm of one's own with."""

from __future__ import annotations

from pathlib import Path

import click

from normgen.cli.console import say
from normgen.cli.files import Refused

SPEC = """\
# A norm is a few lines of mathematics. This one is RMSNorm: change what you like.
norm {name} "Say here in one sentence what it computes."

# Numbers that a call may set, each with its default.
attr   eps = 1e-6              "keeps rows of zeros finite"

# Tensors that come in. Capitals name axes: D is the last one, `...` any number before it.
input  x[..., D]
param  w[D] = 1                "gain: trained, 1 where it is left out"

# What the forward keeps for the backward. mean[D](...) is a mean over D; sum, max and min go alike.
save   rstd[...] = rsqrt(mean[D](x^2) + eps)

# What comes out. Its derivative is worked out for you.
output y[..., D] = x * rstd * w
"""

NEXT = """\
Compare both directions with float64, on the CPU:
  normgen check {file} --quick
See its derivative, and the kernels for a GPU:
  normgen explain {file}
Train with it, in Python:
  layer = normgen.torch.nn.from_spec("{file}", sizes={{"D": 4096}})
"""


@click.command("new", short_help="Write a small spec to begin a norm with.")
@click.argument("name")
@click.option(
    "-o",
    "--output",
    "folder",
    metavar="DIR",
    default=".",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="The directory of the new file (default: this one).",
)
def new_command(name: str, folder: Path) -> None:
    """Write NAME.norm: a spec of a few lines with comments, which compiles as it is.

    Change it into the norm that you want; `normgen check` tells whether it is sound. A file that is there
    already is left as it is.
    """
    from normgen.diagnostics import Source
    from normgen.dsl import load_definition

    name = name.removesuffix(".norm")
    if not name.isidentifier():
        raise click.BadParameter(f"{name!r} is no name: take letters, digits and _, as in my_norm")
    path = folder / f"{name}.norm"
    text = SPEC.format(name=name)
    load_definition(Source(str(path), text), {})  # some names are words of the language
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise Refused(f"{path} is there already: take another name") from None
    except OSError as fault:
        raise Refused(f"cannot write {path}: {fault.strerror}") from fault
    say(f"wrote {path}")
    click.echo(NEXT.format(file=path), nl=False, err=True)
